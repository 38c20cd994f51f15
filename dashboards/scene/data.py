"""The 3D page's data: what it shows, at which moment, with its verdict; as JSON for the canvas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...collectors.reading.store import Attempt
from ...profiler.errors import MegascopeError, UsageError
from ...profiler.racks import Racks
from ...viz3d.actions import parse_actions
from ...viz3d.collector import without_collector
from ...viz3d.graph import WaitGraph, build_graph
from ...viz3d.hang import Judged
from ...viz3d.snapshot import take_snapshot
from ...viz3d.states import Snapshot
from ...viz3d.verdict import HangVerdict, State
from ..components import utc
from ..verdicts import attempt_key, hang_of
from ..view import View
from ..workbench import Latest, Workbench
from .history import heartbeat_moments, stacks_in, without_verdict
from .model import Drawn, draw, model_of, moment_of

SHOW_ALL_RANKS = 64
"""Above this many ranks the picture starts with those that matter only, where there is a root."""

EDGE_COLOURS = ("p2p", "compute", "collective", "data", "optimizer", "backward")
"""Names of the style sheet's colours for the groups of the first axis, the second, and so on."""

AROUND = {"all": "all ranks", "involved": "those that matter"}
MOST_TOLD = 1024
"""Of a larger job all ranks are drawn with their states, but only those that matter, and the chosen one, in detail:
what so many have in flight, and their groups, are 40 to 70 kB compressed."""

JUDGED_WITHIN_S = 1.0
"""The page of a job of up to `MOST_TOLD` ranks waits so long for the first verdict: painted before it, the picture has
to be painted again. That of a larger job takes longer, and its page opens at once with what each rank is in."""


@dataclass(frozen=True, slots=True)
class SceneChoice:
    """What the 3D page shows, with the page's defaults filled in."""

    rank: int | None
    axis: str
    around: str
    moment_ns: int | None


def choose_scene(view: View, snapshot: Snapshot, *, is_accused: bool) -> SceneChoice:
    """Fill in what the view leaves open. Raises UsageError for a rank, axis or choice that does not exist."""
    axis = view.axis or "chosen"
    known = dict.fromkeys(["chosen", "all", "none", *snapshot.axes, *(one.kind for one in snapshot.groups.values())])
    if axis not in known:
        raise UsageError(f"The job has no groups of kind {axis!r}. Choose one of {', '.join(known)}.")
    for each in view.along.split(":") if view.along is not None else ():
        if each not in snapshot.axes:
            raise UsageError(f"The mesh has no axis {each!r} to lay along: it has {', '.join(snapshot.axes)}.")
    if view.around is not None and view.around not in AROUND:
        raise UsageError(f"The address has around={view.around!r}. Choose one of {', '.join(AROUND)}.")
    ranks = {*snapshot.states, *snapshot.missing, *snapshot.coordinates}
    if view.rank is not None and view.rank not in ranks:
        raise UsageError(f"The run has no rank {view.rank}: it has {len(ranks)} ranks.")
    around = view.around or ("all" if len(ranks) <= SHOW_ALL_RANKS or not is_accused else "involved")
    return SceneChoice(view.rank, axis, around, view.moment)


def wait_for_verdict_s(attempt: Attempt) -> float:
    """How long the page waits for the first verdict on an attempt before it opens without one, seconds."""
    return JUDGED_WITHIN_S if (attempt.world_size or 0) <= MOST_TOLD else 0.0


def snapshot_of(bench: Workbench, attempt: Attempt, moment_ns: int | None) -> Snapshot:
    """State of all ranks at a moment: the look that is being judged, if one is. Raises MegascopeError without any."""
    looks = bench.looks.of(attempt_key(attempt), moment_ns)
    key = ("snapshot", attempt.run, attempt.attempt, moment_ns)
    snapshot = looks[1] if looks else bench.cached(key, lambda: take_snapshot(bench.store, attempt, moment_ns))
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
    looked_at = {
        int(row["opened_ns"]): [
            int(one["moment_ns"]) for one in parse_actions(row["actions"]) if one.get("action") == "snapshot"
        ]
        for row in incidents_of(bench, attempt)
    }
    opened = max((moment for moment, looks in looked_at.items() if looks), default=max(looked_at, default=None))
    return None if opened is None else max(looked_at[opened], default=opened)


def shown_snapshot(bench: Workbench, attempt: Attempt, view: View) -> Snapshot:
    """The snapshot at the chosen moment, or at the page's own choice."""
    moment = view.moment if view.moment is not None else moment_before_end(bench, attempt)
    return snapshot_of(bench, attempt, moment)


def moments_before(bench: Workbench, attempt: Attempt, moment_ns: int) -> list[int]:
    """Moments to step through, up to a look (see `history.heartbeat_moments`)."""
    key = ("moments before", attempt.run, attempt.attempt, moment_ns)
    return bench.cached(key, lambda: heartbeat_moments(bench.store, attempt, moment_ns))


@dataclass(frozen=True, slots=True)
class ShownScene:
    """The scene that a view shows, and what it was drawn from."""

    choice: SceneChoice
    drawn: Drawn


def scene_of(bench: Workbench, attempt: Attempt, view: View, latest: Latest[Judged]) -> ShownScene:
    """The scene of a verdict, from the very look and graph that it was read from; without one, the shown snapshot's."""
    judged = judged_or_plain(bench, attempt, view, latest)
    assert judged.snapshot is not None
    choice = choose_scene(view, judged.snapshot, is_accused=bool(judged.verdict.culprits))
    beside = () if choice.rank is None else (choice.rank,)
    most = MOST_TOLD if latest.stamp else SHOW_ALL_RANKS
    everyone = choice.around == "all" and count_of(judged.snapshot) <= most
    key = ("drawn", attempt.run, attempt.attempt, view.moment, latest.stamp, everyone, () if everyone else beside)
    return ShownScene(choice, bench.cached(key, lambda: draw(judged, everyone=everyone, beside=beside)))


def judged_or_plain(bench: Workbench, attempt: Attempt, view: View, latest: Latest[Judged]) -> Judged:
    """The judged look; where there is none (yet), the look at the shown moment, in which nobody is accused."""
    judged = latest.value
    if judged is not None and judged.snapshot is not None and judged.snapshot.states:
        return judged
    snapshot = shown_snapshot(bench, attempt, view)
    key = ("plain graph", attempt.run, attempt.attempt, snapshot.moment_ns)
    graph = bench.cached(key, lambda: _graph_of(snapshot))
    none = HangVerdict(attempt.run, attempt.attempt, None, State.INCONCLUSIVE)
    return Judged(none if judged is None else judged.verdict, snapshot, graph)


@without_collector()
def _graph_of(snapshot: Snapshot) -> WaitGraph:
    return build_graph(snapshot)


def count_of(snapshot: Snapshot) -> int:
    """How many ranks the job has."""
    return len({*snapshot.states, *snapshot.missing, *snapshot.coordinates})


def edge_colours(axes: Sequence[str]) -> dict[str, str]:
    """The colour of each axis's groups: by its place in the mesh, whatever its name."""
    return {axis: EDGE_COLOURS[place % len(EDGE_COLOURS)] for place, axis in enumerate(axes)}


def racks_of(racks: Racks | None, snapshot: Snapshot) -> Mapping[str, str] | None:
    """The racks of the job's own hosts; None where no racks are told, or none of these hosts is in one."""
    own = set(snapshot.hosts.values())
    return {host: rack for host, rack in (racks or {}).items() if host in own} or None


def scene_payload(bench: Workbench, attempt: Attempt, view: View) -> bytes:
    """The scene as JSON for the canvas (assets/scene_1_model.js); with ``look`` only what differs at that moment."""
    latest = hang_of(bench, attempt, view.moment, wait_s=0)
    shown = scene_of(bench, attempt, view, latest)
    if view.look is not None:
        at_look = without_verdict(snapshot_of(bench, attempt, view.look), shown.drawn)
        return _as_bytes(moment_of(at_look, shown.drawn.ranks))
    key = ("scene", attempt.run, attempt.attempt, view.moment, latest.stamp, shown.choice)
    return bench.cached(key, lambda: _as_bytes(_whole(bench, attempt, shown, latest)))


def _whole(bench: Workbench, attempt: Attempt, shown: ShownScene, latest: Latest[Judged]) -> dict[str, Any]:
    model, snapshot = model_of(shown.drawn), shown.drawn.snapshot
    if latest.value is None:
        model["verdict"] = None
    return model | {
        "judging": not latest.stamp,
        "run": attempt.run,
        "attempt": attempt.attempt,
        "around": shown.choice.around,
        "colours": edge_colours(snapshot.axes),
        "moments": [str(moment) for moment in moments_before(bench, attempt, snapshot.moment_ns)],
        "stacks": stacks_of(bench, attempt),
        "racks": racks_of(bench.racks, snapshot),
    }


def stacks_of(bench: Workbench, attempt: Attempt) -> dict[str, str]:
    """Rank -> its newest Python stack, as an incident's actions keep it."""
    return stacks_in(incidents_of(bench, attempt))


def _as_bytes(model: dict[str, Any]) -> bytes:
    return json.dumps(model, allow_nan=False, separators=(",", ":")).encode()
