"""Micro-batches of unequal cost are found by what the stages of a replica agree on, and taken out of the comparison."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.heatmap.jobwide.even import even_out
from megascope.heatmap.jobwide.replicas import ReplicaWork, replica_work
from megascope.heatmap.jobwide.sequences import find_uneven_input, uneven_input
from megascope.heatmap.jobwide.work import work_ms
from megascope.heatmap.observations import Observations, observe
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Findings, Outcome, describe
from megascope.profiler.topology import Topology
from support.faulty_job import check_evidence, faulty_job
from support.noisy_job import Job, observations
from support.span_store import Span, write_spans

MESH = Topology.from_mapping({"pp": 4, "dp": 16})


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
def test_unequal_sequences_are_the_jobs_and_no_ranks(tmp_path: Path, rollups: bool) -> None:
    with faulty_job(tmp_path / "s", "uneven-sequences:spread=0.3:steps=25-", rollups=rollups) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [one.cause for one in verdict.culprits] == [Cause.UNEVEN_INPUT]
        found = verdict.culprits[0]
        assert (found.kind, found.ranks, found.hosts, found.stage) == (CulpritKind.JOB, (), (), None)
        assert found.steps == ((20, 59) if rollups else (25, 59))
        assert found.lost_share > 0.03
        check_evidence(store, found.evidence)
        assert len(found.evidence) == 2
        assert "Micro-batches cost unequally much" in describe(found)


def test_a_slow_rank_is_named_beside_unequal_sequences(tmp_path: Path) -> None:
    faults = ("uneven-sequences:spread=0.4", "slow-gpu:rank=5:factor=1.25:steps=20-")
    with faulty_job(tmp_path / "s", *faults) as store:
        culprits = find_stragglers(store, store.attempt()).culprits
        assert {(one.cause, one.ranks) for one in culprits} == {(Cause.UNEVEN_INPUT, ()), (Cause.SLOW_COMPUTE, (5,))}


def test_evening_out_brings_the_ranks_together_and_keeps_a_slow_one(tmp_path: Path) -> None:
    faults = ("uneven-sequences:spread=0.4", "slow-gpu:rank=5:factor=1.25")
    with faulty_job(tmp_path / "s", *faults) as store:
        attempt = store.attempt()
        seen = observe(store, attempt)
        evened = even_out(store, attempt, seen)
        assert _spread(evened) < 0.5 * _spread(seen)
        slow = np.median(work_ms(evened)[5]) / np.median(work_ms(evened)[:8])
        assert slow == pytest.approx(1.25, abs=0.03)
        assert seen.waits_ms is not None
        assert evened.waits_ms is not None
        total = np.nansum(work_ms(seen) + seen.waits_ms)
        assert np.nansum(work_ms(evened) + evened.waits_ms) == pytest.approx(total)


def _spread(seen: Observations) -> float:
    work = work_ms(seen)[:8]
    return float(np.median(np.std(np.log(work), axis=0)))


DEEP = {"pp": 3, "dp": 8}
"""Replica 3 has ranks 3, 11 and 19, on three hosts of four."""


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
def test_a_replica_that_always_gets_more_is_no_slow_machine(tmp_path: Path, rollups: bool) -> None:
    fault = "slow-gpu:rank=3,11,19:factor=1.3:steps=20-"  # the same micro-batches, on three machines
    with faulty_job(tmp_path / "s", fault, rollups=rollups, layout=DEEP) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [(one.cause, one.ranks) for one in verdict.culprits] == [(Cause.UNEVEN_INPUT, ())]
        found = verdict.culprits[0]
        assert found.ratio == pytest.approx(1.3, abs=0.02)
        assert found.steps == (20, 59)
        check_evidence(store, found.evidence)


@pytest.mark.parametrize("ranks", ["3,11", "3,11,20", "3"])
def test_slow_ranks_that_are_no_whole_replica_stay_accused(tmp_path: Path, ranks: str) -> None:
    with faulty_job(tmp_path / "s", f"slow-gpu:rank={ranks}:factor=1.3", layout=DEEP) as store:
        culprits = find_stragglers(store, store.attempt()).culprits
        assert {one.cause for one in culprits} == {Cause.SLOW_COMPUTE}
        assert {rank for one in culprits for rank in one.ranks} == {int(rank) for rank in ranks.split(",")}


def test_a_machine_that_holds_a_whole_replica_is_not_cleared(tmp_path: Path) -> None:
    layout = {"pp": 4, "dp": 4}
    with faulty_job(tmp_path / "s", "slow-gpu:rank=1,5,9,13:factor=1.3", layout=layout, gpus_per_host=16) as store:
        attempt = store.attempt()
        assert find_uneven_input(store, attempt, observe(store, attempt)).culprits == ()


@pytest.mark.parametrize("fault", [(), ("slow-host:host=2:factor=1.3:steps=20-",), ("gc-drift:growth_ms=200:every=4",)])
def test_other_jobs_have_none_and_stay_as_they_are(tmp_path: Path, fault: tuple[str, ...]) -> None:
    with faulty_job(tmp_path / "s", *fault) as store:
        attempt = store.attempt()
        seen = observe(store, attempt)
        assert find_uneven_input(store, attempt, seen) == Findings()
        assert even_out(store, attempt, seen) is seen


def test_micro_batches_are_compared_where_there_are_few_replicas(tmp_path: Path) -> None:
    layout = {"pp": 2, "dp": 2, "tp": 2}
    with faulty_job(tmp_path / "s", "uneven-sequences:spread=0.2:steps=15-", layout=layout, steps=40) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [(one.cause, one.ranks) for one in verdict.culprits] == [(Cause.UNEVEN_INPUT, ())]
        found = verdict.culprits[0]
        assert found.steps == (15, 39)
        spread = float(found.evidence[0].statement.split("differ by ")[1].split("%")[0])
        assert spread == pytest.approx(20, abs=3)
        check_evidence(store, found.evidence)


def test_a_healthy_job_of_few_replicas_has_none(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", layout={"pp": 2, "dp": 2}, steps=40) as store:
        attempt = store.attempt()
        assert find_uneven_input(store, attempt, observe(store, attempt)) == Findings()


def test_few_replicas_on_rollups_are_not_judged_and_it_is_said(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", layout={"pp": 2, "dp": 2}, steps=40, rollups=True) as store:
        attempt = store.attempt()
        found = find_uneven_input(store, attempt, observe(store, attempt))
        assert [note.signal for note in found.abstained] == ["uneven-input"]
        assert found.culprits == ()
        assert found.blocking == ()


def _work(common: FloatArray, noise: FloatArray) -> ReplicaWork:
    """Work of stages [P, G, C] made of what is common to a replica's stages [G, C] and of noise [P, G, C]."""
    logs = common[None] + noise
    return ReplicaWork(logs, 8.0, 1, np.zeros(0, np.int64), np.zeros(0, np.int64))


@cache
def _seen() -> Observations:
    return observations(Job(mesh=MESH, steps=90), 7)


def test_replicas_that_stay_slow_are_machines_and_no_sequences() -> None:
    random = np.random.default_rng(1)
    common = np.where(np.arange(16)[:, None] < 6, 0.2, 0.0) * (np.arange(60) >= 25)
    assert uneven_input(_work(common, random.normal(0, 0.01, (4, 16, 60))), _seen()) is None


def test_a_single_replica_that_varies_is_no_sequences() -> None:
    random = np.random.default_rng(2)
    common = np.zeros((16, 60))
    common[3] = random.normal(0, 0.3, 60)
    assert uneven_input(_work(common, random.normal(0, 0.01, (4, 16, 60))), _seen()) is None


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    stages=st.integers(2, 8),
    replicas=st.integers(4, 24),
    columns=st.integers(8, 90),
    sigma=st.floats(0.001, 0.5),
)
def test_noise_alone_is_never_taken_for_sequences(
    seed: int, stages: int, replicas: int, columns: int, sigma: float
) -> None:
    noise = np.random.default_rng(seed).normal(0, sigma, (stages, replicas, columns))
    assert uneven_input(_work(np.zeros((replicas, columns)), noise), _seen()) is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), first=st.integers(0, 20), length=st.integers(20, 40))
def test_the_stretch_and_the_spread_are_those_that_were_drawn(seed: int, first: int, length: int) -> None:
    random = np.random.default_rng(seed)
    common = np.zeros((16, 60))
    common[:, first : first + length] = random.normal(0, 0.1, (16, length))
    found = uneven_input(_work(common, random.normal(0, 0.01, (4, 16, 60))), _seen())
    assert found is not None
    assert (found.first, found.last) == (first, first + length - 1)
    assert found.spread == pytest.approx(0.1 * 8**0.5, rel=0.25)


def test_the_order_of_ranks_does_not_matter() -> None:
    seen = observations(Job(mesh=MESH, steps=30), 3)
    work = replica_work(seen)
    assert work is not None
    assert work.logs.shape == (4, 16, 30)
    assert np.nanmax(np.abs(np.nanmedian(work.logs, axis=1))) < 0.05


ALONE = {"dp": 8}
"""No pipeline: nobody else works on a rank's micro-batches."""


@pytest.mark.parametrize("layout", [ALONE, {"dp": 4, "tp": 2}], ids=["dp8", "dp4 tp2"])
def test_without_stages_forward_and_backward_of_a_micro_batch_agree(tmp_path: Path, layout: dict[str, int]) -> None:
    with faulty_job(tmp_path / "s", "uneven-sequences:spread=0.3:steps=15-", layout=layout, steps=45) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [(one.cause, one.kind, one.ranks) for one in verdict.culprits] == [
            (Cause.UNEVEN_INPUT, CulpritKind.JOB, ())
        ]
        found = verdict.culprits[0]
        assert found.steps == (15, 44)
        assert 0.02 < found.lost_share < 0.5
        spread = float(found.evidence[0].statement.split("differ by ")[1].split("%")[0])
        assert spread == pytest.approx(30, abs=5)
        check_evidence(store, found.evidence)
        assert len(found.evidence) == 2


def test_a_slow_rank_without_stages_is_named_and_its_micro_batches_are_even(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", "slow-gpu:rank=5:factor=1.3:steps=15-", layout=ALONE, steps=45) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [(one.cause, one.ranks) for one in verdict.culprits] == [(Cause.SLOW_COMPUTE, (5,))]


def test_rollups_without_stages_cannot_tell_sequences_from_busy_machines_and_are_not_healthy(tmp_path: Path) -> None:
    fault = "uneven-sequences:spread=0.6"
    with faulty_job(tmp_path / "s", fault, layout=ALONE, steps=120, rollups=True) as store:
        verdict = find_stragglers(store, store.attempt())
        assert verdict.verdict != Outcome.HEALTHY
        assert not [one for one in verdict.culprits if one.ranks]
        assert any(one.signal == "uneven-input" and "take turns" in one.reason for one in verdict.abstained)


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
def test_an_even_job_without_stages_has_none(tmp_path: Path, rollups: bool) -> None:
    with faulty_job(tmp_path / "s", layout=ALONE, steps=120 if rollups else 45, rollups=rollups) as store:
        attempt = store.attempt()
        found = find_uneven_input(store, attempt, observe(store, attempt))
        assert (found.culprits, found.blocking) == ((), ())


@pytest.mark.parametrize(("own", "outcome"), [(0.02, "named"), (0.2, "not told"), (2.0, "even")])
def test_load_that_hits_a_forward_and_its_backward_is_not_called_sequences(
    tmp_path: Path, own: float, outcome: str
) -> None:
    """Half of the variance in common is less than sequences have, and more than machines that do nothing else."""
    random, spans = np.random.default_rng(5), []
    for step, rank, batch in np.ndindex(40, 4, 6):
        common = random.normal(0, 0.2)
        for number, segment in enumerate(("forward", "backward")):
            took = 10 * (number + 1) * float(np.exp(common + random.normal(0, own)))
            at = 1000.0 * step + 100 * batch + 40 * number
            spans.append(Span(int(rank), int(step), segment, at, took, microbatch=int(batch)))
        if batch == 5:
            spans.append(
                Span(int(rank), int(step), "reduce", 1000.0 * step + 900, 2.0, exposed_ms=2.0, kind="collective")
            )
    with write_spans(tmp_path / "s", spans, layout={"dp": 4}) as store:
        attempt = store.attempt()
        found = find_uneven_input(store, attempt, observe(store, attempt))
        assert [one.cause for one in found.culprits] == ([Cause.UNEVEN_INPUT] if outcome == "named" else [])
        assert ["take turns" in one.reason for one in found.blocking] == ([True] if outcome == "not told" else [])
