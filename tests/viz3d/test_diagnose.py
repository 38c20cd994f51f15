"""From a store to the hang verdict: its JSON, its evidence, and each way in which a job may have ended."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import Topology
from megascope.viz3d.hang import diagnose, to_json
from megascope.viz3d.report import render
from megascope.viz3d.snapshot import take_snapshot
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State, plain_age
from support.hang_scenes import MOMENT_NS, SECOND, Scene, cascade
from support.hang_store import write_scene

MESH = Topology.of(pp=2, dp=2, tp=2)


def verdict_of(store: Store) -> HangVerdict:
    return diagnose(store, store.attempt())


def stuck() -> Scene:
    scene = cascade(MESH, 5)
    scene.work(5, "data", kind="data")
    return scene


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    scene = stuck()
    scene.lose(2)
    looks = scene.looks()
    store = write_scene(tmp_path / "store", looks)
    found = take_snapshot(store, store.attempt())
    assert dict(found.states) == dict(looks[1].states)
    assert found.missing == (2,)
    assert dict(found.groups) == dict(looks[1].groups)
    assert found.axes == MESH.names
    assert take_snapshot(store, store.attempt(), MOMENT_NS - 1).states[0].moment_ns == MOMENT_NS - 40 * SECOND


def test_a_hang_and_its_json(tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", stuck().looks())
    verdict = verdict_of(store)
    assert verdict.verdict == State.HANG
    value = json.loads(json.dumps(to_json(verdict), allow_nan=False))
    assert set(value) == {
        "schema", "run", "attempt", "data_age_s", "verdict", "culprits", "abstained", "victims", "explained",
        "unexplained", "missing", "sentence", "used",
    }  # fmt: skip
    [culprit] = value["culprits"]
    assert set(culprit) == {
        "ranks", "hosts", "confidence", "severity", "evidence", "kind", "segment", "group", "waiters",
        "exit_code", "next",
    }  # fmt: skip
    assert (culprit["ranks"], culprit["kind"], culprit["segment"], culprit["waiters"]) == ([5], "host-stuck", "data", 7)
    assert (value["victims"], value["explained"], value["unexplained"], value["missing"]) == (7, 7, [], [])
    assert "newest data is" in value["abstained"][0]["reason"]


def test_evidence_can_be_asked_again(tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", stuck().looks())
    [evidence] = verdict_of(store).culprits[0].evidence
    assert evidence.value == pytest.approx(60.0)
    assert "60.0 s" in evidence.statement
    assert store.query(evidence.sql).column(0)[0].as_py() == pytest.approx(60.0)


def test_the_report_names_root_and_coverage(tmp_path: Path) -> None:
    scene = stuck()
    scene.lose(2)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(verdict_of(write_scene(tmp_path / "store", scene.looks()))))
    text = console.export_text()
    assert "HANG: Rank 5 on node0 is stuck in data" in text
    assert "This explains 6 of 6 waiting ranks." in text
    assert "Without data: 2" in text


def test_a_moving_job_is_running_while_its_data_is_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_scene(tmp_path / "store", stuck().looks(moved=range(8)))
    old = verdict_of(store)
    assert (old.verdict, old.culprits) == (State.INCONCLUSIVE, ())
    assert "was running then" in old.sentence()
    monkeypatch.setattr(Store, "data_age_s", lambda *_: 2.0)
    fresh = verdict_of(store)
    assert (fresh.verdict, fresh.culprits, fresh.victims, fresh.abstained) == (State.RUNNING, (), 0, ())
    assert diagnose(store, store.attempt(), now_ns=MOMENT_NS).verdict == State.RUNNING


def test_ages_are_told_in_units_that_read_well() -> None:
    ages = {59.0: "59 s", 119.0: "119 s", 600.0: "10 minutes", 3 * 3600.0: "3 hours", 5_984_052.0: "69 days"}
    assert {seconds: plain_age(seconds) for seconds in ages} == ages


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("finished", "The job has ended."),
        ("interrupted", "it was interrupted before it said that it was done"),
        ("exited", "without saying whether the job was done"),
    ],
)
def test_an_ended_job_has_ended_and_says_how(tmp_path: Path, reason: str, told: str) -> None:
    scene = stuck()
    for rank in range(8):
        scene.process(rank, "exited")
    verdict = verdict_of(write_scene(tmp_path / "store", scene.looks(), exit_reason=reason))
    assert (verdict.verdict, verdict.culprits) == (State.FINISHED, ())
    assert told in verdict.sentence()


def stalled(closed_ns: int, look_ns: int) -> dict[str, object]:
    return {
        "incident": "job/0/h/stalled/0",
        "kind": "stalled",
        "opened_ns": look_ns - SECOND,
        "closed_ns": closed_ns,
        "actions": json.dumps([{"action": "snapshot", "moment_ns": look_ns, "snapshot": 2}]),
    }


def test_a_last_checkpoint_does_not_make_a_finished_job_hang(tmp_path: Path) -> None:
    incident = stalled(MOMENT_NS, MOMENT_NS - 5 * SECOND)
    store = write_scene(tmp_path / "store", stuck().looks(), exit_reason="finished", incidents=[incident])
    assert verdict_of(store).verdict == State.FINISHED


def test_a_stalled_job_that_someone_ended_is_judged_as_it_stood(tmp_path: Path) -> None:
    scene = stuck()
    ended = stuck()
    for rank in range(8):
        ended.process(rank, "exited")
    incident = stalled(MOMENT_NS, MOMENT_NS - 45 * SECOND)
    looks = [scene.snapshot(46), scene.snapshot(6), ended.snapshot()]
    store = write_scene(tmp_path / "store", looks, exit_reason="interrupted", incidents=[incident])
    verdict = verdict_of(store)
    assert verdict.verdict == State.HANG
    assert [culprit.ranks for culprit in verdict.culprits] == [(5,)]


def death(rank: int, **more: object) -> dict[str, object]:
    return {"action": "noticed-death", "rank": rank, "state": "gone", "moment_ns": MOMENT_NS, **more}


def died(*actions: dict[str, object]) -> dict[str, object]:
    return {
        "incident": "job/0/h/rank-died/0",
        "kind": "rank-died",
        "opened_ns": MOMENT_NS,
        "closed_ns": None,
        "actions": json.dumps(actions),
    }


@pytest.mark.parametrize("exit_reason", ["crashed", None])
def test_a_killed_rank_and_those_who_waited_for_it(tmp_path: Path, exit_reason: str | None) -> None:
    scene = cascade(MESH, 5)
    scene.work(5, "backward")
    scene.process(5, "gone")
    peer = death(
        4, state="exception", type="PeerLostError", message="Connection reset by peer", moment_ns=MOMENT_NS - 1
    )
    store = write_scene(
        tmp_path / "store",
        scene.looks(),
        exit_reason=exit_reason,
        incidents=[died(peer, death(5))],
        frozen=scene.snapshot(),
    )
    verdict = verdict_of(store)
    assert verdict.verdict == State.CRASHED
    [culprit] = verdict.culprits
    assert (culprit.ranks, culprit.kind, culprit.segment) == ((5,), CulpritKind.DEAD, "backward")
    assert culprit.waiters == verdict.explained == verdict.victims
    assert verdict.explained >= 1
    assert any("taken for a consequence: 4" in one.reason for one in verdict.abstained)


def test_an_exception_is_quoted(tmp_path: Path) -> None:
    scene = stuck()
    action = death(5, state="exception", type="ValueError", message="loss is nan\nmore")
    store = write_scene(tmp_path / "store", scene.looks(), exit_reason="crashed", incidents=[died(action)])
    [culprit] = verdict_of(store).culprits
    assert culprit.kind == CulpritKind.EXCEPTION
    assert culprit.evidence[0].statement == "rank 5 raised ValueError: loss is nan"
    assert store.query(culprit.evidence[0].sql).num_rows == 1


def test_two_frozen_looks_are_two_looks(tmp_path: Path) -> None:
    """Without any heartbeat the incident's snapshots tell stuck from slow; ranks with nothing in flight are there."""
    scene = stuck()
    opened = died() | {"incident": "job/0/h/stalled/0", "kind": "stalled"}
    store = write_scene(tmp_path / "store", [], incidents=[opened], frozen=scene.snapshot())
    assert verdict_of(store).verdict == State.INCONCLUSIVE
    rows = store.query("SELECT * EXCLUDE (run, attempt) REPLACE (2 AS snapshot) FROM in_flight")
    with TableWriter(tmp_path / "store", "second") as writer:
        writer.write("in_flight", "job", 0, rows.to_pydict())
        writer.commit()
    store.refresh()
    verdict = verdict_of(store)
    assert verdict.verdict == State.HANG
    [culprit] = verdict.culprits
    assert (culprit.ranks, culprit.kind, culprit.segment, verdict.missing) == ((5,), "host-stuck", "data", ())
    assert run_sql(store, culprit.evidence[0].sql).table.num_rows == 2


def test_without_heartbeats_what_the_incident_froze_is_read(tmp_path: Path) -> None:
    scene = stuck()
    store = write_scene(tmp_path / "store", [], incidents=[died()], frozen=scene.snapshot())
    found = take_snapshot(store, store.attempt())
    assert {rank: state.flights for rank, state in found.states.items()} == {
        rank: state.flights for rank, state in scene.snapshot().states.items()
    }


def test_a_rank_whose_heartbeats_ceased_is_missing(tmp_path: Path) -> None:
    scene = stuck()
    early = scene.snapshot(100)
    late = stuck()
    late.lose(5)
    store = write_scene(tmp_path / "store", [early, late.snapshot(40), late.snapshot()])
    verdict = verdict_of(store)
    assert verdict.missing == (5,)
    assert [(culprit.ranks, culprit.kind) for culprit in verdict.culprits] == [((5,), CulpritKind.DEAD)]
    [evidence] = verdict.culprits[0].evidence
    assert "has had no fresh heartbeat for 100 s" in evidence.statement
    assert evidence.value == run_sql(store, evidence.sql).table.column(0)[0].as_py() == 100.0
