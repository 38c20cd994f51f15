"""The scene of a hang: every rank once, its state, the edges of the groups, and who waits for the root."""

from __future__ import annotations

import pytest

from megascope.collectors.reading.store import Store
from megascope.viz3d.figure import NodeState, Scene, build_scene, scene_figure
from megascope.viz3d.hang import diagnose
from megascope.viz3d.snapshot import Snapshot, take_snapshot
from megascope.viz3d.verdict import HangVerdict
from support.synthetic_store import SyntheticJob, write_synthetic_store


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshot, HangVerdict]:
    root = tmp_path_factory.mktemp("stuck") / "store"
    write_synthetic_store(root, SyntheticJob(steps=3, stuck=5))
    with Store(root) as store:
        attempt = store.attempt()
        return take_snapshot(store, attempt), diagnose(store, attempt)


@pytest.fixture(scope="module")
def scene(stuck: tuple[Snapshot, HangVerdict]) -> Scene:
    return build_scene(*stuck)


def test_the_root_is_the_culprit_and_all_others_wait(scene: Scene) -> None:
    assert {node.rank: node.state for node in scene.nodes} == {
        rank: NodeState.CULPRIT if rank == 5 else NodeState.WAITING for rank in range(8)
    }
    assert scene.counts() == {NodeState.CULPRIT: 1, NodeState.WAITING: 7}
    root = scene.nodes[5]
    assert root.word == "at the root in data"
    assert root.flights[0][0] == "data"
    assert (root.flights[0][1] or 0) > 10


def test_every_rank_has_its_own_place(scene: Scene) -> None:
    assert len({node.at for node in scene.nodes}) == 8
    assert {line.name for line in scene.axes} == {"pp", "dp", "tp"}


def test_edges_follow_the_groups(scene: Scene) -> None:
    assert {axis: len(pairs) for axis, pairs in scene.edges.items()} == {"pp": 4, "dp": 4, "tp": 4}
    assert (1, 5) in scene.edges["pp"]
    assert (5, 7) in scene.edges["dp"]
    assert (4, 5) in scene.edges["tp"]


def test_arrows_lead_to_the_root_from_those_who_wait_directly(scene: Scene) -> None:
    assert sorted(scene.waits) == [(1, 5), (4, 5), (7, 5)]


def test_a_chosen_ranks_own_waits_are_shown_too(stuck: tuple[Snapshot, HangVerdict]) -> None:
    snapshot, verdict = stuck
    waits = build_scene(snapshot, verdict, rank=0).waits
    assert {waiter for waiter, _ in waits} == {0, 1, 4, 7}


def test_without_a_verdict_nobody_is_accused(stuck: tuple[Snapshot, HangVerdict]) -> None:
    scene = build_scene(stuck[0])
    assert NodeState.CULPRIT not in scene.counts()
    assert scene.waits == ()
    assert not any(node.involved for node in scene.nodes)


def test_a_rank_without_data_is_shown_as_such(stuck: tuple[Snapshot, HangVerdict]) -> None:
    snapshot, _ = stuck
    states = {rank: state for rank, state in snapshot.states.items() if rank != 3}
    partial = Snapshot(
        snapshot.moment_ns, states, snapshot.groups, snapshot.hosts, snapshot.coordinates, snapshot.axes, (3,)
    )
    node = next(node for node in build_scene(partial).nodes if node.rank == 3)
    assert (node.state, node.word, node.flights, node.step) == (NodeState.MISSING, "no data", (), None)


def test_an_empty_snapshot_gives_an_empty_scene() -> None:
    scene = build_scene(Snapshot(0, {}, {}, {}, {}))
    assert (scene.nodes, scene.axes, scene.waits) == ((), (), ())


def test_the_figure_holds_every_rank_once(scene: Scene) -> None:
    figure = scene_figure(scene)
    markers = [trace for trace in figure.data if trace.mode == "markers"]
    ranks = [rank for trace in markers for rank in trace.customdata]
    assert sorted(ranks) == list(range(8))
    assert {trace.name for trace in markers} == {"culprit (1)", "waiting (7)"}
    assert len({trace.marker.symbol for trace in markers}) == len(markers), "shapes must differ too"
    waits = next(trace for trace in figure.data if trace.name == "waits for")
    assert len(waits.x) == 3 * len(scene.waits)
