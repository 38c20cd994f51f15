"""A scene for each way in which a job hangs that two looks alone can tell, and who is to be named for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import SegmentKind
from megascope.viz3d.looks import Diagnosis
from megascope.viz3d.states import Flight
from megascope.viz3d.verdict import CulpritKind, State

from .hang_scenes import MOMENT_NS, SECOND, STEP, Scene, cascade

MESH = Topology.of(pp=2, dp=2, tp=2)
Told = set[tuple[tuple[int, ...], CulpritKind]]


@dataclass(frozen=True, slots=True)
class Case:
    """How a scene is made, and what is to be told of it."""

    scene: Callable[[], Scene]
    told: Told
    state: State = State.HANG


def told(diagnosis: Diagnosis) -> Told:
    """Who is named, and as what."""
    return {(tuple(sorted(root.ranks)), root.kind) for root in diagnosis.roots}


def stuck_in_work() -> Scene:
    """Rank 5 loads data, and all others wait for it."""
    scene = cascade(MESH, 5)
    scene.work(5, "data", kind="data")
    return scene


def stopped() -> Scene:
    """The process of rank 2 is stopped."""
    scene = cascade(MESH, 2)
    scene.process(2, "stopped")
    return scene


def gone() -> Scene:
    """The process of rank 6 is gone."""
    scene = cascade(MESH, 6)
    scene.process(6, "gone")
    return scene


def without_data() -> Scene:
    """Nothing is heard of rank 2."""
    scene = cascade(MESH, 2)
    scene.lose(2)
    return scene


def ended_early() -> Scene:
    """Rank 3 has ended in order, and the others still wait for it."""
    scene = cascade(MESH, 3)
    scene.process(3, "exited")
    return scene


def not_set_up() -> Scene:
    """Rank 5 does not come out of its set-up, and the others wait for it in theirs."""
    scene = Scene(MESH)
    for rank, state in scene.states.items():
        scene.states[rank] = replace(state, step=None)
        scene.work(rank, "setup", kind=SegmentKind.INIT)
        if rank != 5:
            scene.collective(rank, "world", 1, "barrier")
    return scene


def lost_record() -> Scene:
    """Rank 4 waits for rank 5, which is stuck, and only its number over tp says so."""
    scene = stuck_in_work()
    state = scene.states[4]
    scene.states[4] = replace(state, flights=tuple(one for one in state.flights if not one.communicates))
    return scene


def another_name() -> Scene:
    """Rank 3 is in another operation of the world than the rest."""
    scene = Scene(MESH)
    for rank in range(8):
        scene.collective(rank, "world", 9, "all_gather" if rank == 3 else "all_reduce")
    return scene


def another_size() -> Scene:
    """Rank 6 gives half as much as the rest."""
    scene = another_name()
    for rank, state in scene.states.items():
        same = tuple(replace(one, segment="all_reduce", size_bytes=8 if rank == 6 else 16) for one in state.flights)
        scene.states[rank] = replace(state, flights=same)
    return scene


def ahead_of_a_stuck_device() -> Scene:
    """Every host has issued four collectives ahead; rank 4 does not complete the first one over tp, rank 5 has."""
    scene = Scene(MESH)
    for rank in range(8):
        for place, axis in enumerate(("tp", "dp") if rank == 4 else ("dp",)):
            group, first = scene.of(axis, rank), 7
            flights = tuple(
                Flight("all_gather", "collective", group, first + number, waiting=False,
                       begun_ns=MOMENT_NS - (50 - place) * SECOND + number) for number in range(2)
            )  # fmt: skip
            state = scene.states[rank]
            scene.states[rank] = replace(state, flights=(*state.flights, *flights))
            scene.progress(rank, group, first + 1, first - 1)
        if rank == 5:
            scene.progress(rank, scene.of("tp", rank), 8, 8)
    return scene


def in_one_pair() -> Scene:
    """Ranks 2 and 3 are in an all-gather over tp that does not complete, all others wait for them."""
    scene = Scene(MESH)
    for rank in range(8):
        if rank in (2, 3):
            scene.work(rank, "forward")
            scene.collective(rank, "tp", 7, "tp_all_gather")
        else:
            scene.collective(rank, "world", 2, since_s=40)
    return scene


def in_everyone() -> Scene:
    """All ranks are in one operation of the world."""
    scene = Scene(MESH)
    for rank in range(8):
        scene.collective(rank, "world", 2, "world_all_reduce")
    return scene


def running_inside() -> Scene:
    """All have joined, and one works on in it while the others sleep."""
    scene = in_everyone()
    scene.process(3, "running")
    return scene


def in_one_group(rank: int) -> Scene:
    """Ranks 0 to 3 are in an all-gather over tp, the others wait for them; one of the four will be made to differ."""
    scene = Scene(Topology.of(dp=2, tp=4))
    for other in range(8):
        if other < 4:
            scene.work(other, "eval_forward" if other == rank else "forward")
            scene.collective(other, "tp", 7, "tp_all_gather")
        else:
            scene.collective(other, "world", 2, since_s=40)
    return scene


def another_branch() -> Scene:
    """Rank 1 calls the operation of its group from evaluation, the others from their forward pass."""
    return in_one_group(1)


def another_step() -> Scene:
    """Rank 2 is in the operation of its group in another step."""
    scene = in_one_group(-1)
    scene.states[2] = replace(scene.states[2], step=STEP + 1)
    return scene


def circle_of_messages() -> Scene:
    """Each rank waits for a message of the one in the other stage."""
    scene = Scene(MESH)
    for rank in range(8):
        scene.message(rank, "recv", (rank + 4) % 8, 3, kind="edge")
    return scene


def posted_receives(begun_s: tuple[float, float] | None = None) -> Scene:
    """Two ranks of one host have a message of each other posted, and are in work since so long ago, or in none."""
    scene = Scene(Topology.of(pp=2))
    for rank in range(2):
        if begun_s is not None:
            scene.work(rank, "forward", since_s=begun_s[rank])
        scene.message(rank, "recv", 1 - rank, 3, kind="pp_forward" if rank else "pp_backward", waiting=False)
    return scene


def circle_of_collectives() -> Scene:
    """In the first stage ranks 0 and 3 wait over dp, ranks 1 and 2 over tp, each for the other two."""
    scene = Scene(MESH)
    for rank in range(8):
        if rank > 3:
            scene.collective(rank, "world", 2)
        else:
            scene.collective(rank, "dp" if rank in (0, 3) else "tp", 5)
    return scene


def two_roots() -> Scene:
    """Rank 1 is stuck over tp in the first stage, rank 6 in the second."""
    scene = Scene(MESH)
    for rank in range(8):
        if rank in (1, 6):
            scene.work(rank, "forward")
        elif rank in (0, 7):
            scene.collective(rank, "tp", 4)
        else:
            scene.collective(rank, "dp", 9)
    return scene


BOTH: Told = {((0,), CulpritKind.HOST_STUCK), ((1,), CulpritKind.HOST_STUCK)}
CASES = {
    "stuck in work": Case(stuck_in_work, {((5,), CulpritKind.HOST_STUCK)}),
    "stopped": Case(stopped, {((2,), CulpritKind.HOST_STUCK)}),
    "gone": Case(gone, {((6,), CulpritKind.DEAD)}),
    "without data": Case(without_data, {((2,), CulpritKind.DEAD)}),
    "ended early": Case(ended_early, {((3,), CulpritKind.MISSING_CALL)}),
    "not set up": Case(not_set_up, {((5,), CulpritKind.INIT)}),
    "lost record": Case(lost_record, {((5,), CulpritKind.HOST_STUCK)}),
    "another name": Case(another_name, {((3,), CulpritKind.MISMATCH)}),
    "another size": Case(another_size, {((6,), CulpritKind.MISMATCH)}),
    "stuck device": Case(ahead_of_a_stuck_device, {((4,), CulpritKind.DEVICE_STUCK)}),
    "joined by a pair": Case(in_one_pair, {((2, 3), CulpritKind.NETWORK)}, State.INCONCLUSIVE),
    "joined by all": Case(in_everyone, {(tuple(range(8)), CulpritKind.NETWORK)}, State.INCONCLUSIVE),
    "running inside": Case(running_inside, {((3,), CulpritKind.LIBRARY)}, State.INCONCLUSIVE),
    "another step": Case(another_step, {((2,), CulpritKind.ITERATION_DESYNC)}),
    "another branch": Case(another_branch, {((1,), CulpritKind.DIVERGED)}),
    "circle of messages": Case(circle_of_messages, {((rank, rank + 4), CulpritKind.P2P_CYCLE) for rank in range(4)}),
    "posted, no work": Case(posted_receives, BOTH, State.INCONCLUSIVE),
    "posted, same moment": Case(lambda: posted_receives((30, 30)), BOTH, State.INCONCLUSIVE),
    "posted, one first": Case(lambda: posted_receives((30, 35)), {((1,), CulpritKind.HOST_STUCK)}),
    "circle of collectives": Case(circle_of_collectives, {((0, 1, 2, 3), CulpritKind.ORDER_INVERSION)}),
    "two roots": Case(two_roots, {((1,), CulpritKind.HOST_STUCK), ((6,), CulpritKind.HOST_STUCK)}),
}
