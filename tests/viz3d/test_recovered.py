"""Operations whose record is lost: a rank that waits in one is not stuck in its own work, and no witness of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.history import NoHistory
from megascope.viz3d.looks import compare_looks
from megascope.viz3d.recovered import with_recovered, without_record
from megascope.viz3d.states import Flight
from megascope.viz3d.streams import LOST
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, Scene, cascade

PAIRS = Topology.of(dp=2, tp=2)
CUBE = Topology.of(pp=2, dp=2, tp=2)


def lose_record(scene: Scene, rank: int, group: int | None = None) -> None:
    """What the rank has in flight in a group (or all of it that is no work) is not told any more; its number is."""
    state = scene.states[rank]
    kept = tuple(one for one in state.flights if one.group is None or (group is not None and one.group != group))
    scene.states[rank] = replace(state, flights=kept)


@settings(deadline=None)
@given(culprit=st.integers(0, 7), lost=st.integers(0, 7))
def test_a_victim_whose_record_is_lost_is_not_accused(culprit: int, lost: int) -> None:
    scene = cascade(CUBE, culprit)
    scene.work(culprit, "data", kind="data")
    if lost != culprit:
        lose_record(scene, lost)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.HANG
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((culprit,), CulpritKind.HOST_STUCK)]
    assert diagnosis.explained == diagnosis.waiting == set(range(8)) - {culprit}


def test_what_is_recovered_is_as_the_other_members_have_it() -> None:
    scene = Scene(PAIRS)
    for rank in range(3):
        scene.work(rank, "checkpoint", since_s=60, kind="checkpoint")
        scene.collective(rank, "world", 2, "world_barrier", since_s=50)
        held = replace(scene.states[rank].flights[-1], waiting=True, size_bytes=8)
        scene.states[rank] = replace(scene.states[rank], flights=(scene.states[rank].flights[0], held))
    lose_record(scene, 1)
    state = with_recovered(scene.snapshot(), ahead=()).states[1]
    flight = state.flights[-1]
    assert (flight.segment, flight.kind, flight.sequence, flight.waiting) == ("world_barrier", "collective", 2, True)
    assert flight.size_bytes is None
    assert state.enclosing(flight) == state.innermost_work()
    assert without_record(scene.snapshot(), range(4), (flight.group or 0, 2)) == [1]
    assert with_recovered(scene.snapshot(), ahead={1}).states[1] == scene.states[1]  # `Streams` knows better


def test_of_members_in_other_work_only_the_name_is_taken() -> None:
    """They may have posted it; it may wait for it."""
    scene = Scene(PAIRS)
    for rank, work in ((0, "backward"), (1, "optimizer")):
        scene.work(rank, work)
        scene.collective(rank, "tp", 5, "tp_all_gather")
    lose_record(scene, 1)
    flight = with_recovered(scene.snapshot(), ahead=()).states[1].flights[-1]
    assert (flight.segment, flight.waiting) == ("tp_all_gather", None)
    lose_record(scene, 0)
    scene.progress(0, scene.of("tp", 0), 4, 4)
    flight = with_recovered(scene.snapshot(), ahead=()).states[1].flights[-1]
    assert (flight.segment, flight.waiting) == (LOST, None)


@pytest.mark.parametrize(("verb", "found"), [("send", ["recv_forward"]), ("recv", [])])
def test_a_message_is_recovered_for_who_gets_it(verb: str, found: list[str]) -> None:
    """Rank 0's number over the edge stands at one more than it has completed, and the other end tells what that is."""
    scene = Scene(Topology.of(pp=2))
    scene.message(1, verb, 0, 4)
    group = scene.group("pp_forward", (0, 1))
    scene.progress(0, group, 4, 3)
    assert [one.segment for one in with_recovered(scene.snapshot(), ahead=()).states[0].flights] == found


@pytest.mark.parametrize(("members", "suspected"), [(4, False), (16, True)])
def test_links_are_not_suspected_where_a_member_may_have_called_something_else(members: int, suspected: bool) -> None:
    """One of four whose record is lost may be the reason; one of sixteen hardly is."""
    scene = Scene(Topology.of(dp=members))
    for rank in range(members):
        scene.collective(rank, "dp", 4, "dp_reduce_scatter")
    lose_record(scene, 2)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.INCONCLUSIVE
    assert [root.kind for root in diagnosis.roots] == ([CulpritKind.NETWORK] if suspected else [])
    assert suspected or any("records" in one.reason for one in diagnosis.abstained)


@dataclass(frozen=True)
class Sizes(NoHistory):
    """The payload that every rank has given at the same point of its steps."""

    usual: int | None

    def expected_size(self, rank: int, step: int, group: int, sequence: int) -> int | None:
        return self.usual


@pytest.mark.parametrize(("usual", "known", "named"), [(16, 1, [(0,)]), (8, 1, []), (None, 1, []), (16, 2, [])])
def test_the_only_witness_of_sizes_is_held_against_its_own_past(
    usual: int | None, known: int, named: list[tuple[int, ...]]
) -> None:
    """All have joined, and of one the record is lost. Where several agree on a new size, the program has changed."""
    scene = Scene(Topology.of(dp=known + 1))
    for rank in range(known + 1):
        scene.collective(rank, "dp", 4, "dp_reduce_scatter")
        flight = replace(scene.states[rank].flights[0], size_bytes=8)
        scene.states[rank] = replace(scene.states[rank], flights=(flight,))
    lose_record(scene, known)
    diagnosis = compare_looks(*scene.looks(), Sizes(usual))
    mismatches = [root.ranks for root in diagnosis.roots if root.kind == CulpritKind.MISMATCH]
    assert mismatches == named
    assert diagnosis.state == (State.HANG if named else State.INCONCLUSIVE)


def test_a_new_size_of_one_that_waits_for_others_is_no_mismatch() -> None:
    """Rank 1 has not come to the operation: it is stuck in its own work."""
    scene = Scene(Topology.of(dp=2))
    scene.work(1, "data", kind="data")
    scene.collective(0, "dp", 4, "dp_reduce_scatter")
    scene.states[0] = replace(scene.states[0], flights=(replace(scene.states[0].flights[0], size_bytes=8),))
    diagnosis = compare_looks(*scene.looks(), Sizes(16))
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((1,), CulpritKind.HOST_STUCK)]


def test_a_rank_that_is_stuck_beside_what_all_have_posted_is_named() -> None:
    """All have posted a reduction, which nobody waits for. Rank 1 is stuck in its own work, and the others wait for it
    in another operation; of the reduction it has no record."""
    scene = Scene(Topology.of(dp=4))
    for rank in range(4):
        scene.work(rank, "backward" if rank == 1 else "optimizer", since_s=60)
        scene.collective(rank, "dp", 4, "dp_reduce_scatter", since_s=55)
        if rank != 1:
            scene.collective(rank, "world", 2, "world_all_reduce", since_s=50)
        work, *operations = scene.states[rank].flights
        told = (replace(one, waiting=one.segment == "world_all_reduce") for one in operations)
        scene.states[rank] = replace(scene.states[rank], flights=(work, *told))
    lose_record(scene, 1)
    diagnosis = compare_looks(*scene.looks())
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((1,), CulpritKind.HOST_STUCK)]


def test_the_moment_of_a_look_stays() -> None:
    assert with_recovered(Scene(PAIRS).snapshot(), ahead=()).moment_ns == MOMENT_NS


@pytest.mark.parametrize("members", [(0, 1, 2, 3), (2,)])
@pytest.mark.parametrize("works", [True, False])
def test_what_was_given_up_long_ago_hides_nobody(members: tuple[int, ...], works: bool) -> None:
    """All have issued an operation over the whole job that nobody has in flight, and some never noted its end."""
    scene = Scene(Topology.of(dp=4))
    world = scene.group("world", range(4))
    for rank in range(4):
        scene.progress(rank, world, 5, 4 if rank in members else 5)
        if rank != 2:
            scene.collective(rank, "dp", 5, since_s=60)
    scene.progress(2, scene.of("dp", 2), 4, 4)
    if works:
        scene.work(2, "data_read", 60, "data")
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.HANG
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((2,), CulpritKind.HOST_STUCK)]


@pytest.mark.parametrize("kind", ["pp_forward", "pp_up", "world_up", "pp", "world"])
def test_a_send_whose_record_is_lost_waits_for_nobody(kind: str) -> None:
    """Rank 0 is stuck in its loader and its last send has no record; rank 2 has not come to receive it."""
    scene = Scene(Topology.of(pp=2, dp=2))
    edge = scene.group(kind, (0, 2))
    scene.work(0, "data_read", 60, "data")
    scene.progress(0, edge, 5, 4)
    scene.progress(0, scene.of("dp", 0), 8, 8)
    scene.progress(2, edge, 4, 4)
    scene.collective(1, "dp", 9, since_s=55)
    for rank in (2, 3):
        scene.collective(rank, "world", 3, since_s=55)
    diagnosis = compare_looks(*scene.looks())
    assert diagnosis.state == State.HANG
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((0,), CulpritKind.HOST_STUCK)]


def test_flights_are_read_once_however_many_records_are_lost() -> None:
    """Of a large group every member lacks its record: the work is in proportion to the ranks, not to their square."""
    reads = 0

    class Counting(tuple[Flight, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[Flight]:
            nonlocal reads
            reads += 1
            return super().__iter__()

    scene = Scene(Topology.of(dp=300))
    for rank in range(300):
        scene.progress(rank, scene.of("dp", rank), 5, 4)
        scene.work(rank, "forward")
        scene.states[rank] = replace(scene.states[rank], flights=Counting(scene.states[rank].flights))
    with_recovered(scene.snapshot(), ahead=())
    assert reads < 10 * 300
