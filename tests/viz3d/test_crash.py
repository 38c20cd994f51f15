"""Jobs in which ranks died: with what agents noted, and without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Store
from megascope.profiler.topology import Topology
from megascope.viz3d.hang import diagnose
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State
from support.hang_scenes import MOMENT_NS, SECOND, Scene, cascade
from support.hang_store import write_scene

MESH = Topology.of(dp=2, tp=2)
TWO_HOSTS = Topology.of(dp=16)


def verdict_of(store: Store) -> HangVerdict:
    return diagnose(store, store.attempt())


def noted(host: str, number: int, opened_ns: int, *deaths: tuple[int, int]) -> dict[str, object]:
    """An incident of one host's agent: (rank, moment) of the deaths that it noticed."""
    actions = [{"action": "noticed-death", "rank": r, "state": "gone", "moment_ns": at} for r, at in deaths]
    return {
        "incident": f"job/0/{host}/rank-died/{number}",
        "kind": "rank-died",
        "opened_ns": opened_ns,
        "closed_ns": None,
        "actions": json.dumps(actions),
    }


def test_a_crash_that_nobody_noted_is_no_clean_end(tmp_path: Path) -> None:
    """The last heartbeats have one process gone before the others: it is named, with little confidence."""
    scene = cascade(MESH, 1)
    scene.work(1, "backward")
    first, second = scene.snapshot(10), scene.snapshot()
    gone = {rank: replace(state, process_state="gone") for rank, state in second.states.items()}
    early = replace(first, states={**first.states, 1: replace(first.states[1], process_state="gone")})
    store = write_scene(
        tmp_path / "store", [scene.snapshot(20), early, replace(second, states=gone)], exit_reason="crashed"
    )
    verdict = verdict_of(store)
    assert verdict.verdict == State.CRASHED
    [culprit] = verdict.culprits
    assert (culprit.ranks, culprit.kind, culprit.segment) == ((1,), CulpritKind.DEAD, "backward")
    assert culprit.confidence < 0.5
    assert "no agent noted who died" in verdict.abstained[0].reason
    [evidence] = culprit.evidence
    assert evidence.value == run_sql(store, evidence.sql).table.column(0)[0].as_py() == 2


def test_a_crash_in_which_all_are_gone_at_once_accuses_nobody(tmp_path: Path) -> None:
    scene = Scene(MESH)
    for rank in range(4):
        scene.process(rank, "gone")
    verdict = verdict_of(write_scene(tmp_path / "store", scene.looks(), exit_reason="crashed"))
    assert (verdict.verdict, verdict.culprits) == (State.CRASHED, ())
    assert [one.signal for one in verdict.abstained] == ["incidents", "deaths"]


def test_a_crash_of_which_nothing_is_known(tmp_path: Path) -> None:
    verdict = verdict_of(write_scene(tmp_path / "store", Scene(MESH).looks(), exit_reason="crashed"))
    assert (verdict.verdict, verdict.culprits) == (State.CRASHED, ())
    assert "neither an incident nor a heartbeat" in verdict.sentence()


def died_in_backward() -> Scene:
    """Rank 3 was at work; all others waited for it."""
    scene = Scene(TWO_HOSTS)
    for rank in range(16):
        if rank != 3:
            scene.collective(rank, "dp", 5, since_s=9)
    scene.work(3, "backward")
    return scene


@pytest.mark.parametrize("later_s", [5, -6])
def test_a_death_on_another_host_with_another_clock_is_the_consequence(tmp_path: Path, later_s: int) -> None:
    """Whatever node1's clock says: rank 12 was waiting. The evidence is the accused rank's own incident."""
    scene = died_in_backward()
    other = MOMENT_NS + later_s * SECOND
    incidents = [noted("node0", 0, MOMENT_NS, (3, MOMENT_NS)), noted("node1", 0, other, (12, other))]
    store = write_scene(
        tmp_path / "store", scene.looks(), exit_reason="crashed", incidents=incidents, frozen=scene.snapshot()
    )
    verdict = verdict_of(store)
    [culprit] = verdict.culprits
    assert (culprit.ranks, culprit.kind) == ((3,), CulpritKind.DEAD)
    assert {one.signal for one in verdict.abstained} == {"clocks", "later deaths"}
    [evidence] = culprit.evidence
    [row] = run_sql(store, evidence.sql).table.to_pylist()
    assert json.loads(row["action"])["rank"] == 3


def test_who_waited_in_an_operation_of_which_the_record_is_lost_is_a_victim_too(tmp_path: Path) -> None:
    """Ranks 3 and 12 went without a word, on hosts whose clocks are not known. Rank 12's number says that it waited."""
    scene = died_in_backward()
    scene.states[12] = replace(scene.states[12], flights=())
    scene.work(12, "forward", since_s=10)
    incidents = [noted("node0", 0, MOMENT_NS, (3, MOMENT_NS)), noted("node1", 0, MOMENT_NS, (12, MOMENT_NS))]
    store = write_scene(
        tmp_path / "store", scene.looks(), exit_reason="crashed", incidents=incidents, frozen=scene.snapshot()
    )
    verdict = verdict_of(store)
    assert [(culprit.ranks, culprit.kind) for culprit in verdict.culprits] == [((3,), CulpritKind.DEAD)]
    assert verdict.victims == verdict.explained == 15


def test_an_exception_is_the_cause_whatever_record_is_lost_beside_it(tmp_path: Path) -> None:
    """A loss that is not finite, on rank 3. What it and rank 4 called last in their group is not known: that is no sign
    of a call that was left out, and not of one in which rank 3 raised."""
    scene = Scene(Topology.of(dp=2, tp=3))
    for rank in (0, 1, 2, 4):
        scene.collective(rank, "dp", 5, since_s=9)
        scene.progress(rank, scene.of("tp", rank), 8, 8)
    scene.work(3, "backward", since_s=9)
    for rank, issued in ((3, 7), (4, 7), (5, 6)):
        scene.progress(rank, scene.of("tp", rank), issued, 6)
    moment = {"moment_ns": MOMENT_NS}
    died = {"action": "noticed-death", "rank": 3, "state": "exception", "type": "NotFiniteError", **moment}
    incident = {**noted("node0", 0, MOMENT_NS), "actions": json.dumps([died])}
    store = write_scene(
        tmp_path / "store", scene.looks(), exit_reason="crashed", incidents=[incident], frozen=scene.snapshot()
    )
    verdict = verdict_of(store)
    assert [(culprit.ranks, culprit.kind) for culprit in verdict.culprits] == [((3,), CulpritKind.EXCEPTION)]


def test_who_waited_at_the_moment_of_death_and_not_for_the_dead_is_unexplained(tmp_path: Path) -> None:
    mesh = Topology.of(dp=3, tp=2)
    scene = Scene(mesh)
    scene.work(0, "backward")
    scene.collective(1, "tp", 5)
    scene.collective(3, "tp", 5)
    scene.work(2, "forward")
    incident = noted("node0", 0, MOMENT_NS, (0, MOMENT_NS))
    store = write_scene(
        tmp_path / "store", scene.looks(), exit_reason="crashed", incidents=[incident], frozen=scene.snapshot()
    )
    verdict = verdict_of(store)
    assert (verdict.victims, verdict.explained, verdict.unexplained) == (2, 1, (3,))


def test_two_incidents_of_a_host_do_not_double_what_was_in_flight(tmp_path: Path) -> None:
    scene = died_in_backward()
    incidents = [noted("node0", 0, MOMENT_NS, (3, MOMENT_NS)), noted("node0", 1, MOMENT_NS + SECOND, (4, MOMENT_NS))]
    store = write_scene(
        tmp_path / "store", scene.looks(), exit_reason="crashed", incidents=incidents, frozen=scene.snapshot()
    )
    verdict = verdict_of(store)
    assert [culprit.ranks for culprit in verdict.culprits] == [(3,)]
    assert verdict.victims == verdict.explained == 15
