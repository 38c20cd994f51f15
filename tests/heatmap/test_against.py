"""Two runs or windows against each other: a planted regression is found where it is, and nothing elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.against.analysis import compare_runs
from megascope.heatmap.against.report import render
from megascope.heatmap.against.result import Against, Place, Verdict, to_json
from megascope.heatmap.against.sides import changed_settings, is_of_model
from megascope.heatmap.estimate import estimate, normal_reach, ratio_of
from megascope.scoring.runs import SPANS
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.writing import Recording, simulate
from support.small_job import ALL, COSTS, job_of
from support.span_store import meeting, write_spans

QUIET = replace(COSTS, gc_every_steps=0, gc_ns=0.0, checkpoint_every_steps=0, checkpoint_ns=0.0)
SLOWER = replace(QUIET, backward_ns=tuple(1.2 * one for one in QUIET.backward_ns))
STEPS = 80


def small(run: str, **more: object) -> SimulatedJob:
    settings = {"layout": {"pp": 2, "dp": 4, "tp": 2}, "chunks": 1, "costs": QUIET, "steps": STEPS, "run": run}
    return job_of(**(settings | more))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Runs of one store: two that are alike, and others with one thing changed each."""
    root = tmp_path_factory.mktemp("runs")
    simulate(small("base", seed=1), root)
    simulate(small("again", seed=2), root)
    simulate(small("slower", seed=3, costs=SLOWER), root)
    simulate(small("rank", seed=4), root, faults=[parse_fault("slow-gpu:rank=6:factor=1.3")])
    simulate(small("host", seed=5), root, faults=[parse_fault("slow-host:host=3:factor=1.3")])
    simulate(small("late", seed=6, steps=100), root, faults=[parse_fault("slow-gpu:rank=6:factor=1.3:steps=50-")])
    simulate(small("network", seed=7), root, faults=[parse_fault("degraded-nic:host=1")])
    simulate(small("wider", seed=8, layout={"pp": 2, "dp": 8, "tp": 2}, costs=SLOWER), root)
    simulate(small("deeper", seed=9, layout={"pp": 4, "dp": 2, "tp": 2}), root)
    more = small("double", seed=10, microbatches=8, costs=replace(QUIET, tokens_per_step=8192, flops_per_step=2e12))
    simulate(more, root)
    with Store(root) as store:
        yield store


def compare(store: Store, now: str, then: str) -> Against:
    return compare_runs(store, store.attempt(now), store, store.attempt(then))


def test_a_regression_of_a_fifth_in_backward_is_found_with_its_ratio(runs: Store) -> None:
    found = compare(runs, "slower", "base")
    assert found.verdict == Verdict.SLOWER
    (one,) = [each for each in found.findings if each.place != Place.WAITING]
    assert (one.place, one.segment) == (Place.SEGMENT, "backward")
    assert one.change.low <= 1.2 <= one.change.high
    assert one.change.high - one.change.low < 0.05
    assert found.step is not None
    assert found.step.low > 1.05
    assert sum(row.growth_ms for row in found.growth) == pytest.approx(found.step.now_ms - found.step.then_ms, rel=0.1)
    assert found.growth[0].name == "backward"
    now, then = one.evidence
    for evidence in one.evidence:
        assert runs.query(evidence.sql).column(0)[0].as_py() == pytest.approx(evidence.value)
    assert now.value == pytest.approx(1.2 * then.value, rel=0.03)  # type: ignore[operator]
    assert any("simulation.costs.backward_ns" in one for one in found.differences)


def test_the_other_way_round_it_got_faster_and_nothing_slower(runs: Store) -> None:
    found = compare(runs, "base", "slower")
    assert found.verdict == Verdict.NOT_SLOWER
    assert found.findings == ()
    assert [(one.place, one.segment) for one in found.faster] == [(Place.SEGMENT, "backward")]


def test_runs_that_differ_in_their_noise_alone_are_not_slower(runs: Store) -> None:
    for now, then in (("again", "base"), ("base", "again")):
        found = compare(runs, now, then)
        assert (found.verdict, found.findings, found.faster) == (Verdict.NOT_SLOWER, (), ())
        assert found.sentence.startswith("Nothing got slower: a step takes")


def test_a_rank_that_is_slower_than_before_is_named_and_no_other(runs: Store) -> None:
    found = compare(runs, "rank", "base")
    assert {(one.place, one.ranks) for one in found.findings} == {(Place.RANK, (6,))}
    assert {one.segment for one in found.findings} == {"forward", "backward"}
    assert all(one.change.low <= 1.3 <= one.change.high for one in found.findings)
    assert found.step is not None
    most = (found.step.high - 1) * found.step.then_ms
    assert all(one.lost_ms <= most + 1e-9 for one in found.findings)


def test_all_ranks_of_a_host_are_the_host(runs: Store) -> None:
    found = compare(runs, "host", "base")
    assert {(one.place, one.hosts, one.ranks) for one in found.findings} == {(Place.HOST, ("node0003",), (6, 7))}


def test_two_windows_of_one_attempt(runs: Store) -> None:
    attempt = runs.attempt("late")
    found = compare_runs(runs, attempt, runs, attempt, steps=(50, 99), other_steps=(0, 49))
    assert {one.ranks for one in found.findings} == {(6,)}
    assert (found.now.steps, found.then.steps) == ((50, 99), (10, 49))


def test_a_slower_network_is_waiting_that_no_work_explains(runs: Store) -> None:
    found = compare(runs, "network", "base")
    assert found.findings
    assert {one.place for one in found.findings} == {Place.WAITING}


def test_more_replicas_are_compared_by_stage_and_not_by_rank(runs: Store) -> None:
    found = compare(runs, "wider", "base")
    assert found.verdict in (Verdict.SLOWER, Verdict.INSUFFICIENT)
    assert all(not one.ranks for one in found.findings)
    assert found.step is None


def test_another_cut_of_the_model_is_not_judged(runs: Store) -> None:
    found = compare(runs, "deeper", "base")
    assert (found.verdict, found.findings) == (Verdict.INSUFFICIENT, ())
    assert "pp cut the model" in found.sentence
    assert any(one.startswith("layout") for one in found.differences)


def test_other_numbers_of_microbatches_are_compared_per_span(runs: Store) -> None:
    found = compare(runs, "double", "base")
    assert found.step is None
    assert not [one for one in found.findings if one.segment in ("forward", "backward")]
    assert any("forward runs 8 times a step now, 4 times then" in one for one in found.differences)
    assert found.verdict == Verdict.INSUFFICIENT  # steps cannot be compared: what no span holds is not known


def test_spans_and_rollups_agree(tmp_path: Path) -> None:
    for run, costs, seed in (("base", QUIET, 1), ("slower", SLOWER, 2)):
        for name, recording in (("spans", ALL), ("rollups", Recording())):
            simulate(small(run, seed=seed, costs=costs, steps=60), tmp_path / name, recording)
    ratios = []
    for name in ("spans", "rollups"):
        with Store(tmp_path / name) as store:
            found = compare(store, "slower", "base")
            assert found.now.source == name
            ratios += [one.change.ratio for one in found.findings if one.segment == "backward"]
    assert ratios == [pytest.approx(1.2, abs=0.02)] * 2


def test_few_or_noisy_steps_are_not_called_unchanged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    few = write_spans(tmp_path / "few", meeting(4, 8, lambda rank, step: 20.0), layout={"dp": 4})
    noisy = meeting(4, 60, lambda rank, step: float(20 * np.exp(rng.normal(0, 0.6))))
    wild = write_spans(tmp_path / "wild", noisy, layout={"dp": 4})
    for store in (few, wild):
        attempt = store.attempt()
        found = compare_runs(store, attempt, store, attempt, steps=(30, 59), other_steps=(0, 29))
        assert found.verdict == Verdict.INSUFFICIENT, found.sentence
        store.close()


def windows(store: Store, now: tuple[int, int], then: tuple[int, int]) -> Against:
    attempt = store.attempt()
    return compare_runs(store, attempt, store, attempt, steps=now, other_steps=then)


def test_a_trifle_is_a_small_change_and_no_verdict(tmp_path: Path) -> None:
    found = compare_costs(tmp_path, 1.02)
    assert found.findings == ()
    assert found.verdict == Verdict.NOT_SLOWER
    assert [one.segment for one in found.small] == ["optimizer"]
    assert "Small changes" in printed(found, tmp_path)
    assert compare_costs(tmp_path / "more", 4.0).verdict == Verdict.SLOWER


def compare_costs(root: Path, factor: float) -> Against:
    """Two runs without noise, the optimizer of one of which takes a little longer."""
    none = load_noise("none")
    more = replace(QUIET, optimizer_ns=QUIET.optimizer_ns * factor)
    simulate(small("base", noise=none), root)
    simulate(small("more", noise=none, costs=more), root)
    with Store(root) as store:
        return compare(store, "more", "base")


def test_the_first_steps_are_left_out_of_a_window_that_begins_with_them(tmp_path: Path) -> None:
    def work_ms(rank: int, step: int) -> float:
        return 20.0 if step >= 2 else 2000.0

    with write_spans(tmp_path, meeting(4, 80, work_ms), layout={"dp": 4}) as store:
        found = windows(store, (40, 79), (0, 39))
    assert abs(sum(row.growth_ms for row in found.growth)) < 1


def test_settings_are_the_models_by_name_and_not_by_value() -> None:
    loaded = [{"load": f"/ckpt/model.{number}"} for number in (1, 2)]
    assert [is_of_model(name) for name, _ in changed_settings(*loaded)] == [False]
    sizes = [{"trainer": {"model": {"hidden": size}}} for size in (1, 2)]
    assert [is_of_model(name) for name, _ in changed_settings(*sizes)] == [True]


def test_waiting_is_not_called_the_network_and_comes_in_the_order_of_a_step(runs: Store) -> None:
    found = compare(runs, "network", "base")
    said = {one.segment: one.statement for one in found.findings}
    assert "whose origin this is it does not tell" in said["pp"]  # rollups do not tell a pair's transfer
    assert "ms then: transfers got slower (" in said["dp"]
    assert "ms then: somebody comes later (" in said["world"]
    assert not any("the network" in one.statement for one in found.findings)
    axes = [one.segment for one in found.findings]
    assert axes == sorted(axes, key=["tp", "pp", "dp", "world"].index)


@pytest.mark.parametrize("axis", ["dp", "pp", "world"])
def test_waiting_is_split_into_transfers_and_lateness(tmp_path: Path, axis: str) -> None:
    """From spans: a slow NIC makes transfers longer where it carries them, and its ranks late where all meet."""
    simulate(small("base", seed=1), tmp_path / "s", SPANS)
    simulate(small("network", seed=7), tmp_path / "s", SPANS, faults=[parse_fault("degraded-nic:host=1")])
    with Store(tmp_path / "s") as store:
        [one] = [each for each in compare(store, "network", "base").findings if each.segment == axis]
        assert one.waited is not None
        now, then = one.waited
        moved, late = now.transfer_ms - then.transfer_ms, now.lateness_ms - then.lateness_ms
        assert (moved > 2 * late) == (axis == "dp")
        assert (late > 2 * moved) == (axis != "dp")
        assert [evidence.value for evidence in one.evidence] == [now.transfer_ms, then.transfer_ms]
        for evidence in one.evidence:
            assert store.query(evidence.sql).column(0)[0].as_py() == pytest.approx(evidence.value, abs=1e-6)


def test_waiting_is_not_split_where_members_were_not_recorded(tmp_path: Path) -> None:
    """Whoever is missing may have been the last to arrive."""
    some = replace(SPANS, span_ranks=tuple(range(12)))  # of 16: replicas 0 to 2 of stage 0, and all of stage 1 but two
    simulate(small("base", seed=1), tmp_path / "s", some)
    simulate(small("network", seed=7), tmp_path / "s", some, faults=[parse_fault("degraded-nic:host=1")])
    with Store(tmp_path / "s") as store:
        waits = [one for one in compare(store, "network", "base").findings if one.place == Place.WAITING]
        assert waits
        assert all(one.waited is None for one in waits if one.segment in ("dp", "world"))


def test_no_loss_below_nothing_is_told(runs: Store) -> None:
    found = compare(runs, "rank", "base")
    assert all(one.lost_ms >= 0 for one in (*found.findings, *found.small, *found.faster))
    faster = compare(runs, "base", "slower").faster
    assert all("job loses" not in one.statement for one in faster)


def printed(found: Against, folder: Path) -> str:
    from rich.console import Console

    with (folder / "out").open("w", encoding="utf-8") as file:
        Console(width=160, file=file).print(render(found))
    return (folder / "out").read_text(encoding="utf-8")


def test_what_is_printed_and_given_as_json(runs: Store, tmp_path: Path) -> None:
    found = compare(runs, "rank", "base")
    text = printed(found, tmp_path)
    assert "SLOWER: Rank 6 on node0003" in text
    assert "A step takes longer for" in text
    value = to_json(found)
    assert (value["schema"], value["run"], value["then"]["run"]) == (1, "rank", "base")


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    for correlation in (0.0, 0.5):
        noise = rng.standard_normal((2, 600, 80))
        for step in range(1, 80):
            noise[..., step] = correlation * noise[..., step - 1] + math.sqrt(1 - correlation**2) * noise[..., step]
        now, then = (estimate(np.exp(0.03 * one + shift), 10) for one, shift in zip(noise, (0.1, 0.0), strict=True))
        log, error = now.log - then.log, np.hypot(now.error, then.error)
        holds = np.abs(log - 0.1) <= normal_reach() * error
        assert 0.88 <= holds.mean() <= 0.995


def test_a_ratio_with_its_interval() -> None:
    one = ratio_of(math.log(1.2), 0.01)
    reach = 1.2 * math.exp(0.0196)
    assert [one.value, one.low, one.high] == pytest.approx([1.2, 1.44 / reach, reach], rel=1e-4)
    assert ratio_of(0.0, 0.01, tried=100).high > ratio_of(0.0, 0.01).high
    assert np.isnan(estimate(np.full((1, 20), 3.0), 30).log[0])
