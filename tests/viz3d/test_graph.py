"""The graph of waits: who has a way out, who has none."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.ends import Waiters, components, find_ends
from megascope.viz3d.graph import build_graph
from support.hang_scenes import Scene, cascade, edges

MESHES = st.sampled_from(
    [Topology.of(pp=2, dp=2, tp=2), Topology.of(ep=2, cp=4), Topology.of(dp=3, x=2, y=2, z=2), Topology.of(dp=4)]
)


@settings(deadline=None)
@given(MESHES, st.data())
def test_a_victim_has_a_way_out_and_a_culprit_none(mesh: Topology, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, mesh.world_size - 1))
    scene = cascade(mesh, culprit)
    if data.draw(st.booleans()):
        scene.work(culprit, "data", kind="data")
    graph = build_graph(scene.snapshot())
    assert find_ends(graph).ranks == (culprit,)
    assert find_ends(graph).knots == ()
    found = edges(graph)
    assert culprit not in found
    assert all(found[victim] for victim in graph.waiting())
    assert Waiters.of(graph).waiting_for([culprit]) == graph.waiting() == set(range(mesh.world_size)) - {culprit}


@settings(deadline=None)
@given(MESHES, st.data())
def test_more_victims_never_change_the_culprit(mesh: Topology, data: st.DataObject) -> None:
    """Any of those who do not wait for it directly may have gone through before; whoever waits, waits for the same."""
    culprit = data.draw(st.integers(0, mesh.world_size - 1))
    found = edges(build_graph(cascade(mesh, culprit).snapshot()))
    direct = {rank for rank, targets in found.items() if culprit in targets}
    gone_through = data.draw(st.sets(st.sampled_from(sorted(found)))) - direct
    scene = cascade(mesh, culprit)
    for rank in gone_through:
        scene.states[rank] = Scene(mesh).states[rank]
        for number, group in scene.groups.items():
            if rank in group.ranks:
                scene.progress(rank, number, 100, 100)
    graph = build_graph(scene.snapshot())
    assert find_ends(graph).ranks == (culprit,)
    assert find_ends(graph).knots == ()
    assert graph.waiting() == set(found) - gone_through


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 12), max_size=4), max_size=13))
def test_components_against_reachability(edges: dict[int, set[int]]) -> None:
    nodes = set(edges) | {to for targets in edges.values() for to in targets}
    reach = {node: {node} for node in nodes}
    for _ in nodes:
        for node in nodes:
            reach[node] |= {far for to in edges.get(node, ()) for far in reach[to]}
    expected = {frozenset(other for other in nodes if other in reach[node] and node in reach[other]) for node in nodes}
    found = components(edges)
    assert {frozenset(part) for part in found} == expected
    place = {node: number for number, part in enumerate(found) for node in part}
    assert all(place[to] <= place[node] for node, targets in edges.items() for to in targets)


def test_a_receive_waits_for_the_kth_send() -> None:
    scene = Scene(Topology.of(pp=2))
    scene.message(1, "recv", 0, 4)
    group = scene.group("pp_forward", (0, 1))
    scene.progress(0, group, 3, 3)
    assert edges(build_graph(scene.snapshot())) == {1: {0}}
    scene.progress(0, group, 4, 3)
    assert edges(build_graph(scene.snapshot())) == {}


def test_in_a_group_of_both_directions_only_a_matching_message_counts() -> None:
    scene = Scene(Topology.of(pp=2))
    scene.message(0, "recv", 1, 1, kind="pp")
    scene.message(1, "recv", 0, 1, kind="pp")
    assert edges(build_graph(scene.snapshot())) == {0: {1}, 1: {0}}
    matched = Scene(Topology.of(pp=2))
    matched.message(0, "recv", 1, 1, kind="pp")
    matched.message(1, "send", 0, 1, kind="pp")
    assert edges(build_graph(matched.snapshot())) == {}


def test_ranks_that_are_not_there_wait_for_nobody_and_are_waited_for() -> None:
    for state in ("gone", "zombie", "exited", "stopped"):
        scene = Scene(Topology.of(dp=3))
        for rank in range(3):
            scene.collective(rank, "dp", 5)
        scene.process(2, state)
        assert edges(build_graph(scene.snapshot())) == {0: {2}, 1: {2}}


def test_a_rank_without_data_is_absent() -> None:
    scene = Scene(Topology.of(dp=3))
    scene.collective(0, "dp", 5)
    scene.collective(1, "dp", 5)
    scene.lose(2)
    snapshot = scene.snapshot()
    assert snapshot.missing == (2,)
    assert edges(build_graph(snapshot)) == {0: {2}, 1: {2}}


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 4095))
def test_thousands_of_ranks_in_one_group_stay_linear(culprit: int) -> None:
    mesh = Topology.of(pp=8, dp=64, tp=8)
    scene = cascade(mesh, culprit)
    snapshot = scene.snapshot()
    began = time.process_time()
    graph = build_graph(snapshot)
    assert find_ends(graph).ranks == (culprit,)
    assert len(Waiters.of(graph).waiting_for([culprit])) == mesh.world_size - 1
    assert time.process_time() - began < 5
