"""What-if from stores: simulated jobs whose truth is known, the demo's own, and those that cannot be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conftest import Demo
from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap.matrix import load_placement
from megascope.heatmap.peers import IntArray
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.whatif.finding import find_whatif
from megascope.heatmap.whatif.kept import hosts_of
from megascope.heatmap.whatif.live import LiveWhatIf
from megascope.heatmap.whatif.reasons import CannotReplayError
from megascope.heatmap.whatif.recording import find_segments, load_recording
from megascope.heatmap.whatif.result import Part, WhatIf
from megascope.heatmap.whatif.schedule import load_schedule, scheduled_names
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.writing import Recording
from support.small_job import ALL, COSTS, job_of, open_simulated
from support.span_store import meeting, write_spans

QUIET = {"noise": load_noise("none")}
EVEN = replace(COSTS, gc_ns=0.0, gc_every_steps=0, checkpoint_ns=0.0, checkpoint_every_steps=0)


def whatif(folder: Path, *faults: str, **more: Any) -> tuple[WhatIf, float]:
    """The what-if of a simulated job, and the mean length of its steps in seconds as the simulator counted them."""
    job = job_of(**more)
    store, attempt = open_simulated(folder, job, ALL, faults=[parse_fault(text) for text in faults])
    with store:
        found = find_whatif(store, attempt, load_placement(store, attempt), steps_of(store, attempt))
        return found, step_s(store, attempt)


def steps_of(store: Store, attempt: Attempt) -> IntArray:
    """All steps but the first, which lacks what the step before hands on."""
    sql = "SELECT DISTINCT step FROM events WHERE step > 0 ORDER BY 1"
    return np.asarray(store.query(sql, attempt=attempt)["step"].to_numpy(), np.int64)


def step_s(store: Store, attempt: Attempt) -> float:
    """Mean step of the median rank."""
    sql = """SELECT avg(took) AS took FROM
             (SELECT median(duration_ns) / 1e9 AS took FROM steps WHERE step > 0 GROUP BY step)"""
    return float(store.query(sql, attempt=attempt)["took"][0].as_py())


@pytest.mark.parametrize(
    ("layout", "chunks"),
    [
        ({"pp": 2, "dp": 2, "tp": 2}, 2),
        ({"pp": 4, "dp": 2}, 1),
        ({"dp": 4}, 1),
        ({"pp": 1, "dp": 2, "tp": 4}, 1),
        ({"pp": 2, "cp": 2, "tp": 2}, 1),
        ({"tp": 2, "pp": 2, "dp": 2}, 1),
    ],
    ids=str,
)
def test_the_replay_takes_as_long_as_the_job_did(tmp_path: Path, layout: dict[str, int], chunks: int) -> None:
    virtual = layout.get("pp", 1) * chunks
    costs = replace(EVEN, forward_ns=COSTS.forward_ns * virtual, backward_ns=COSTS.backward_ns * virtual)
    found, took_s = whatif(tmp_path / "store", layout=layout, chunks=chunks, costs=costs)
    assert found.step_s == pytest.approx(took_s, rel=0.01)
    assert found.recorded_s == pytest.approx(found.step_s, rel=0.03)  # the simulator launches everything at once
    assert 1 <= found.slowdown < 1.1


def test_a_slow_gpu_costs_what_the_job_without_it_does_not(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layout": {"pp": 2, "dp": 8, "tp": 2}, "chunks": 1, "costs": EVEN, "steps": 12}
    healthy, healthy_s = whatif(tmp_path / "healthy", **shape)
    found, slow_s = whatif(tmp_path / "slow", "slow-gpu:rank=21:factor=1.5", **shape)
    diluted = 1 + 0.5 / 32  # the ideal is the mean, to which the slow rank belongs
    assert found.slowdown == pytest.approx(slow_s / healthy_s * healthy.slowdown / diluted, rel=0.01)
    assert found.m_w == pytest.approx(1, abs=0.15)
    assert found.of(Part.RANK)[0].name == "21"
    assert found.of(Part.HOST)[0].name == "node0010"
    assert found.of(Part.STAGE)[0].name == "1"
    assert {one.name for one in found.of(Part.SEGMENT)[:2]} == {"forward", "backward"}
    assert found.of(Part.RANK)[0].saved == pytest.approx(1 - healthy_s / slow_s, abs=0.03)
    assert found.of(Part.RANK)[1].recovered < 0.1
    assert sorted(int(one.name) for one in found.of(Part.RANK)) == list(range(32))
    assert len(found.of(Part.HOST)) == 16
    assert found.unlisted_ranks == 0


def test_of_a_large_job_the_costliest_ranks_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"layout": {"dp": 20}, "costs": EVEN, "chunks": 1, "steps": 6, "gpus_per_host": 1}
    faults = ("slow-gpu:rank=17:factor=1.5",)
    whole, _ = whatif(tmp_path / "whole", *faults, **shape)
    monkeypatch.setattr("megascope.heatmap.whatif.accumulator.MAX_REPLAYED", 1)
    found, _ = whatif(tmp_path / "found", *faults, **shape)
    assert (len(whole.of(Part.RANK)), whole.unlisted_ranks) == (20, 0)
    assert (len(found.of(Part.RANK)), found.unlisted_ranks) == (16, 4)
    assert found.of(Part.RANK)[0] == whole.of(Part.RANK)[0]
    assert found.of(Part.RANK)[0].name == "17"


def test_a_long_last_stage_is_its_own_part(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layout": {"pp": 4, "dp": 2}, "chunks": 1, "costs": EVEN, "steps": 10, "microbatches": 8}
    found, _ = whatif(tmp_path / "store", "uneven-stages:stage=3:factor=1.6", **shape, **QUIET)
    assert found.slowdown > 1.2
    assert found.m_s is not None
    assert found.m_s > 1  # the others take less than the mean that the last stage raises
    assert found.m_w is not None
    assert found.m_w < 0.2
    assert found.of(Part.STAGE)[0].name == "3"


def test_hosts_clocks_do_not_matter(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layout": {"pp": 4, "dp": 2}, "chunks": 1, "costs": EVEN, "steps": 10}
    right, _ = whatif(tmp_path / "right", "slow-gpu:rank=3:factor=1.5", **shape)
    wrong, _ = whatif(tmp_path / "wrong", "slow-gpu:rank=3:factor=1.5", **shape, skew_ms=20.0, drift_ppm=2.0)
    assert wrong.slowdown == pytest.approx(right.slowdown, rel=0.003)
    assert wrong.m_w == pytest.approx(right.m_w, abs=0.01)


@pytest.mark.parametrize("costs", [EVEN, COSTS], ids=["all steps alike", "pauses in some steps"])
def test_steps_read_one_after_another_give_what_all_at_once_give(tmp_path: Path, costs: Costs) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=costs), ALL)
    with store:
        placement, steps = load_placement(store, attempt), steps_of(store, attempt)
        whole = find_whatif(store, attempt, placement, steps)
        actions = load_schedule(store, attempt)
        grown = LiveWhatIf(actions, hosts_of(placement))
        for part in np.array_split(steps, 4):
            grown.add(load_recording(store, attempt, placement, part.tolist(), scheduled_names(actions)))
        found = grown.result()
        with pytest.raises(ValueError, match="added before"):
            grown.add(load_recording(store, attempt, placement, steps[:1].tolist(), scheduled_names(actions)))
    assert found.slowdown == pytest.approx(whole.slowdown, rel=1e-9)
    assert found.m_w == pytest.approx(whole.m_w, abs=1e-6)
    assert [one.name for one in found.contributions] == [one.name for one in whole.contributions]
    recovered, wanted = ([one.recovered for one in result.contributions] for result in (found, whole))
    np.testing.assert_allclose(recovered, wanted, atol=1e-6)


def test_the_newest_steps_are_kept_and_give_what_they_give_by_themselves(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=EVEN, steps=40), ALL)
    with store:
        placement, steps = load_placement(store, attempt), steps_of(store, attempt)
        newest = find_whatif(store, attempt, placement, steps[-10:])
        actions = load_schedule(store, attempt)
        live = LiveWhatIf(actions, hosts_of(placement), window=10)
        for part in np.array_split(steps, 8):
            live.add(load_recording(store, attempt, placement, part.tolist(), scheduled_names(actions)))
            assert len(live.steps) <= 10
        found = live.result()
    assert live.steps.tolist() == steps[-10:].tolist()
    assert live.measured is not None
    assert live.measured.own.shape[-1] == 10
    assert found.slowdown == pytest.approx(newest.slowdown, rel=1e-9)


def test_a_slow_link_is_the_links_part_and_no_ranks(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layout": {"pp": 4, "dp": 2}, "chunks": 1, "costs": EVEN, "steps": 12, "microbatches": 8}
    found, _ = whatif(tmp_path / "store", "degraded-nic:rank=3:bandwidth=0.002", **shape, **QUIET)
    assert found.slowdown > 1.1
    links = found.of(Part.LINK)
    assert {"3" in one.name.split(">") for one in links if one.recovered > 0.1} == {True}
    assert all(one.recovered < 0.05 for one in (*found.of(Part.RANK), *found.of(Part.HOST)))


def test_a_step_that_lacks_spans_of_a_rank_is_left_out(tmp_path: Path) -> None:
    job = job_of(costs=EVEN, steps=12)
    recording = Recording(span_ranks=None, span_steps=(2, 9))
    store, attempt = open_simulated(tmp_path / "store", job, recording)
    with store:
        placement = load_placement(store, attempt)
        asked = np.arange(0, 12)
        found = find_whatif(store, attempt, placement, asked)
    assert found.steps == (2, 9)
    assert found.step_count == 8
    assert any("4 of the 12 steps" in note for note in found.notes)


def test_of_many_spans_some_steps_are_read(tmp_path: Path) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=EVEN), ALL)
    with store:
        placement, steps = load_placement(store, attempt), steps_of(store, attempt)
        spans = int(store.query("SELECT count(*) AS spans FROM events", attempt=attempt)["spans"][0].as_py())
        whole = find_whatif(store, attempt, placement, steps)
        found = find_whatif(store, attempt, placement, steps, max_spans=spans // 4)
    assert (found.step_count, found.steps) == (6, (4, 24))
    assert f"{found.step_count} of {len(steps)} steps were read" in found.notes[0]
    assert found.slowdown == pytest.approx(whole.slowdown, abs=0.02)


def test_steps_are_replayed_too_where_rollups_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(costs=EVEN), ALL)
    with store:
        spans = find_stragglers(store, attempt)
        monkeypatch.setattr("megascope.heatmap.source.MANY_SPANS", 100)
        rollups = find_stragglers(store, attempt, steps=(10, 24))
        asked = find_whatif(store, attempt, load_placement(store, attempt), np.arange(10, 25))
    assert any(one.signal == "spans" for one in rollups.abstained)
    assert rollups.whatif is not None
    assert spans.whatif is not None
    assert rollups.whatif.steps == (10, 24)
    assert rollups.slowdown == asked.slowdown != spans.slowdown


@pytest.mark.parametrize(
    ("recording", "ranks", "reason"),
    [
        (Recording(span_ranks=(0, 1, 2, 3)), None, "needs the spans of all 8 ranks, and has those of 4"),
        (Recording(span_ranks=()), None, "needs single spans, and the store holds none"),
        (ALL, [0, 1, 2, 3], "needs all ranks, and only some were asked for"),
    ],
    ids=["some ranks recorded", "rollups alone", "some ranks asked for"],
)
def test_verdict_abstains(tmp_path: Path, recording: Recording, ranks: Sequence[int] | None, reason: str) -> None:
    store, attempt = open_simulated(tmp_path / "store", job_of(), recording)
    with store:
        verdict = find_stragglers(store, attempt, ranks=ranks)
    assert (verdict.slowdown, verdict.m_w, verdict.m_s, verdict.whatif) == (None, None, None, None)
    assert any(one.signal == "what-if" and reason in one.reason for one in verdict.abstained)


class NestedSpans:
    """Answers which segments there are, and which ran inside which."""

    SEGMENTS = (
        (1, "step", "host", None),
        (2, "forward", "compute", None),
        (3, "loss", "compute", None),
        (4, "tp_all_reduce", "collective", "tp"),
        (5, "eval", "eval", None),
        (6, "send_forward", "p2p", "pp"),
        (7, "dp_reduce_scatter", "collective", "dp"),
        (8, "grad_clip", "optimizer", None),
    )
    PAIRS = ((1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 0), (6, 5), (7, 2), (4, 5), (8, 1), (4, 8), (3, 99))

    def query(self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None) -> pa.Table:
        if "FROM segments" in sql:
            rows = [dict(zip(("segment", "name", "kind", "axis"), row, strict=True)) for row in self.SEGMENTS]
        else:
            rows = [{"segment": segment, "parent": parent} for segment, parent in self.PAIRS]
        return pa.Table.from_pylist(rows)


def test_what_ran_inside_counts_to_the_scheduled_action_and_evaluation_to_none() -> None:
    found = find_segments(NestedSpans(), Attempt("run", 0), "true", {"forward", "send_forward"})
    assert found.inner == ("tp",)
    assert found.root == {
        (1, 0): 1,  # by itself
        (2, 1): 2,  # scheduled, though the step encloses it
        (3, 2): 2,  # the loss is part of the forward
        (6, 0): 6,  # a send of the step; that inside the evaluation is left out
        (7, 0): 7,
        (7, 2): 7,  # gradients travel by themselves, also where they are sent off inside compute
        (8, 1): 1,  # not scheduled: the time of what encloses it
    }


def test_without_a_schedule_there_is_nothing_to_replay(tmp_path: Path) -> None:
    store = write_spans(tmp_path / "store", meeting(4, 20, lambda rank, step: 10.0), layout={"dp": 4})
    with store:
        attempt = store.attempt()
        with pytest.raises(CannotReplayError, match="no schedule was recorded"):
            find_whatif(store, attempt, load_placement(store, attempt), np.arange(20))


@pytest.mark.alone
def test_the_trainers_own_job_is_replayed(demo: Demo) -> None:
    with Store(demo.store) as store:
        attempt = store.attempt()
        found = find_whatif(store, attempt, load_placement(store, attempt), steps_of(store, attempt))
        took_s = step_s(store, attempt)
    assert 0.6 * took_s < found.step_s < 1.1 * took_s
    assert found.slowdown > 1
    assert "5" in [one.name for one in found.of(Part.RANK)[:2]]  # the demo slows it down
