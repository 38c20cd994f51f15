"""MFU over time: the parts of a decline add up and name what was planted, from spans and from rollups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.importers.importing import import_run
from megascope.collectors.reading.store import Store
from megascope.heatmap.mfu.analysis import find_mfu
from megascope.heatmap.mfu.growth import Columns, PartKind, explain
from megascope.heatmap.mfu.parts import StepParts
from megascope.heatmap.mfu.report import sparkline
from megascope.heatmap.mfu.result import Measure, MfuReport, Trend, to_json
from megascope.profiler.errors import MegascopeError
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.writing import Recording, simulate
from support.mfu_reports import START_NS, assert_adds_up, log_store, printed
from support.small_job import ALL, COSTS, job_of
from support.span_store import meeting, write_spans

QUIET = replace(COSTS, gc_every_steps=0, gc_ns=0.0, checkpoint_every_steps=0, checkpoint_ns=0.0)
JOB = {"layout": {"pp": 2, "dp": 4, "tp": 2}, "chunks": 1, "costs": QUIET}


def report_of(folder: Path, fault: str, *, steps: int = 120, recording: Recording | None = None) -> MfuReport:
    faults = [parse_fault(fault)] if fault else []
    simulate(job_of(**JOB, steps=steps), folder, recording or Recording(), faults=faults)
    with Store(folder) as store:
        return find_mfu(store, store.attempts())


def shares(report: MfuReport) -> dict[str, float]:
    return {row.name: row.share for row in report.growth if row.share is not None}


@pytest.mark.parametrize("recording", [Recording(), ALL], ids=["rollups", "spans"])
def test_a_drift_of_garbage_collection_is_explained_by_gc(tmp_path: Path, recording: Recording) -> None:
    report = report_of(tmp_path, "gc-drift:growth_ms=60:every=5", recording=recording)
    assert (report.verdict, report.measure) == (Trend.DECLINED, Measure.MFU)
    assert shares(report)["gc"] > 0.9
    assert_adds_up(report)
    mfu = [one.mfu for one in report.bins]
    assert all(value is not None for value in mfu)
    assert mfu[-1] < 0.9 * mfu[0]  # type: ignore[operator]
    gc = next(row for row in report.growth if row.name == "gc")
    assert gc.awaited_ms > gc.own_ms > 0  # each rank pauses rarely, and all wait for whoever does
    assert any(one.cause == "gc-drift" for one in report.slow)


@pytest.mark.parametrize("recording", [Recording(), ALL], ids=["rollups", "spans"])
def test_a_slow_rank_is_awaited_in_its_segments_not_in_communication(tmp_path: Path, recording: Recording) -> None:
    report = report_of(tmp_path, "slow-gpu:rank=5:factor=1.5:steps=60-", recording=recording)
    found = shares(report)
    assert report.verdict == Trend.DECLINED
    assert found["forward"] + found["backward"] > 0.85
    assert all(row.share < 0.1 for row in report.growth if row.kind == PartKind.WAITING and row.share is not None)
    assert [one.ranks for one in report.slow] == [(5,)]
    late = [one for one in report.bins if one.steps[0] >= 60]
    assert all(one.slow == (0,) and one.growth[0].name == "backward" for one in late)
    assert_adds_up(report)


@pytest.mark.parametrize("recording", [Recording(), ALL], ids=["rollups", "spans"])
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("data-stall:rank=2:delay_ms=150:every=4:steps=40-", {"data"}),
        ("storage-stall:host=2:delay_ms=500:every=10:steps=40-", {"checkpoint"}),
        ("uneven-stages:stage=1:factor=1.3:steps=40-", {"forward", "backward"}),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_each_kind_of_fault_is_explained_by_what_it_slows(
    tmp_path: Path, recording: Recording, fault: str, names: set[str]
) -> None:
    costs = replace(COSTS, gc_every_steps=0, gc_ns=0.0)
    simulate(job_of(**(JOB | {"costs": costs}), steps=80), tmp_path, recording, faults=[parse_fault(fault)])
    with Store(tmp_path) as store:
        report = find_mfu(store, store.attempts())
    found = shares(report)
    assert sum(found[name] for name in names) > 0.9
    assert_adds_up(report)


def test_a_degraded_network_stays_with_the_waiting_over_its_axes(tmp_path: Path) -> None:
    report = report_of(tmp_path, "degraded-nic:host=1:steps=60-")
    waiting = sum(row.share or 0.0 for row in report.growth if row.kind == PartKind.WAITING)
    assert waiting > 0.9
    assert_adds_up(report)


def test_a_steady_job_has_not_declined(tmp_path: Path) -> None:
    report = report_of(tmp_path, "")
    assert report.verdict == Trend.STEADY
    assert report.lost_share < 0.01
    assert report.growth == ()
    assert "Why" not in printed(report, tmp_path)


def test_restarts_repeated_steps_and_the_time_in_between(tmp_path: Path) -> None:
    first = job_of(**JOB, steps=60, run="r", start_ns=START_NS)
    simulate(first, tmp_path)
    with Store(tmp_path) as store:
        ended = store.attempt().end_ns
    assert ended is not None
    simulate(job_of(**JOB, steps=60, run="r", attempt=1, first_step=40, start_ns=ended + 300 * 10**9), tmp_path)
    with Store(tmp_path) as store:
        report = find_mfu(store, store.attempts())
        alone = find_mfu(store, [store.attempt("r", 1)])
    (restart,) = report.restarts
    assert (restart.attempt, restart.first_step, restart.lost_steps) == (1, 40, 20)
    assert restart.down_s == pytest.approx(300, abs=1)
    assert report.mfu is not None
    assert report.mfu_wall is not None
    assert report.mfu_wall < 0.2 * report.mfu  # five minutes of nothing
    assert "1 restart repeated 20 steps" in report.sentence
    assert {one.attempt for one in report.bins} == {0, 1}
    assert (alone.restarts, alone.attempt) == ((), 1)


def test_a_log_of_step_times_shows_long_steps_and_says_what_it_lacks(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    took = {step: 8960.0 + float(rng.normal(0, 20)) for step in range(5, 2000, 5)}
    took |= {500: 87_000.0, 1400: 88_000.0}
    with log_store(tmp_path, took) as store:
        report = find_mfu(store, store.attempts())
    assert (report.measure, report.source, report.mfu) == (Measure.SPEED, "steps", None)
    assert [one.step for one in report.long_steps] == [1400, 500]
    assert report.long_step_count == 2
    assert all(one.segment is None for one in report.long_steps)
    assert {one.signal for one in report.abstained} >= {"mfu", "tokens", "spans"}
    assert "restarts or stalls" in report.sentence
    assert all(one.mfu is None and one.tokens_per_second is None and one.speed is not None for one in report.bins)
    top = report.growth[0]
    assert top.kind == PartKind.LONG_STEPS
    assert top.share == pytest.approx(1.0, abs=0.1)


def test_the_long_iterations_of_a_real_run_look_like_restarts(tmp_path: Path, traces: Path) -> None:
    import_run([traces / "megatron" / "mixtral_8x7b_tp2pp4ep4_h100.json"], tmp_path / "store")
    with Store(tmp_path / "store") as store:
        report = find_mfu(store, store.attempts())
    assert sorted(one.step for one in report.long_steps[:4]) == [9870, 11285, 14145, 19855]
    assert all(86_000 < one.duration_ms < 89_000 and one.segment is None for one in report.long_steps[:4])
    assert (report.measure, report.source) == (Measure.SPEED, "steps")
    assert report.growth[0].kind == PartKind.LONG_STEPS
    assert report.bins[-1].steps[1] < 22_690  # where the values end


def test_tokens_stand_for_the_speed_where_the_peak_is_unknown(tmp_path: Path) -> None:
    with log_store(tmp_path, dict.fromkeys(range(60), 500.0), tokens=1000) as store:
        report = find_mfu(store, store.attempts())
    assert report.measure == Measure.TOKENS
    assert report.tokens_per_second == pytest.approx(2000)


def test_a_checkpoint_fills_its_long_step(tmp_path: Path) -> None:
    spans = meeting(4, 60, lambda rank, step: 20.0 + (100.0 if step == 40 else 0.0))
    spans = [one for one in spans if not (one.step == 40 and one.segment == "forward")] + [
        replace(one, segment="save", kind="checkpoint") for one in spans if one.step == 40 and one.segment == "forward"
    ]
    steps = {
        "rank": [0] * 60,
        "step": list(range(60)),
        "start_ns": [START_NS + step * 200 * 10**6 for step in range(60)],
        "duration_ns": [(121 if step == 40 else 21) * 10**6 for step in range(60)],
    }
    with write_spans(tmp_path, spans, layout={"dp": 4}, more={"steps": steps}) as store:
        report = find_mfu(store, store.attempts(), bins=6)
    assert [(one.step, one.segment) for one in report.long_steps] == [(40, "save")]
    assert report.growth[0].name == "save"


def test_without_steps_there_is_nothing_to_show(tmp_path: Path) -> None:
    spans = meeting(4, 10, lambda rank, step: 20.0)
    with (
        write_spans(tmp_path, [replace(one, step=None) for one in spans], layout={"dp": 4}) as store,
        pytest.raises(MegascopeError, match="no step with a time"),
    ):
        find_mfu(store, store.attempts())


def columns(own: list[float], waits: float, awaited: list[float], ms: float, stage: list[list[float]]) -> Columns:
    parts = StepParts(
        np.arange(1),
        1,
        ("forward", "data"),
        ("compute", "data"),
        ("dp",),
        np.array(own)[:, None],
        np.array(stage)[:, :, None],
        np.array(awaited)[:, None],
        np.array([[waits]]),
    )
    return Columns(np.array([ms]), np.ones(1), np.zeros(1), parts)


def test_waiting_goes_to_what_was_awaited_only_as_far_as_it_grew() -> None:
    keep = np.ones(1, bool)
    same = [[20.0, 1.0], [20.0, 1.0]]
    before = columns([20.0, 1.0], 5.0, [0.0, 0.0], 27.0, same)
    after = columns([21.0, 1.0], 9.0, [8.0, 0.0], 35.0, same)
    rows = {row.name: row for row in explain([(before, keep)], [(after, keep)])}
    assert [rows["forward"].own_ms, rows["forward"].awaited_ms] == pytest.approx([1.0, 4.0])
    assert rows["waiting over dp"].growth_ms == pytest.approx(0.0)
    assert rows["in no recorded span"].growth_ms == pytest.approx(3.0)
    assert sum(row.growth_ms for row in rows.values()) == pytest.approx(8.0)


def test_a_stage_that_grew_is_awaited_by_the_others() -> None:
    keep = np.ones(1, bool)
    before = columns([20.0, 0.0], 5.0, [0.0, 0.0], 25.0, [[20.0, 0.0], [20.0, 0.0]])
    after = columns([22.0, 0.0], 7.0, [0.0, 0.0], 29.0, [[20.0, 0.0], [24.0, 0.0]])
    rows = {row.name: row for row in explain([(before, keep)], [(after, keep)])}
    assert rows["forward"].growth_ms == pytest.approx(4.0)
    assert rows["forward"].share == pytest.approx(1.0)


def test_what_is_printed(tmp_path: Path) -> None:
    report = report_of(tmp_path, "slow-gpu:rank=5:factor=1.5:steps=60-")
    text = printed(report, tmp_path)
    assert text.index("Speed") < text.index("Why steps of") < text.index("Over time")
    assert "awaited:" in text
    assert "DECLINED" in text
    assert "in no recorded span" in text
    assert "rank 5" in text
    assert to_json(report)["schema"] == 1
    assert sparkline([1.0, None, 0.5]) == "█ ▁"
