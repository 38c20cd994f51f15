"""What the 3D page draws, compared with a look at the ranks."""

from __future__ import annotations

from playwright.sync_api import Page

from megascope.viz3d.doing import doing_of
from megascope.viz3d.graph import build_graph
from megascope.viz3d.hang import Judged

from .hang_scenes import edges

_NODES = "() => window.megascope.widget('scene').nodes.map(n => [n.rank, n.doing, n.waits, n.culprit])"
_FLOW = """() => {
    const { model } = window.megascope.widget("scene");
    return model.ranks.map((rank) => [rank, model.waitsFor(rank), model.waitersOf(rank)]);
}"""
_FLIGHTS = """() => {
    const { model } = window.megascope.widget("scene");
    return [...model.flights.values()].flat().map((one) => [one.rank, one.segment, one.sequence, one.peer]);
}"""
_PLACES = """() => {
    const { model } = window.megascope.widget("scene");
    return model.ranks.map((rank, at) => [rank, model.hosts[at], model.steps.get(rank) ?? null]);
}"""


def check_scene(page: Page, judged: Judged) -> int:
    """Compare every rank of a drawn scene, all ranks of which are told, with a verdict's look; how many there are.

    Compared are state, host, step, what is in flight with its number and peer, and who waits for whom.
    """
    snapshot = judged.snapshot
    assert snapshot is not None
    graph = build_graph(snapshot) if judged.graph is None else judged.graph
    accused = {rank for culprit in judged.verdict.culprits for rank in culprit.ranks}
    states = snapshot.states
    ranks = sorted({*states, *snapshot.missing, *snapshot.coordinates})
    drawn = page.evaluate(_NODES)
    assert drawn == [[rank, str(doing_of(states.get(rank))), rank in graph.waits, rank in accused] for rank in ranks]
    told = [[rank, snapshot.hosts.get(rank), states[rank].step if rank in states else None] for rank in ranks]
    assert page.evaluate(_PLACES) == told
    flying = [[rank, one.segment, one.sequence, one.peer] for rank in states for one in states[rank].flights]
    assert sorted(page.evaluate(_FLIGHTS), key=str) == sorted(flying, key=str)
    waits_for = edges(graph)
    for rank, waits, waiters in page.evaluate(_FLOW):
        assert waits == sorted(waits_for.get(rank, ())), rank
        assert waiters == sorted(waiter for waiter, others in waits_for.items() if rank in others), rank
    return len(ranks)
