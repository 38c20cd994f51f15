"""The picture of a hang: every rank at its place with its state, the groups as edges, and who waits for the roots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from .graph import WaitGraph, build_graph
from .placement import Point, axis_of_dimension, place_ranks
from .states import Flight, RankState, Snapshot
from .verdict import CulpritKind, HangVerdict

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_WAITS = 400
"""Arrows drawn at most; all waits are in the graph."""

AXIS_MARGIN = 0.12
"""How far the axes' lines stand off the ranks, as a share of the picture's longest side."""


class NodeState(StrEnum):
    """What a rank is doing, as the picture shows it."""

    CULPRIT = "culprit"
    GONE = "gone"
    MISSING = "missing"
    WAITING = "waiting"
    WORKING = "working"
    IDLE = "idle"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Node:
    """A rank. ``flights`` are its open segments, the outermost first, with their ages in seconds (None: unknown)."""

    rank: int
    at: Point
    state: NodeState
    word: str
    flights: tuple[tuple[str, float | None], ...]
    step: int | None
    involved: bool


@dataclass(frozen=True, slots=True)
class AxisLine:
    """One dimension of the picture: the mesh's axes along it, and where its line runs."""

    name: str
    start: Point
    end: Point


@dataclass(frozen=True, slots=True)
class Scene:
    """``edges``: axis -> pairs of neighbouring ranks of a group. ``waits``: (who waits, for whom), of the roots."""

    moment_ns: int
    nodes: tuple[Node, ...]
    axes: tuple[AxisLine, ...]
    edges: Mapping[str, tuple[tuple[int, int], ...]]
    waits: tuple[tuple[int, int], ...]

    def counts(self) -> dict[NodeState, int]:
        """How many ranks are in each state."""
        found = Counter(node.state for node in self.nodes)
        return {state: found[state] for state in NodeState if found[state]}


def build_scene(
    snapshot: Snapshot, verdict: HangVerdict | None = None, rank: int | None = None, graph: WaitGraph | None = None
) -> Scene:
    """The picture of a snapshot. ``rank`` is a rank whose own waits are shown beside those for the culprits.

    ``graph`` is what the verdict was read from, as `hang.diagnose_with_graph` gives it with its snapshot; without it
    the waits are taken from the snapshot alone, and know neither mismatches nor what usually runs beside work.
    """
    if graph is None:
        graph = build_graph(snapshot)
    accused = verdict.culprits if verdict is not None else ()
    culprits = {each for culprit in accused for each in culprit.ranks}
    dead = {each for culprit in accused if culprit.kind == CulpritKind.DEAD for each in culprit.ranks}
    everyone = sorted({*snapshot.states, *snapshot.missing, *snapshot.coordinates})
    places = {each: snapshot.coordinates.get(each, {}) for each in everyone}
    points = place_ranks(snapshot.axes, places)
    waits = _waits(graph, culprits, rank)
    edges = _group_edges(snapshot)
    involved = culprits | {each for pair in waits for each in pair} | _neighbours(snapshot, culprits)
    nodes = []
    for each in everyone:
        state = snapshot.states.get(each)
        kind = NodeState.GONE if each in dead else _kind(each, state, graph, culprits)
        flights = () if state is None else _flights(state)
        step = None if state is None else state.step
        marked = each in involved or each == rank
        nodes.append(Node(each, points[each], kind, _word(kind, state), flights, step, marked))
    return Scene(snapshot.moment_ns, tuple(nodes), _axis_lines(snapshot, points), edges, waits)


def _kind(rank: int, state: RankState | None, graph: WaitGraph, culprits: set[int]) -> NodeState:
    if state is not None and state.is_dead:
        return NodeState.GONE
    if rank in culprits:
        return NodeState.CULPRIT
    if state is None:
        return NodeState.MISSING
    if state.has_ended:
        return NodeState.FINISHED
    if rank in graph.waits:
        return NodeState.WAITING
    return NodeState.WORKING if state.flights else NodeState.IDLE


def _word(kind: NodeState, state: RankState | None) -> str:
    """The state in words, with the innermost open segment."""
    innermost = _innermost(state)
    if state is not None and kind in {NodeState.CULPRIT, NodeState.GONE}:
        innermost = state.innermost_work() or innermost  # what it is stuck in, not what runs beside that
    where = f" in {innermost.segment}" if innermost is not None else ""
    return {
        NodeState.CULPRIT: f"at the root{where}",
        NodeState.GONE: f"process gone{where}",
        NodeState.MISSING: "no data",
        NodeState.WAITING: f"waits{where}",
        NodeState.WORKING: f"works{where}",
        NodeState.IDLE: "nothing in flight",
        NodeState.FINISHED: "ended",
    }[kind]


def _innermost(state: RankState | None) -> Flight | None:
    if state is None:
        return None
    return max(state.flights, key=lambda flight: flight.begun_ns or 0, default=None)


def _flights(state: RankState) -> tuple[tuple[str, float | None], ...]:
    return tuple(
        (flight.segment, None if flight.begun_ns is None else max(0.0, (state.moment_ns - flight.begun_ns) / 1e9))
        for flight in state.flights
    )


def _waits(graph: WaitGraph, culprits: set[int], rank: int | None) -> tuple[tuple[int, int], ...]:
    """Direct waits for the culprits, then those of the chosen rank; each pair once, `MAX_WAITS` at most."""
    found: dict[tuple[int, int], None] = {}
    for waiter, waits in graph.waits.items():
        for wait in waits:
            wanted = wait.operation.absent if waiter == rank else culprits.intersection(wait.operation.absent)
            for other in wanted:
                if other != waiter:
                    found[waiter, other] = None
                if len(found) >= MAX_WAITS:
                    return tuple(found)
    return tuple(found)


def _group_edges(snapshot: Snapshot) -> dict[str, tuple[tuple[int, int], ...]]:
    """Neighbours in every group along an axis of the mesh."""
    edges: dict[str, list[tuple[int, int]]] = {}
    for group in snapshot.groups.values():
        if group.kind in snapshot.axes:
            edges.setdefault(group.kind, []).extend(zip(group.ranks, group.ranks[1:], strict=False))
    return {axis: tuple(pairs) for axis, pairs in edges.items()}


def _neighbours(snapshot: Snapshot, ranks: Iterable[int]) -> set[int]:
    wanted = set(ranks)
    groups = (group.ranks for group in snapshot.groups.values() if group.kind in snapshot.axes)
    return {each for members in groups if wanted.intersection(members) for each in members}


def _axis_lines(snapshot: Snapshot, points: Mapping[int, Point]) -> tuple[AxisLine, ...]:
    if not points:
        return ()
    sizes = {
        axis: 1 + max((place.get(axis) or 0 for place in snapshot.coordinates.values()), default=0)
        for axis in snapshot.axes
    }
    low = [min(point[dimension] for point in points.values()) for dimension in range(3)]
    high = [max(point[dimension] for point in points.values()) for dimension in range(3)]
    margin = AXIS_MARGIN * max(1.0, *(end - start for start, end in zip(low, high, strict=True)))
    low = [value - margin for value in low]
    lines = []
    for dimension, name in enumerate(axis_of_dimension(snapshot.axes, sizes)):
        if name:
            end = [*low]
            end[dimension] = high[dimension] + margin
            lines.append(AxisLine(name, (low[0], low[1], low[2]), (end[0], end[1], end[2])))
    return tuple(lines)


_SYMBOLS = {
    NodeState.CULPRIT: ("diamond", "#d55e00", 9),
    NodeState.GONE: ("x", "#d55e00", 8),
    NodeState.MISSING: ("circle-open", "#8a8a8a", 5),
    NodeState.WAITING: ("square", "#e69f00", 5),
    NodeState.WORKING: ("circle", "#0072b2", 5),
    NodeState.IDLE: ("square-open", "#7d8790", 4),
    NodeState.FINISHED: ("circle", "#0b6e4f", 4),
}


def scene_figure(scene: Scene) -> go.Figure:
    """The scene as a Plotly figure, for notebooks: one trace a state, one an axis, one for the waits.

    Raises ModuleNotFoundError where plotly is not installed (the extra ``dashboards`` brings it).
    """
    import plotly.graph_objects as go  # noqa: PLC0415 - analysis works without plotly

    at = {node.rank: node.at for node in scene.nodes}
    figure = go.Figure()
    for axis, pairs in scene.edges.items():
        figure.add_trace(_lines(f"{axis} groups", at, pairs, width=1, colour="#b0b8c0"))
    if scene.waits:
        figure.add_trace(_lines("waits for", at, scene.waits, width=4, colour="#d55e00"))
    for state, (symbol, colour, size) in _SYMBOLS.items():
        nodes = [node for node in scene.nodes if node.state == state]
        if nodes:
            figure.add_trace(
                go.Scatter3d(
                    x=[node.at[0] for node in nodes],
                    y=[node.at[1] for node in nodes],
                    z=[node.at[2] for node in nodes],
                    mode="markers",
                    name=f"{state} ({len(nodes)})",
                    marker={"symbol": symbol, "color": colour, "size": size},
                    customdata=[node.rank for node in nodes],
                    hovertext=[f"rank {node.rank}: {node.word}" for node in nodes],
                    hoverinfo="text",
                )
            )
    titles = {name: {"title": line.name} for name, line in zip(("xaxis", "yaxis", "zaxis"), scene.axes, strict=False)}
    figure.update_layout(scene=titles, margin={"l": 0, "r": 0, "t": 0, "b": 0})
    return figure


def _lines(
    name: str, at: Mapping[int, Point], pairs: Iterable[tuple[int, int]], *, width: int, colour: str
) -> go.Scatter3d:
    import plotly.graph_objects as go  # noqa: PLC0415 - analysis works without plotly

    coordinates: list[list[float | None]] = [[], [], []]
    for one, other in pairs:
        if one in at and other in at:
            for dimension in range(3):
                coordinates[dimension] += [at[one][dimension], at[other][dimension], None]
    x, y, z = coordinates
    line = {"width": width, "color": colour}
    return go.Scatter3d(x=x, y=y, z=z, mode="lines", name=name, line=line, hoverinfo="skip")
