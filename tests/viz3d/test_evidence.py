"""Evidence of every kind of hang: its number is the one its SQL gives, also over a store with several attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Store
from megascope.profiler.topology import Topology
from megascope.viz3d.figure import build_scene
from megascope.viz3d.hang import diagnose, diagnose_with_graph
from megascope.viz3d.verdict import State
from support.hang_scenes import MOMENT_NS, SECOND, Scene, cascade
from support.hang_store import steps_done, write_scene

LINE = Topology.of(dp=4)


def host_stuck() -> Scene:
    scene = cascade(Topology.of(dp=2, tp=2), 1)
    scene.work(1, "data", kind="data")
    return scene


def between_segments() -> Scene:
    return cascade(Topology.of(dp=2, tp=2), 1)


def uncounted() -> Scene:
    """Heartbeats without the number of completed spans."""
    scene = between_segments()
    for rank, state in scene.states.items():
        scene.states[rank] = replace(state, spans=None)
    return scene


def device_stuck() -> Scene:
    scene = Scene(LINE)
    for rank in range(4):
        scene.progress(rank, scene.of("dp", rank), 5, 4)
        if rank != 1:
            scene.collective(rank, "dp", 6)
            scene.progress(rank, scene.of("dp", rank), 6, 5)
    scene.collective(1, "dp", 5)
    return scene


def missing_call() -> Scene:
    scene = cascade(Topology.of(dp=2, tp=2), 1)
    scene.process(1, "exited")
    return scene


def mismatch() -> Scene:
    scene = Scene(LINE)
    for rank in range(4):
        scene.collective(rank, "dp", 5, "broadcast" if rank == 2 else "dp_all_reduce")
    return scene


def two_orders() -> Scene:
    scene = Scene(Topology.of(dp=2, tp=2))
    for rank in range(4):
        scene.collective(rank, "tp" if rank in (0, 3) else "dp", 5)
    return scene


def dead() -> Scene:
    scene = host_stuck()
    scene.process(1, "gone")
    return scene


KINDS: list[tuple[Callable[[], Scene], str, float | None, float | None]] = [
    (host_stuck, "rank 1 has been in data for 60.0 s", 60.0, None),
    (between_segments, "rank 1 has completed nothing for 40.0 s", 40.0, None),
    (uncounted, "rank 1 has had nothing in flight for 40.0 s", 40.0, None),
    (device_stuck, "rank 1 has completed 4 operations of group dp [0, 1, 2, 3], others are at 5", 4.0, 5.0),
    (missing_call, "rank 1 has issued 6 operations of group tp [0, 1], others are at 7", 6.0, 7.0),
    (mismatch, "rank 2 in broadcast, rank 0, 1, 3 in dp_all_reduce", None, None),
    (two_orders, "rank 0 waits in tp_all_reduce #5 for rank 1", None, None),
    (dead, "the process of rank 1 is gone", 2.0, None),
]


@pytest.mark.parametrize(("scene_of", "told", "value", "peers"), KINDS, ids=[kind[0].__name__ for kind in KINDS])
def test_the_number_is_what_the_sql_gives(
    tmp_path: Path, scene_of: Callable[[], Scene], told: str, value: float | None, peers: float | None
) -> None:
    """The hang is in an older attempt; a newer one is in the store, and the SQL is asked without choosing either."""
    scene = scene_of()
    write_scene(tmp_path / "store", scene.looks())
    write_scene(tmp_path / "store", [Scene(scene.mesh).snapshot()], attempt=1)
    store = Store(tmp_path / "store")
    verdict = diagnose(store, store.attempt("job", 0))
    assert verdict.verdict == State.HANG
    [evidence] = verdict.culprits[0].evidence
    assert told in evidence.statement
    assert (evidence.value, evidence.peers) == (value, peers)
    rows = run_sql(store, evidence.sql).table
    assert rows.num_rows >= 1
    if value is not None:
        assert rows.column(0)[0].as_py() == pytest.approx(value)


def test_what_ranks_had_open_is_listed_for_a_mismatch(tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", mismatch().looks())
    [evidence] = diagnose(store, store.attempt()).culprits[0].evidence
    rows = run_sql(store, evidence.sql).table.to_pylist()
    assert {row["rank"]: row["segment"] for row in rows} == {
        0: "dp_all_reduce", 1: "dp_all_reduce", 2: "broadcast", 3: "dp_all_reduce",
    }  # fmt: skip


def test_those_who_wait_for_a_device_are_explained(tmp_path: Path) -> None:
    store = write_scene(tmp_path / "store", device_stuck().looks())
    verdict = diagnose(store, store.attempt())
    assert [(one.ranks, str(one.kind), one.waiters) for one in verdict.culprits] == [((1,), "device-stuck", 3)]
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_the_picture_shows_the_waits_that_the_verdict_was_read_from(tmp_path: Path) -> None:
    """By names alone all members of the collective have joined it; the verdict knows better, and so does its graph."""
    store = write_scene(tmp_path / "store", mismatch().looks())
    judged = diagnose_with_graph(store, store.attempt())
    assert judged.verdict.culprits[0].ranks == (2,)
    assert judged.snapshot is not None
    assert build_scene(judged.snapshot, judged.verdict).waits == ()
    scene = build_scene(judged.snapshot, judged.verdict, graph=judged.graph)
    assert sorted(scene.waits) == [(0, 2), (1, 2), (3, 2)]
    ended = write_scene(tmp_path / "ended", mismatch().looks(), exit_reason="finished")
    assert diagnose_with_graph(ended, ended.attempt()).snapshot is None


def test_more_roots_than_are_listed_are_told(tmp_path: Path) -> None:
    mesh = Topology.of(dp=24, tp=2)
    scene = Scene(mesh)
    for rank in range(0, 48, 2):
        scene.work(rank, "data", kind="data")
        scene.collective(rank + 1, "tp", 5)
    store = write_scene(tmp_path / "store", scene.looks(), more=steps_done(range(48), [1.0] * 6))
    verdict = diagnose(store, store.attempt())
    assert len(verdict.culprits) == 20
    assert verdict.victims == verdict.explained == 24
    assert any(one.reason == "4 more roots were found and are not listed" for one in verdict.abstained)


def test_a_silent_rank_is_as_old_as_its_last_heartbeat(tmp_path: Path) -> None:
    late = host_stuck()
    late.lose(1)
    early = host_stuck().snapshot(70)
    store = write_scene(tmp_path / "store", [early, late.snapshot(40), late.snapshot()])
    [evidence] = diagnose(store, store.attempt(), now_ns=MOMENT_NS + SECOND).culprits[0].evidence
    assert evidence.statement.startswith("rank 1 has had no fresh heartbeat for 70 s")
    assert run_sql(store, evidence.sql).table.column(0)[0].as_py() == evidence.value == 70.0
