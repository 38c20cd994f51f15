"""What a picture of a large hang shows: roots, their neighbours, and whole ways to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.doing import Doing, doing_of, innermost
from megascope.viz3d.focus import MOST_SHOWN, NEAR, ON_THE_WAY, focus_on, neighbours, ways_to
from megascope.viz3d.graph import Operation, Wait, WaitGraph, build_graph
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import GroupName


def mesh_look(mesh: Topology) -> Snapshot:
    """A look at a mesh in which nobody has anything in flight."""
    ranks = range(mesh.world_size)
    groups = {
        number: GroupName(axis, members)
        for number, (axis, members) in enumerate((axis, group) for axis in mesh.names for group in mesh.groups(axis))
    }
    places = {rank: dict(mesh.coordinates(rank)) for rank in ranks}
    return Snapshot(0, {rank: RankState(rank, 0) for rank in ranks}, groups, {}, places, mesh.names)


def graph_of(edges: dict[int, int], weak: frozenset[int] = frozenset()) -> WaitGraph:
    """A graph in which each rank waits for one other."""
    graph = WaitGraph()
    for rank, other in edges.items():
        operation = Operation(rank, 1, "op", (rank, other), (other,))
        graph.waits[rank] = [Wait(rank, Flight("op", "collective", rank, 1), operation, rank in weak)]
    return graph


@given(
    st.dictionaries(st.integers(0, 40), st.integers(0, 40)), st.frozensets(st.integers(0, 40), min_size=1, max_size=3)
)
def test_every_way_ends_at_a_root_and_is_the_shortest(edges: dict[int, int], roots: frozenset[int]) -> None:
    edges = {rank: other for rank, other in edges.items() if rank != other}
    toward = ways_to(graph_of(edges), roots)
    for rank in edges:
        at, seen = rank, set()
        while at in edges and at not in roots and at not in seen:
            seen.add(at)
            at = edges[at]
        assert (rank in toward) == (at in roots and rank not in roots)
        if rank in toward:
            assert toward[rank] == edges[rank]


def test_waits_that_are_certain_are_followed_first() -> None:
    graph = graph_of({1: 0, 2: 0}, weak=frozenset({1}))
    graph.waits[3] = [
        Wait(3, Flight("op", "p2p", 9, 1), Operation(9, 1, "op", (1, 3), (1,)), weak=True),
        Wait(3, Flight("op", "collective", 8, 1), Operation(8, 1, "op", (2, 3), (2,)), weak=False),
    ]
    assert ways_to(graph, {0}) == {2: 0, 1: 0, 3: 2}


def test_neighbours_stand_on_either_side_on_each_axis() -> None:
    mesh = Topology.of(pp=2, dp=64, tp=2)
    root = mesh.rank({"dp": 32})
    found = neighbours(mesh_look(mesh), [root])
    places = [mesh.coordinates(rank) for rank in found]
    assert {place["dp"] for place in places} == set(range(32 - NEAR, 32 + NEAR + 1))
    assert len(found) == 1 + 1 + 1 + 2 * NEAR


def test_without_axes_all_groups_but_everyones_count() -> None:
    groups = {1: GroupName("default_pg", tuple(range(8))), 2: GroupName("some", (2, 5))}
    look = Snapshot(0, {rank: RankState(rank, 0) for rank in range(8)}, groups, {}, {})
    assert neighbours(look, [2]) == (2, 5)


def test_the_nearest_who_wait_are_shown_with_their_whole_way() -> None:
    mesh = Topology.of(dp=4096)
    root = 2000
    edges = {rank: rank + 1 if rank < root else rank - 1 for rank in range(4096) if rank != root}
    toward = ways_to(graph_of(edges), {root})
    shown = focus_on(mesh_look(mesh), (root,), toward)
    assert root in shown
    assert len(shown) == 1 + 2 * NEAR + ON_THE_WAY
    assert all(toward[rank] in shown for rank in shown if rank != root)
    assert max(abs(rank - root) for rank in shown) <= NEAR + ON_THE_WAY // 2 + 1


def test_many_roots_are_all_shown() -> None:
    mesh = Topology.of(dp=2 * MOST_SHOWN)
    roots = tuple(range(MOST_SHOWN + 10))
    assert focus_on(mesh_look(mesh), roots, {}) == roots
    assert focus_on(mesh_look(mesh), (), {}) == ()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Doing.MISSING),
        (RankState(0, 9), Doing.IDLE),
        (RankState(0, 9, flights=(Flight("forward", "compute", begun_ns=1),)), Doing.COMPUTE),
        (RankState(0, 9, flights=(Flight("load", "data", begun_ns=1),)), Doing.COMPUTE),
        (
            RankState(0, 9, flights=(Flight("ar", "collective", 1, 1, begun_ns=5), Flight("f", "compute", begun_ns=1))),
            Doing.COLLECTIVE,
        ),
        (RankState(0, 9, flights=(Flight("recv", "p2p", 1, 1, 2, begun_ns=1),)), Doing.P2P),
        (RankState(0, 9, process_state="stopped"), Doing.STOPPED),
        (RankState(0, 9, process_state="exited"), Doing.ENDED),
        (RankState(0, 9, flights=(Flight("f", "compute"),), process_state="gone"), Doing.DEAD),
    ],
)
def test_what_a_rank_is_in(state: RankState | None, expected: Doing) -> None:
    assert doing_of(state) == expected


def test_the_innermost_segment_began_last() -> None:
    state = RankState(0, 9, flights=(Flight("inner", "compute", begun_ns=7), Flight("outer", "compute", begun_ns=2)))
    found = innermost(state)
    assert found is not None
    assert found.segment == "inner"
    assert innermost(None) is None
    assert not build_graph(Snapshot(0, {0: state}, {}, {}, {})).waits
