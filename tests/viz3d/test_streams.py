"""Hosts that run ahead of their devices: only the head of a stream tells who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.graph import build_graph
from megascope.viz3d.looks import compare_looks
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.streams import LOST, Streams
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import MOMENT_NS, SECOND, Scene

MESH = Topology.of(dp=4, tp=2)
FAR = 12


def ahead(scene: Scene, rank: int, axis: str, first: int, since_s: float = 50.0) -> None:
    """The rank has issued `FAR` collectives along an axis, of which none is complete."""
    group = scene.of(axis, rank)
    flights = tuple(
        Flight("all_gather", "collective", group, first + number,
               begun_ns=MOMENT_NS - round((since_s - 0.001 * number) * SECOND), waiting=False)
        for number in range(FAR)
    )  # fmt: skip
    state = scene.states[rank]
    known = {**state.progress, group: (first + FAR - 1, first - 1)}
    scene.states[rank] = replace(state, flights=(*state.flights, *flights), progress=known)


def _holding(state: RankState) -> tuple[Flight, ...] | None:
    """What holds a rank up, of a look at it alone."""
    return Streams.of(Snapshot(MOMENT_NS, {state.rank: state}, {}, {}, {})).holding.get(state.rank)


def behind_a_stuck_device(stuck: int) -> Scene:
    """Every host has issued 12 collectives ahead, two pairs of them along two axes; one device is stuck."""
    scene = Scene(MESH)
    for rank in range(MESH.world_size):
        partner = stuck ^ 1
        if rank == stuck:
            ahead(scene, rank, "tp", 7)
            ahead(scene, rank, "dp", 3, since_s=40)
        elif rank == partner:
            ahead(scene, rank, "dp", 3)
            ahead(scene, rank, "tp", 9, since_s=40)
        else:
            ahead(scene, rank, "dp", 3)
    return scene


@pytest.mark.parametrize("stuck", range(8))
def test_a_device_that_does_not_complete_what_its_partner_completed(stuck: int) -> None:
    diagnosis = compare_looks(*behind_a_stuck_device(stuck).looks())
    assert diagnosis.state == State.HANG
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((stuck,), CulpritKind.DEVICE_STUCK)]
    assert "completed number 7" in diagnosis.roots[0].why


def test_a_host_that_stands_still_while_all_others_run_ahead_of_their_devices() -> None:
    scene = Scene(MESH)
    for rank in range(MESH.world_size):
        if rank != 5:
            ahead(scene, rank, "tp" if rank == 4 else "dp", 7)
    scene.work(5, "data", kind="data")
    diagnosis = compare_looks(*scene.looks())
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((5,), CulpritKind.HOST_STUCK)]


def test_what_lies_behind_the_head_is_not_joined_though_it_was_issued() -> None:
    """Ranks 0 and 1 issued the same two collectives in another order: each head waits behind the other's."""
    scene = Scene(Topology.of(tp=2))
    world = scene.group("world", (0, 1))
    tensor = scene.of("tp", 0)
    for rank, groups in ((0, (tensor, world)), (1, (world, tensor))):
        for number, group in enumerate(groups):
            begun = MOMENT_NS - (50 - number) * SECOND
            flight = Flight("all_reduce", "collective", group, 4, begun_ns=begun, waiting=False)
            state = scene.states[rank]
            known = {**state.progress, group: (4, 3)}
            scene.states[rank] = replace(state, flights=(*state.flights, flight), progress=known)
    diagnosis = compare_looks(*scene.looks())
    assert [(root.ranks, root.kind) for root in diagnosis.roots] == [((0, 1), CulpritKind.ORDER_INVERSION)]


def test_the_head_whose_record_is_lost_is_put_back_by_its_number() -> None:
    scene = Scene(MESH)
    ahead(scene, 0, "tp", 7)
    state = scene.states[0]
    lost = replace(state, flights=state.flights[1:])
    held = _holding(lost)
    assert held is not None
    assert [(one.segment, one.sequence) for one in held] == [(LOST, 7)]


def test_a_rank_that_waits_for_its_first_operation_does_not_run_ahead() -> None:
    scene = Scene(MESH)
    ahead(scene, 0, "tp", 7)
    state = scene.states[0]
    first = replace(state.flights[0], waiting=True)
    assert _holding(state) is not None
    assert _holding(replace(state, flights=(first, *state.flights[1:]))) is None
    assert _holding(replace(state, flights=state.flights[:1])) is None


@given(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=2))
def test_ranks_of_which_nothing_was_ever_heard_are_not_accused_beside_a_root(stuck: int, silent: set[int]) -> None:
    """The stuck device and its partner are heard of; whoever else is silent is not named."""
    silent -= {stuck, stuck ^ 1}
    scene = behind_a_stuck_device(stuck)
    for rank in silent:
        scene.lose(rank)
    earlier, later = scene.looks()
    diagnosis = compare_looks(_on_hosts(earlier), _on_hosts(later))
    assert [root.ranks for root in diagnosis.roots] == [(stuck,)]


def _on_hosts(look: Snapshot) -> Snapshot:
    hosts = {rank: f"node{rank // 4}" for rank in range(MESH.world_size)}
    return replace(look, hosts=hosts, never_heard=frozenset(look.missing))


def test_who_is_at_a_higher_number_of_a_group_is_not_behind_its_head() -> None:
    """Of rank 0's operation 7 there is no record, nor of how far it is: rank 1, in it, does not wait for rank 0."""
    scene = Scene(Topology.of(tp=2))
    ahead(scene, 0, "tp", 8)
    ahead(scene, 1, "tp", 7)
    scene.states[0] = replace(scene.states[0], progress={})
    graph = build_graph(scene.snapshot())
    waits = [wait for own in graph.waits.values() for wait in own]
    assert [(one.rank, one.operation.sequence, one.operation.absent) for one in waits] == [(0, 8, (1,))]
