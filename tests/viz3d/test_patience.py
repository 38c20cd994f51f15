"""How long a rank must stand still before it is called stuck: neither first times nor slow work make a false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.profiler.topology import Topology
from megascope.viz3d.hang import diagnose
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.pace import KnownPace, StorePace, Work
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State
from support.hang_scenes import MOMENT_NS, SECOND, Scene, cascade
from support.hang_store import steps_done, write_scene

MESH = Topology.of(dp=2, tp=2)
RUNS = KnownPace(step=0.2, segments={"forward": 0.05, "data": 0.01, "checkpoint_write": 2.0})
"""A job that has run: quick steps, and a checkpoint now and then."""


def held_up(segment: str | None, kind: str = "compute", *, since_s: float, process: str = "sleeping") -> Scene:
    """Rank 1 has stood still for so long, and all others wait for it since."""
    scene = Scene(MESH)
    for rank in (0, 2, 3):
        scene.collective(rank, "world", 2, since_s=since_s)
    if segment is not None:
        scene.work(1, segment, since_s, kind)
    scene.process(1, process)
    return scene


def judged(scene: Scene, pace: KnownPace, apart_s: float = 5.0) -> Diagnosis:
    return compare_looks(*scene.looks(apart_s=apart_s), None, pace)


@pytest.mark.parametrize(
    ("segment", "kind", "pace", "since_s", "state"),
    [
        ("forward", "compute", RUNS, 6, State.RUNNING),
        ("forward", "compute", RUNS, 9, State.HANG),
        ("forward", "compute", KnownPace(step=0.2, segments={"forward": 8.0}), 12, State.SLOW),
        ("never_before", "compute", RUNS, 12, State.SLOW),
        ("never_before", "compute", RUNS, 31, State.HANG),
        ("checkpoint_write", "checkpoint", RUNS, 6, State.RUNNING),
        ("checkpoint_write", "checkpoint", RUNS, 20, State.SLOW),
        ("checkpoint_write", "checkpoint", RUNS, 31, State.HANG),
        ("checkpoint_write", "checkpoint", KnownPace(step=0.2, segments={"checkpoint_write": 50}), 90, State.SLOW),
        ("data", "data", RUNS, 12, State.SLOW),
        ("data", "data", RUNS, 15, State.HANG),
        ("data", "data", KnownPace(step=0.2, segments={"data": 3.0}), 29, State.SLOW),
        ("data", "data", KnownPace(step=0.2), 15, State.SLOW),
        ("data", "data", RUNS, 31, State.HANG),
        ("eval", "eval", KnownPace(step=20.0), 50, State.SLOW),
        ("eval", "eval", KnownPace(step=20.0), 61, State.HANG),
        (None, "", RUNS, 6, State.RUNNING),
        ("compile_model", "compile", KnownPace(), 8, State.INCONCLUSIVE),
        ("compile_model", "compile", KnownPace(), 12, State.SLOW),
        ("init_model", "init", KnownPace(), 31, State.HANG),
    ],
)
def test_first_times_and_slow_work_get_more_time(
    segment: str | None, kind: str, pace: KnownPace, since_s: float, state: State
) -> None:
    found = judged(held_up(segment, kind, since_s=since_s), pace)
    assert found.state == state
    named = [(root.ranks, root.segment) for root in found.roots]
    assert named == ([((1,), segment)] if state in (State.HANG, State.SLOW) else [])
    if state == State.SLOW:
        assert found.roots[0].confidence < 0.5
        assert "is called stuck from" in found.abstained[0].reason
        assert found.waiting == found.explained == {0, 2, 3}
    if state == State.INCONCLUSIVE:
        assert "still starting" in found.abstained[0].reason


PHASES = [("evaluate", "eval"), ("checkpoint_write", "checkpoint"), ("compile_model", "compile")]


@pytest.mark.parametrize(("segment", "kind"), PHASES)
@pytest.mark.parametrize(
    ("inside", "since_s", "named"), [(4, 38, False), (7, 38, False), (3, 38, True), (7, 301, True)]
)
def test_what_half_of_the_ranks_are_in_is_the_program(
    segment: str, kind: str, inside: int, since_s: float, named: bool
) -> None:
    """Some of eight ranks are in a phase, the others have come to a barrier: of few it is their fault, of many not."""
    scene = Scene(Topology.of(dp=8))
    for rank in range(8):
        if rank < inside:
            scene.work(rank, segment, since_s, kind)
        else:
            scene.collective(rank, "dp", 2, since_s=since_s)
    found = judged(scene, RUNS)
    assert found.state == (State.HANG if named else State.SLOW)
    assert {rank for root in found.roots for rank in root.ranks} == (set(range(inside)) if named else set())
    assert named or f"half of the ranks or more are in {segment}" in found.abstained[0].reason


@pytest.mark.parametrize(("inside", "since_s", "named"), [(4, 38, False), (3, 38, True), (7, 301, True)])
@pytest.mark.parametrize("segment", ["forward", "load"])
def test_before_the_first_step_all_that_half_of_the_ranks_do_is_the_program(
    segment: str, inside: int, since_s: float, named: bool
) -> None:
    """A first step that compiles and fills caches inside its own segments; after the first steps that is a hang."""
    scene = Scene(Topology.of(dp=8))
    for rank in range(8):
        if rank < inside:
            scene.work(rank, segment, since_s, "data" if segment == "load" else "compute")
        else:
            scene.collective(rank, "dp", 2, since_s=since_s)
    assert judged(scene, KnownPace()).state == (State.HANG if named else State.SLOW)
    assert judged(scene, KnownPace(step=0.2, segments={segment: 0.1})).state == State.HANG


@pytest.mark.parametrize(
    ("usual_s", "since_s", "named"),
    [(3.0, 59, False), (3.0, 61, True), (30.0, 299, False), (30.0, 301, True), (200.0, 399, False), (200.0, 401, True),
     (None, 299, False), (None, 301, True)],
)  # fmt: skip
def test_the_program_gets_less_time_than_collectives_wait(usual_s: float | None, since_s: float, named: bool) -> None:
    """Four of eight ranks write a checkpoint to a file system that does not answer."""
    scene = Scene(Topology.of(dp=8))
    for rank in range(8):
        if rank < 4:
            scene.work(rank, "checkpoint_write", since_s, "checkpoint")
            scene.process(rank, "disk-sleep")
        else:
            scene.collective(rank, "dp", 2, since_s=since_s)
    usual = {} if usual_s is None else {"checkpoint_write": usual_s}
    found = judged(scene, KnownPace(step=0.2, segments=usual))
    assert found.state == (State.HANG if named else State.SLOW)
    assert {rank for root in found.roots for rank in root.ranks} == (set(range(4)) if named else set())


@pytest.mark.parametrize(("moved", "named"), [((1, 2, 3), True), ((1, 2), True), ((1,), False), ((), False)])
def test_one_that_stands_still_where_the_others_move_is_not_the_program(moved: tuple[int, ...], named: bool) -> None:
    scene = Scene(Topology.of(dp=8))
    for rank in range(8):
        if rank < 4:
            scene.work(rank, "checkpoint_write", 50 if rank == 0 else 20, "checkpoint")
        else:
            scene.collective(rank, "dp", 2, since_s=45)
    pace = KnownPace(step=0.2, segments={"checkpoint_write": 3.0})
    found = compare_looks(*scene.looks(moved, apart_s=5), None, pace)
    sure = [root.ranks for root in found.roots if root.confidence > 0.5]
    assert (found.state, sure) == ((State.HANG, [(0,)]) if named else (State.SLOW, []))


def test_a_rank_in_a_phase_in_which_the_others_wait_for_it_is_stuck() -> None:
    """All evaluate, and seven of them wait inside for the eighth."""
    scene = Scene(Topology.of(dp=8))
    for rank in range(8):
        scene.work(rank, "evaluate", 60, "eval")
        if rank != 5:
            scene.collective(rank, "dp", 2, since_s=50)
    found = judged(scene, RUNS)
    assert (found.state, [root.ranks for root in found.roots]) == (State.HANG, [(5,)])


@pytest.mark.parametrize(
    ("last", "usual_s", "since_s", "state"),
    [
        (Work("checkpoint_write", "checkpoint"), 60.0, 40, State.SLOW),
        (Work("checkpoint_write", "checkpoint"), 60.0, 121, State.HANG),
        (Work("forward", "compute"), 60.0, 40, State.HANG),
        (None, 60.0, 40, State.HANG),
    ],
)
def test_a_rank_that_fell_silent_in_a_checkpoint_may_still_write_it(
    last: Work | None, usual_s: float, since_s: float, state: State
) -> None:
    scene = held_up("checkpoint_write", "checkpoint", since_s=since_s)
    scene.lose(1)
    works = {} if last is None else {1: last}
    pace = KnownPace(step=0.2, segments={"checkpoint_write": usual_s, "forward": usual_s}, last=works)
    assert judged(scene, pace).state == state


def test_a_rank_between_segments_is_timed_by_what_it_completed_last() -> None:
    scene = held_up(None, since_s=50)
    assert judged(scene, KnownPace(step=0.2, unchanged={1: 12.0})).state == State.SLOW
    assert judged(scene, KnownPace(step=0.2, unchanged={1: 31.0})).state == State.HANG
    assert judged(scene, KnownPace(step=0.2)).state == State.HANG  # it has not moved for as long as anybody looks back


def test_a_segment_that_completes_parts_is_not_as_old_as_it_looks() -> None:
    """Sixty seconds in a checkpoint, and a part of it was completed six seconds ago."""
    moving = KnownPace(step=0.2, unchanged={1: 6.0})
    assert judged(held_up("checkpoint_write", "checkpoint", since_s=60), moving).state == State.SLOW


def test_a_stopped_process_gets_no_more_time() -> None:
    assert judged(held_up("data", "data", since_s=9, process="stopped"), RUNS).state == State.HANG


def test_waits_of_long_steps_are_not_called_slow() -> None:
    scene = held_up("forward", since_s=40)
    assert judged(scene, KnownPace(step=120.0, segments={"forward": 30.0})).state == State.RUNNING


def test_a_rank_without_data_is_waited_for_before_it_is_called_dead() -> None:
    scene = held_up("forward", since_s=12)
    scene.lose(1)
    found = judged(scene, RUNS)
    assert (found.state, [root.ranks for root in found.roots]) == (State.SLOW, [(1,)])
    scene = held_up("forward", since_s=31)
    scene.lose(1)
    assert judged(scene, RUNS).state == State.HANG


def test_a_root_that_is_not_sure_yet_stands_beside_the_sure_one_with_less_confidence() -> None:
    scene = Scene(Topology.of(dp=4, tp=2))
    scene.work(1, "forward", 20)
    scene.work(7, "never_before", 20, "data")
    for rank, other in ((0, 1), (6, 7)):
        scene.collective(rank, "tp", 3, since_s=19)
        assert other in scene.mesh.group("tp", rank)
    found = judged(scene, RUNS)
    assert found.state == State.HANG
    assert {root.ranks: root.confidence for root in found.roots} == {(1,): 0.85, (7,): 0.425}


def verdict_of(store: Store) -> HangVerdict:
    return diagnose(store, store.attempt())


def test_a_slow_warm_up_does_not_hide_a_hang(tmp_path: Path) -> None:
    """The first forward took a minute, all later ones 20 ms; now it stands in one for 40 s."""
    scene = cascade(MESH, 1)
    scene.work(1, "forward", since_s=40)
    more = steps_done(range(4), [60.0, 60.0, *[0.02] * 48])
    store = write_scene(tmp_path / "store", scene.looks(apart_s=9), more=more)
    assert StorePace(store, store.attempt(), MOMENT_NS).segment_s("forward") == pytest.approx(0.02)
    verdict = verdict_of(store)
    assert verdict.verdict == State.HANG
    assert [(one.ranks, one.kind) for one in verdict.culprits] == [((1,), CulpritKind.HOST_STUCK)]


def test_the_store_tells_the_pace(tmp_path: Path) -> None:
    scene = held_up(None, since_s=20)
    heartbeats = [scene.snapshot(before, moved=[1]) for before in (30, 25, 20)]
    heartbeats += [scene.snapshot(before) for before in (15, 10, 5, 0)]
    store = write_scene(tmp_path / "store", heartbeats, more=steps_done(range(4), [9.0, 9.0, 0.5, 0.5, 0.5]))
    pace = StorePace(store, store.attempt(), MOMENT_NS)
    assert pace.step_s() == pytest.approx(0.5)
    assert pace.segment_s("forward") == pytest.approx(0.5)
    assert pace.segment_s("unheard of") is None
    states = scene.snapshot().states
    assert pace.unchanged_s(states[1]) == pytest.approx(20.0)
    assert pace.unchanged_s(states[0]) is None
    early = StorePace(store, store.attempt(), MOMENT_NS - 100_000 * SECOND)
    assert (early.step_s(), early.segment_s("forward")) == (None, None)


def test_the_store_tells_what_a_rank_was_last_in(tmp_path: Path) -> None:
    scene = held_up("checkpoint_write", "checkpoint", since_s=20)
    store = write_scene(tmp_path / "store", scene.looks(apart_s=6))
    pace = StorePace(store, store.attempt(), MOMENT_NS)
    assert pace.last_works([1, 2, 9]) == {1: Work("checkpoint_write", "checkpoint")}
    assert pace.last_works([]) == {}


def test_slow_names_a_suspect_in_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_scene(tmp_path / "store", held_up("data", "data", since_s=15).looks(apart_s=6))
    monkeypatch.setattr(Store, "data_age_s", lambda *_: 2.0)
    verdict = verdict_of(store)
    assert verdict.verdict == State.SLOW
    assert "has only begun to stall, suspected: Rank 1 on node0" in verdict.sentence()
    assert verdict.culprits[0].severity == "medium"
