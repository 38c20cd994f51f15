"""A host whose storage stalls is accused; pauses that all hosts have alike are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.jobwide.checkpoints import find_checkpoints
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Findings, Outcome, Pattern, describe
from support.faulty_job import check_evidence, faulty_job, with_checkpoints
from support.span_store import Span, write_spans


def _findings(store: Store) -> Findings:
    attempt = store.attempt()
    return find_checkpoints(store, attempt, observe(store, attempt))


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
def test_a_stalled_host_is_named_once(tmp_path: Path, rollups: bool) -> None:
    fault = "storage-stall:host=3:delay_ms=300:every=4:steps=21-"
    with faulty_job(tmp_path / "s", fault, rollups=rollups) as store:
        culprits = find_stragglers(store, store.attempt()).culprits
        assert [(one.kind, one.cause, one.hosts) for one in culprits] == [
            (CulpritKind.HOST, Cause.CHECKPOINT, ("node0003",))
        ]
        one = culprits[0]
        assert one.ranks == (12, 13, 14, 15)
        assert one.pattern == Pattern.INTERMITTENT
        assert one.steps == ((20, 59) if rollups else (21, 57))
        assert one.ratio > 3
        check_evidence(store, one.evidence)


def test_one_long_checkpoint_of_a_host_is_a_one_off(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", "storage-stall:host=1:delay_ms=900:every=50:steps=30-40") as store:
        found = _findings(store).culprits
        assert [(one.hosts, one.pattern, one.steps) for one in found] == [(("node0001",), Pattern.ONE_OFF, (30, 30))]


def test_a_single_rank_is_no_host(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", "storage-stall:rank=12:delay_ms=300:every=4") as store:
        assert [one.kind for one in _findings(store).culprits] == []


def test_pauses_of_all_hosts_are_told_and_accuse_nobody(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", steps=40) as store:
        found = _findings(store)
        assert found.culprits == ()
        assert found.blocking == ()
        assert "% of the job's time on all hosts alike" in found.abstained[0].reason


def test_costly_pauses_are_a_finding_of_the_job(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "s", costs=with_checkpoints(200, 3), steps=40) as store:
        (one,) = _findings(store).culprits
        assert (one.kind, one.cause, one.ranks, one.hosts) == (CulpritKind.JOB, Cause.CHECKPOINT, (), ())
        assert 0.12 < one.lost_share < 0.25
        check_evidence(store, one.evidence)
        assert describe(one).startswith("Checkpoints hold up all hosts alike")


def test_storage_that_becomes_slow_for_all_is_the_jobs(tmp_path: Path) -> None:
    faults = [f"storage-stall:host={host}:delay_ms=100:every=3:steps=32-" for host in range(4)]
    with faulty_job(tmp_path / "s", *faults, costs=with_checkpoints(50, 3)) as store:
        (one,) = _findings(store).culprits
        assert (one.kind, one.pattern, one.hosts) == (CulpritKind.JOB, Pattern.DRIFTING, ())
        assert one.ratio == pytest.approx(3, abs=0.1)


def test_ranks_that_save_for_all_have_their_place_in_the_mesh(tmp_path: Path) -> None:
    layout = {"pp": 2, "dp": 4, "tp": 4}
    places = [f"storage-stall:host={host}:delay_ms=200:every=3:steps=2-" for host in (0, 4)]
    with faulty_job(tmp_path / "s", *places, layout=layout, steps=40) as store:
        found = _findings(store)
        assert found.culprits == ()
        assert ["its place in the mesh" in note.reason for note in found.abstained] == [True, True]


def saving(root: Path, saves_ms: Callable[[int], float | None], *, longer_ms: float = 0.0) -> Store:
    """Two replicas of a stage a host, 4 hosts of 4; every fifth step ends with the checkpoints of those who save."""
    spans = []
    at = 0.0
    for step in range(60):
        for rank in range(16):
            spans.append(Span(rank, step, "forward", at, 100.0))
            took = saves_ms(rank)
            if step % 5 == 0 and took is not None:
                spans.append(Span(rank, step, "checkpoint_save", at + 100, took, kind="checkpoint"))
        at += 110.0 + (longer_ms if step % 5 == 0 else 0.0)
    hosts = {rank: f"node{rank // 4}" for rank in range(16)}
    return write_spans(root, spans, layout={"dp": 4, "tp": 4}, hosts=hosts)


def test_the_checkpoints_of_one_rank_are_not_those_of_the_job(tmp_path: Path) -> None:
    """The others go on meanwhile: steps with a checkpoint are no longer."""
    with saving(tmp_path, lambda rank: 200.0 if rank == 0 else None) as store:
        found = _findings(store)
        assert found.culprits == ()
        assert found.blocking == ()


def test_where_another_host_alone_saves_nobody_is_called_healthy(tmp_path: Path) -> None:
    with saving(tmp_path, lambda rank: 400.0 if rank // 4 == 3 else None, longer_ms=400.0) as store:
        found = _findings(store)
        assert found.culprits == ()
        assert ["node3" in one.reason for one in found.blocking] == [True]
        assert find_stragglers(store, store.attempt()).verdict == Outcome.INSUFFICIENT


@pytest.mark.parametrize("saves", [lambda rank: rank == 0, lambda rank: rank < 4], ids=["rank", "host"])
def test_who_saves_for_the_others_by_its_place_is_not_accused(tmp_path: Path, saves: Callable[[int], bool]) -> None:
    with saving(tmp_path, lambda rank: 200.0 if saves(rank) else 20.0, longer_ms=200.0) as store:
        verdict = find_stragglers(store, store.attempt())
        assert [one for one in verdict.culprits if one.ranks] == []
        assert [one for one in verdict.abstained if one.signal == "checkpoint"]


@pytest.mark.parametrize("rollups", [False, True], ids=["spans", "rollups"])
def test_a_host_of_a_single_rank_can_stall_too(tmp_path: Path, rollups: bool) -> None:
    fault, costs = "storage-stall:host=3:delay_ms=400:every=5", with_checkpoints(50.0, 10)
    with faulty_job(tmp_path / "s", fault, rollups=rollups, gpus_per_host=1, costs=costs) as store:
        assert [one.hosts for one in find_stragglers(store, store.attempt()).culprits] == [("node0003",)]
