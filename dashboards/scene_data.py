"""The 3D page's data: the scene at a moment with its verdict, as JSON for the canvas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..collectors.store import Attempt
from ..profiler.errors import MegascopeError, UsageError
from ..viz3d.actions import parse_actions
from ..viz3d.figure import Node, Scene, build_scene
from ..viz3d.hang import Judged
from ..viz3d.snapshot import take_snapshot
from ..viz3d.states import Snapshot
from .components import utc
from .heat_data import place_texts, placement_of
from .verdicts import hang_of
from .view import View
from .workbench import Workbench

SHOW_ALL_RANKS = 1024
"""Above this many ranks the picture starts with those involved only."""

EDGE_COLOURS = ("p2p", "compute", "collective", "data", "optimizer", "backward")
"""Names of the style sheet's colours for the groups of the first axis, the second, and so on."""

AROUND = {"all": "all ranks", "involved": "those involved"}


@dataclass(frozen=True, slots=True)
class SceneChoice:
    """What the 3D page shows, with the page's defaults filled in."""

    rank: int | None
    axis: str
    around: str
    moment_ns: int | None


def choose_scene(view: View, attempt: Attempt, snapshot: Snapshot) -> SceneChoice:
    """Fill in what the view leaves open. Raises UsageError for a rank, axis or choice that does not exist."""
    axis = view.axis or "all"
    if axis != "all" and axis not in snapshot.axes:
        raise UsageError(f"The mesh has no axis {axis!r}. Choose one of {', '.join(['all', *snapshot.axes])}.")
    if view.around is not None and view.around not in AROUND:
        raise UsageError(f"The address has around={view.around!r}. Choose one of {', '.join(AROUND)}.")
    ranks = {*snapshot.states, *snapshot.missing}
    if view.rank is not None and view.rank not in ranks:
        raise UsageError(f"The run has no rank {view.rank}: it has {len(ranks)} ranks.")
    around = view.around or ("all" if len(ranks) <= SHOW_ALL_RANKS else "involved")
    return SceneChoice(view.rank, axis, around, view.moment)


def snapshot_of(bench: Workbench, attempt: Attempt, moment_ns: int | None) -> Snapshot:
    """State of all ranks at a moment. Raises MegascopeError where the store has none."""
    key = ("snapshot", attempt.run, attempt.attempt, moment_ns)
    snapshot = bench.cached(key, lambda: take_snapshot(bench.store, attempt, moment_ns))
    if not snapshot.states:
        when = "yet" if moment_ns is None else f"at or before {utc(moment_ns)}"
        raise MegascopeError(f"The store has no heartbeats of this attempt {when}, so no state can be shown.")
    return snapshot


def incidents_of(bench: Workbench, attempt: Attempt) -> list[dict[str, Any]]:
    """What went wrong in the attempt, as the agents noted it."""
    key = ("incidents", attempt.run, attempt.attempt)
    return bench.cached(key, lambda: list(bench.store.read("incidents", attempt).to_pylist()))


def moment_before_end(bench: Workbench, attempt: Attempt) -> int | None:
    """For a job that did not end well: the agent's last look at its newest incident. None shows the newest state.

    After the end all processes are gone, and with them the picture of who waited for whom.
    """
    if attempt.exit_reason in {None, "finished"}:
        return None
    rows = incidents_of(bench, attempt)
    if not rows:
        return None
    newest = max(rows, key=lambda row: int(row["opened_ns"]))
    looks = [int(one["moment_ns"]) for one in parse_actions(newest["actions"]) if one.get("action") == "snapshot"]
    return max(looks, default=int(newest["opened_ns"]))


def shown_snapshot(bench: Workbench, attempt: Attempt, view: View) -> Snapshot:
    """The snapshot at the chosen moment, or at the page's own choice."""
    moment = view.moment if view.moment is not None else moment_before_end(bench, attempt)
    return snapshot_of(bench, attempt, moment)


@dataclass(frozen=True, slots=True)
class ShownScene:
    """The scene that a view shows, and the look at the ranks that it was drawn from."""

    choice: SceneChoice
    snapshot: Snapshot
    scene: Scene


def scene_of(bench: Workbench, attempt: Attempt, view: View, judged: Judged | None) -> ShownScene:
    """The scene of a verdict, from the very look and graph that it was read from; without one, the shown snapshot's."""
    if judged is not None and judged.snapshot is not None and judged.snapshot.states:
        snapshot, graph = judged.snapshot, judged.graph
    else:
        snapshot, graph = shown_snapshot(bench, attempt, view), None
    choice = choose_scene(view, attempt, snapshot)
    verdict = None if judged is None else judged.verdict
    return ShownScene(choice, snapshot, build_scene(snapshot, verdict, choice.rank, graph))


def edge_colours(axes: Sequence[str]) -> dict[str, str]:
    """The colour of each axis's groups: by its place in the mesh, whatever its name."""
    return {axis: EDGE_COLOURS[place % len(EDGE_COLOURS)] for place, axis in enumerate(axes)}


def scene_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """The scene as JSON for the canvas (assets/scene.js)."""
    shown = scene_of(bench, attempt, view, hang_of(bench, attempt, view.moment, wait_s=0.5).value)
    choice, snapshot, scene = shown.choice, shown.snapshot, shown.scene
    edges = {axis: pairs for axis, pairs in scene.edges.items() if choice.axis in {"all", axis}}
    waits: dict[int, list[int]] = {}
    for waiter, other in scene.waits:
        waits.setdefault(waiter, []).append(other)
    places = place_texts(placement_of(bench, attempt), [node.rank for node in scene.nodes])
    payload = {
        "moment": utc(scene.moment_ns),
        "rank": choice.rank,
        "around": choice.around if any(node.involved for node in scene.nodes) else "all",
        "nodes": [
            _node(snapshot, node, place, waits.get(node.rank, []))
            for node, place in zip(scene.nodes, places, strict=True)
        ],
        "axes": [{"name": line.name, "from": line.start, "to": line.end} for line in scene.axes],
        "edges": edges,
        "edge_colours": edge_colours(snapshot.axes),
        "waits": scene.waits,
    }
    return json.dumps(payload, allow_nan=False).encode()


def _node(snapshot: Snapshot, node: Node, place: str, waits_for: list[int]) -> dict[str, Any]:
    state = snapshot.states.get(node.rank)
    return {
        "rank": node.rank,
        "at": node.at,
        "state": node.state,
        "word": node.word,
        "flight": node.flights,
        "involved": node.involved,
        "waits_for": waits_for,
        "step": node.step,
        "process": None if state is None else state.process_state,
        "heartbeat": None if state is None else utc(state.moment_ns),
        "host": snapshot.hosts.get(node.rank),
        "place": place,
    }
