"""Steps that have one operation more than usual: numbers move, and no rank is accused for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import Diagnosis, compare_looks
from megascope.viz3d.pace import KnownPace
from megascope.viz3d.states import Flight
from megascope.viz3d.usual import Issued, Place, UsualSteps
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, STEP, Scene

MESH = Topology.of(dp=2, tp=2)
PROGRAM = ("tp", "dp", "tp", "dp", "tp", "dp", "tp")
PAST_STEPS = 4
MILLISECOND = 10**6


@dataclass(frozen=True)
class Job(NoHistory):
    """Four steps as usual, and ``record``: what each rank has completed of the present one."""

    scene: Scene
    record: Mapping[int, Sequence[Issued]]
    sizes_differ: bool = False

    def runs_ahead(self) -> bool | None:
        return True

    def usual(self, rank: int, step: int) -> UsualSteps:
        steps: dict[int, list[Issued]] = {}
        numbers, at = {"tp": 0, "dp": 0}, MOMENT_NS - 1000 * SECOND
        for past in range(STEP - PAST_STEPS, STEP):
            inside = {"tp": 0, "dp": 0}
            for axis in PROGRAM:
                numbers[axis] += 1
                inside[axis] += 1
                at += MILLISECOND
                size = 1000 * (inside[axis] if self.sizes_differ else 1)
                one = Issued(self.scene.of(axis, rank), numbers[axis], f"{axis}_reduce", at, at, at + 1000, size)
                steps.setdefault(past, []).append(one)
        return UsualSteps({past: own for past, own in steps.items() if past < step}, step, self.record.get(rank, ()))

    def _place(self, rank: int, step: int, group: int, sequence: int) -> tuple[UsualSteps, Place | None]:
        usual = self.usual(rank, step)
        return usual, usual.place(group, sequence)

    def expected_issued(self, rank: int, step: int, group: int, sequence: int, other: int) -> int | None:
        usual, place = self._place(rank, step, group, sequence)
        return None if place is None else usual.issued_before(place, other)

    def expected_segment(self, rank: int, step: int, group: int, sequence: int) -> str | None:
        usual, place = self._place(rank, step, group, sequence)
        twin = None if place is None else usual.twin(place)
        return None if twin is None else twin.segment

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        usual, place = self._place(rank, step, group, sequence)
        twin = None if place is None else usual.twin(place)
        return None if twin is None else twin.size_bytes

    def ends_before(self, rank: int, step: int, first: tuple[int, int], second: tuple[int, int]) -> bool | None:
        usual = self.usual(rank, step)
        places = usual.place(*first), usual.place(*second)
        return None if places[0] is None or places[1] is None else usual.ends_before(places[0], places[1])

    def begins_as_usual(
        self, rank: int, step: int, flight: Flight, before: Sequence[Flight], but: int | None = None
    ) -> bool | None:
        usual, place = self._place(rank, step, flight.group or 0, flight.sequence or 0)
        if place is None:
            return None
        return usual.begins_as_usual(place, issued(flight), [issued(one) for one in before], but)


def issued(flight: Flight) -> Issued:
    begun = flight.begun_ns or 0
    return Issued(flight.group or 0, flight.sequence or 0, flight.segment, begun, begun, None, flight.size_bytes)


def completed(programs: Mapping[int, Sequence[str]], stops: Mapping[int, int]) -> dict[int, int]:
    """How many operations of its program each rank's device completes: one is complete where both members have come to
    it; a rank that ``stops`` comes to so many."""
    done = dict.fromkeys(programs, 0)
    while True:
        before = dict(done)
        for rank, own in programs.items():
            if done[rank] >= min(len(own), stops.get(rank, len(own))):
                continue
            axis = own[done[rank]]
            [other] = set(MESH.group(axis, rank)) - {rank}
            nth = list(own[: done[rank]]).count(axis)
            come = min(done[other] + 1, stops.get(other, len(programs[other])))
            if list(programs[other][:come]).count(axis) > nth:
                done[rank] += 1
        if done == before:
            return done


def job(
    programs: Mapping[int, Sequence[str]], stops: Mapping[int, int], *, recorded: bool, sizes_differ: bool = False
) -> tuple[Scene, Job]:
    """A job that runs ahead of its devices, in which ranks stop at a place of this step."""
    scene, record = Scene(MESH), dict[int, list[Issued]]()
    done = completed(programs, stops)
    extra = len(programs[0]) - len(PROGRAM)
    for rank, own in programs.items():
        numbers = {"tp": 4 * PAST_STEPS, "dp": 3 * PAST_STEPS}
        inside = {"tp": 0, "dp": 0}
        if extra > 0:
            inside[own[0]] -= extra  # an operation of its own, in front
        ended, flights = dict(numbers), []
        for place, axis in enumerate(own[: stops.get(rank, len(own))]):
            numbers[axis] += 1
            inside[axis] += 1
            begun = MOMENT_NS - 50 * SECOND + place * MILLISECOND
            size = 1000 * (inside[axis] if sizes_differ else 1)
            flight = Flight(f"{axis}_reduce", "collective", scene.of(axis, rank), numbers[axis], begun_ns=begun,
                            size_bytes=size, waiting=False)  # fmt: skip
            if place < done[rank]:
                ended[axis] = numbers[axis]
                record.setdefault(rank, []).append(issued(flight))
            else:
                flights.append(flight)
        scene.states[rank] = replace(scene.states[rank], flights=tuple(flights))
        for axis, number in numbers.items():
            scene.progress(rank, scene.of(axis, rank), number, ended[axis])
    return scene, Job(scene, record if recorded else {}, sizes_differ)


def judged(scene: Scene, past: Job, ranks_a_host: int = 8) -> Diagnosis:
    looks = [
        replace(one, hosts={rank: f"node{rank // ranks_a_host}" for rank in range(MESH.world_size)})
        for one in scene.looks()
    ]
    return compare_looks(looks[0], looks[1], past, KnownPace(step=1.0, segments={"optimizer": 0.1}))


@settings(max_examples=100, deadline=None)
@given(
    at=st.integers(0, len(PROGRAM)),
    axis=st.sampled_from(["tp", "dp"]),
    dead=st.integers(0, 3),
    stop=st.integers(0, len(PROGRAM)),
    recorded=st.booleans(),
    ranks_a_host=st.sampled_from([1, 2, 8]),
)
def test_a_dead_host_in_a_step_with_one_operation_more(
    at: int, axis: str, dead: int, stop: int, recorded: bool, ranks_a_host: int
) -> None:
    program = [*PROGRAM[:at], axis, *PROGRAM[at:]]
    scene, past = job(dict.fromkeys(range(4), program), {dead: stop}, recorded=recorded)
    scene.lose(dead)
    found = judged(scene, past, ranks_a_host)
    assert all(root.ranks == (dead,) for root in found.roots if not root.is_suspicion)
    assert CulpritKind.ORDER_INVERSION not in {root.kind for root in found.roots}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("silent", [None, 1, 2])
def test_a_true_inversion_is_named_with_and_without_the_record_of_the_step(silent: int | None, recorded: bool) -> None:
    swapped = ["tp", "dp", "dp", "tp", *PROGRAM[4:]]
    programs = {rank: swapped if rank in (0, 3) else list(PROGRAM) for rank in range(4)}
    scene, past = job(programs, {}, recorded=recorded)
    if silent is not None:
        scene.lose(silent)
    found = judged(scene, past)
    assert found.state == State.HANG
    assert [(root.ranks, root.kind) for root in found.roots] == [((0, 3), CulpritKind.ORDER_INVERSION)]


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("recorded", [True, False])
def test_the_only_witness_of_a_size_is_no_culprit_in_such_a_step(extra: int, recorded: bool) -> None:
    """Rank 3 is stuck in its optimizer. Rank 1's record of the operation that it and rank 0 stand in is lost, and
    rank 0 gives there what it usually gives one operation earlier."""
    program = ["tp"] * extra + list(PROGRAM)
    scene, past = job(dict.fromkeys(range(4), program), {3: 3 + extra}, recorded=recorded, sizes_differ=True)
    number = scene.states[1].completed(scene.of("tp", 1)) + 1
    kept = (one for one in scene.states[1].flights if (one.group, one.sequence) != (scene.of("tp", 1), number))
    scene.states[1] = replace(scene.states[1], flights=tuple(kept))
    scene.work(3, "optimizer")
    found = judged(scene, past)
    assert found.state == State.HANG
    assert [root.ranks for root in found.roots if not root.is_suspicion] == [(3,)]
    assert CulpritKind.MISMATCH not in {root.kind for root in found.roots}


def awaited(scene: Scene) -> None:
    """Every rank waits for each operation: of what it has in flight, only the first is begun."""
    for rank, state in scene.states.items():
        flights = tuple(replace(one, waiting=True) for one in state.flights[:1])
        begun = {one.group for one in flights}
        progress = {group: (done + (group in begun), done) for group, (_, done) in state.progress.items()}
        scene.states[rank] = replace(state, flights=flights, progress=progress)


@settings(max_examples=60, deadline=None)
@given(
    at=st.integers(0, len(PROGRAM)),
    axis=st.sampled_from(["tp", "dp"]),
    crossed=st.integers(0, len(PROGRAM) - 1),
    waits=st.booleans(),
)
def test_an_inversion_in_a_step_with_one_operation_more_is_laid_to_nobody_else(
    at: int, axis: str, crossed: int, waits: bool
) -> None:
    """Ranks 0 and 3 swap two operations in a row. Who keeps the order has left out nothing, nor issued it late."""
    program = [*PROGRAM[:at], axis, *PROGRAM[at:]]
    swapped = [*program[:crossed], *program[crossed : crossed + 2][::-1], *program[crossed + 2 :]]
    assume(tuple(swapped[: crossed + 2]) != PROGRAM[: crossed + 2])  # else the others' order is the new one
    scene, past = job({rank: swapped if rank in (0, 3) else program for rank in range(4)}, {}, recorded=True)
    if waits:
        awaited(scene)
    firm = [root.ranks for root in judged(scene, past).roots if not root.is_suspicion]
    assert set(firm) <= {(0, 3), (0,), (3,), (0, 1, 2, 3)}
