"""Messages of which one was left out: hosts that run ahead show it in numbers that carry another micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.pace import KnownPace
from megascope.viz3d.states import Flight
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, STEP, Scene

USUAL = (0, 1, 2, 3)
DONE_STEPS = 5


@dataclass(frozen=True)
class Past(NoHistory):
    """What rank 1 has sent to rank 0 by step: number -> micro-batch."""

    steps: Mapping[int, Mapping[int, int]]

    def runs_ahead(self) -> bool | None:
        return True

    def sent(self, rank: int, step: int, group: int) -> Mapping[int, int | None]:
        return dict(self.steps.get(step, {})) if rank == 1 else {}


def issue(scene: Scene, rank: int, operations: Sequence[tuple[str, int, int, int | None]]) -> None:
    """The rank's host has issued operations, each (name, group, number, micro-batch), and goes on."""
    flights = []
    for place, (name, group, number, microbatch) in enumerate(operations):
        is_message = microbatch is not None
        begun = MOMENT_NS - 50 * SECOND + place * 10**6
        kind, peer = ("p2p", 1 - rank) if is_message else ("collective", None)
        flights.append(Flight(name, kind, group, number, peer, microbatch, begun, waiting=False))
        scene.progress(rank, group, number, scene.states[rank].progress.get(group, (0, number - 1))[1])
    scene.states[rank] = replace(scene.states[rank], step=STEP + 1, flights=tuple(flights))


def job(sent: Sequence[int], lost: int | None = None) -> tuple[Scene, Past]:
    """Two stages in step STEP: rank 1 has sent these micro-batches, and its host is ahead in the step after; rank 0
    receives all, and one message is ``lost`` from the record."""
    scene = Scene(Topology.of(pp=2))
    edge, world = scene.group("pp_backward", (0, 1)), scene.group("world", (0, 1))
    first = DONE_STEPS * len(USUAL) + 1
    steps = {
        STEP - DONE_STEPS + at: {at * len(USUAL) + 1 + own: microbatch for own, microbatch in enumerate(USUAL)}
        for at in range(DONE_STEPS)
    }
    steps[STEP] = {first + at: own for at, own in enumerate(sent) if at != lost}
    after = first + len(sent)
    ahead = [("send_backward", edge, after + at, own) for at, own in enumerate(USUAL[:2])]
    issue(scene, 1, [("world_all_reduce", world, 9, None), *ahead, ("world_all_reduce", world, 10, None)])
    last = first + len(USUAL) - 1
    coming = [("recv_backward", edge, last + 1 + at, own) for at, own in enumerate(USUAL[:2])]
    issue(scene, 0, [("recv_backward", edge, last, USUAL[-1]), ("world_all_reduce", world, 9, None), *coming])
    return scene, Past(steps)


def judged(scene: Scene, past: Past) -> Diagnosis:
    return compare_looks(*scene.looks(), past, KnownPace(step=1.0))


@pytest.mark.parametrize("lost", [None, 1])
@pytest.mark.parametrize("left_out", USUAL)
def test_who_left_out_a_send_is_named_though_its_host_has_begun_the_next_step(left_out: int, lost: int | None) -> None:
    sent = [own for own in USUAL if own != left_out]
    found = judged(*job(sent, lost))
    assert found.state == State.HANG
    assert [(root.ranks, root.kind) for root in found.roots] == [((1,), CulpritKind.MISSING_CALL)]
    assert f"since step {STEP} it has sent micro-batches" in found.roots[0].why


def test_messages_in_another_order_are_none_that_were_left_out() -> None:
    """Two of them have changed places; what comes after is where it usually is."""
    scene, past = job([own for own in USUAL if own != 2])
    swapped = dict(zip(past.steps[STEP], (1, 0, 3), strict=True))
    found = judged(scene, Past({**past.steps, STEP: swapped}))
    assert CulpritKind.MISSING_CALL not in {root.kind for root in found.roots}


def test_of_steps_that_are_never_alike_nothing_is_concluded() -> None:
    scene, past = job([own for own in USUAL if own != 2])
    steps = {step: {number: (own + step) % 4 for number, own in every.items()} for step, every in past.steps.items()}
    found = judged(scene, Past({**steps, STEP: past.steps[STEP]}))
    assert CulpritKind.MISSING_CALL not in {root.kind for root in found.roots}
