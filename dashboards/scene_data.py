"""The 3D page's data: the scene at a moment with its verdict, as JSON for the canvas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..collectors.store import Attempt
from ..profiler.errors import MegascopeError, UsageError
from ..viz3d.deaths import parse_actions
from ..viz3d.figure import Node, Scene, build_scene
from ..viz3d.hang import diagnose
from ..viz3d.snapshot import Snapshot, take_snapshot
from ..viz3d.verdict import HangVerdict
from .components import utc
from .heat_data import place_text, placement_of
from .view import View
from .workbench import Latest, Workbench

SHOW_ALL_RANKS = 1024
"""Above this many ranks the picture starts with those involved only."""

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


def moment_before_end(bench: Workbench, attempt: Attempt) -> int | None:
    """For a job that did not end well: the agent's last look at its newest incident. None shows the newest state.

    After the end all processes are gone, and with them the picture of who waited for whom.
    """
    if attempt.exit_reason in {None, "finished"}:
        return None
    key = ("incidents", attempt.run, attempt.attempt)
    rows = bench.cached(key, lambda: bench.store.read("incidents", attempt).to_pylist())
    if not rows:
        return None
    newest = max(rows, key=lambda row: int(row["opened_ns"]))
    looks = [int(one["moment_ns"]) for one in parse_actions(newest["actions"]) if one.get("action") == "snapshot"]
    return max(looks, default=int(newest["opened_ns"]))


def shown_snapshot(bench: Workbench, attempt: Attempt, view: View) -> Snapshot:
    """The snapshot at the chosen moment, or at the page's own choice."""
    moment = view.moment if view.moment is not None else moment_before_end(bench, attempt)
    return snapshot_of(bench, attempt, moment)


def verdict_at(bench: Workbench, attempt: Attempt, moment_ns: int | None, wait_s: float) -> Latest[HangVerdict]:
    """The hang verdict of now, or of a past moment."""
    key = ("hang", attempt.run, attempt.attempt, *(() if moment_ns is None else (moment_ns,)))
    return bench.latest(key, lambda: diagnose(bench.store, attempt, now_ns=moment_ns), wait_s=wait_s)


def scene_of(bench: Workbench, attempt: Attempt, view: View, wait_s: float = 0.5) -> tuple[SceneChoice, Scene]:
    """The scene that a view shows."""
    snapshot = shown_snapshot(bench, attempt, view)
    choice = choose_scene(view, attempt, snapshot)
    verdict = verdict_at(bench, attempt, view.moment, wait_s).value
    return choice, build_scene(snapshot, verdict, choice.rank)


def scene_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """The scene as JSON for the canvas (assets/scene.js)."""
    choice, scene = scene_of(bench, attempt, view)
    snapshot = shown_snapshot(bench, attempt, view)
    edges = {axis: pairs for axis, pairs in scene.edges.items() if choice.axis in {"all", axis}}
    waits: dict[int, list[int]] = {}
    for waiter, other in scene.waits:
        waits.setdefault(waiter, []).append(other)
    payload = {
        "moment": utc(scene.moment_ns),
        "rank": choice.rank,
        "around": choice.around if any(node.involved for node in scene.nodes) else "all",
        "nodes": [_node(bench, attempt, snapshot, node, waits.get(node.rank, [])) for node in scene.nodes],
        "axes": [{"name": line.name, "from": line.start, "to": line.end} for line in scene.axes],
        "edges": edges,
        "waits": scene.waits,
    }
    return json.dumps(payload, allow_nan=False).encode()


def _node(bench: Workbench, attempt: Attempt, snapshot: Snapshot, node: Node, waits_for: list[int]) -> dict[str, Any]:
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
        "place": place_text(placement_of(bench, attempt), node.rank),
    }
