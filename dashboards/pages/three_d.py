"""3D: every rank at its place in the mesh with what it is in, who waits for whom, and the hang verdict beside it."""

from __future__ import annotations

from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.store import Attempt
from ...viz3d.figure import NodeState, Scene
from ...viz3d.hang import Judged
from ...viz3d.verdict import describe
from ..components import Rendered, controls, field, hint, number, select, table, utc, widget
from ..scene_data import (
    AROUND,
    SceneChoice,
    ShownScene,
    choose_scene,
    edge_colours,
    incidents_of,
    moment_before_end,
    scene_of,
    shown_snapshot,
    snapshot_of,
)
from ..shell import job_controls
from ..verdicts import hang_of, peer_axis, straggler_banner, verdict_banner
from ..view import View
from ..workbench import Workbench
from .page import Page

BEFORE_S = (5, 10, 30, 60, 300, 1800)
KEYS = "Drag: turn (Shift: move), wheel: zoom, double click: reset, click: a rank."
LEGEND = {
    NodeState.CULPRIT: ("◆", "fault", "at the root"),
    NodeState.GONE: ("✖", "fault", "process gone"),
    NodeState.WAITING: ("▲", "collective", "waits for others"),
    NodeState.WORKING: ("●", "compute", "works"),
    NodeState.IDLE: ("□", "other", "nothing in flight"),
    NodeState.FINISHED: ("■", "good", "ended"),
    NodeState.MISSING: ("○", "quiet", "no data"),
}


def frame(view: View, bench: Workbench) -> Component:
    """Run, attempt, moment, edges, which ranks, chosen rank."""
    attempt = bench.attempt(view)
    snapshot = shown_snapshot(bench, attempt, view)
    choice = choose_scene(view, attempt, snapshot)
    moments = _moments(bench, attempt, view.moment)
    axes = {"all": "all groups", **{axis: f"{axis.upper()} groups" for axis in snapshot.axes}}
    own = controls(
        [
            select("moment", "moment", moments, str(view.moment or "")),
            select("axis", "edges", axes, choice.axis),
            select("around", "ranks shown", AROUND, choice.around),
            field("rank", "rank", "" if view.rank is None else str(view.rank), placeholder="none"),
        ]
    )
    return job_controls(view, bench, own)


def _moments(bench: Workbench, attempt: Attempt, chosen: int | None) -> dict[str, str]:
    """Moments to choose from: the newest heartbeats, some before them, and when incidents were opened.

    Where the job did not end well, the last look before its end comes first.
    """
    newest = snapshot_of(bench, attempt, None).moment_ns
    before_end = moment_before_end(bench, attempt)
    options = {"": f"newest: {utc(newest)}"}
    if before_end is not None:
        options = {"": f"before the end: {utc(before_end)}", str(newest): f"newest: {utc(newest)}"}
    for before in BEFORE_S:
        moment = newest - before * 10**9
        if attempt.start_ns is None or moment > attempt.start_ns:
            options[str(moment)] = f"{before} s before: {utc(moment)}"
    for row in incidents_of(bench, attempt):
        options[str(row["opened_ns"])] = f"incident {row['kind']}: {utc(row['opened_ns'])}"
    if chosen is not None:
        options.setdefault(str(chosen), utc(chosen))
    return options


def _moments_key(bench: Workbench, attempt: Attempt) -> str:
    """What there is to choose beside the moments that run on: changes when an incident is opened or the job ends."""
    return f"{moment_before_end(bench, attempt)}|{len(incidents_of(bench, attempt))}"


def body(view: View, bench: Workbench) -> Rendered:
    """The verdict, the picture, and beside it the roots and the chosen rank in words."""
    attempt = bench.attempt(view)
    latest = hang_of(bench, attempt, view.moment)
    verdict, slow = verdict_banner(latest), straggler_banner(bench, attempt, view)
    banners, awaited = [verdict.banner], verdict.awaited
    if view.moment is None:  # who is slow is judged by all steps, not by one moment
        banners += [slow.banner] if slow.tone == "bad" else []
        awaited = max(awaited, slow.awaited)
    shown = scene_of(bench, attempt, view, latest.value)
    choice, scene = shown.choice, shown.scene
    source = View(
        run=attempt.run,
        attempt=attempt.attempt,
        rank=choice.rank,
        axis=view.axis,
        around=view.around,
        moment=view.moment,
    ).url("/data/scene")
    picture = [
        html.Div([*_legend(scene), *_edge_legend(shown)], className="legend"),
        widget("scene", f"{source}&v={bench.stamp()}&verdict={latest.stamp}", height=470),
        hint(f"State at {utc(scene.moment_ns)}. {KEYS}"),
    ]
    side = [*_chosen(view, attempt, choice, scene), *_roots(view, attempt, latest.value, scene)]
    return Rendered(
        banners,
        html.Div([html.Div(picture), html.Div(side, className="side")], className="split"),
        awaited,
        _moments_key(bench, attempt),
    )


def _legend(scene: Scene) -> list[Component]:
    counts = scene.counts()
    return [
        html.Span([html.Span(sign + " ", style={"color": f"var(--{colour})"}), f"{text}: {counts[state]}"])
        for state, (sign, colour, text) in LEGEND.items()
        if state in counts
    ]


def _edge_legend(shown: ShownScene) -> list[Component]:
    return [
        html.Span([html.I(className="edge", style={"background": f"var(--{colour})"}), f"{axis} groups"])
        for axis, colour in edge_colours(shown.snapshot.axes).items()
        if axis in shown.scene.edges and shown.choice.axis in {"all", axis}
    ]


def _roots(view: View, attempt: Attempt, judged: Judged | None, scene: Scene) -> list[Component]:
    if judged is None:
        return []
    verdict = judged.verdict
    parts: list[Component] = []
    for culprit in verdict.culprits[:10]:
        parts.append(html.H2(describe(culprit)))
        parts.append(html.Ul([html.Li(evidence.statement) for evidence in culprit.evidence], className="plain"))
        node = next((node for node in scene.nodes if node.rank == culprit.ranks[0]), None)
        parts.append(_timeline_link(view, attempt, culprit.ranks[0], None if node is None else node.step))
    notes = []
    if verdict.unexplained:
        notes.append(f"Not explained: ranks {', '.join(map(str, verdict.unexplained[:20]))}.")
    if verdict.missing:
        notes.append(f"Without data: ranks {', '.join(map(str, verdict.missing[:20]))}.")
    notes += [f"Not judged, {one.signal}: {one.reason}." for one in verdict.abstained]
    if notes:
        parts += [html.H2("What the data cannot tell"), html.Ul([html.Li(note) for note in notes], className="plain")]
    return parts


def _chosen(view: View, attempt: Attempt, choice: SceneChoice, scene: Scene) -> list[Component]:
    """What the chosen rank is in, for how long, and for whom it waits."""
    if choice.rank is None:
        return [hint("Click on a rank to see what it is in, for how long, and for whom it waits.")]
    node = next(node for node in scene.nodes if node.rank == choice.rank)
    rows: list[dict[str, Any]] = [
        {"segment": name, "age": None if age is None else f"{number(age)} s"} for name, age in node.flights
    ]
    waits = [other for waiter, other in scene.waits if waiter == choice.rank]
    return [
        html.H2(f"Rank {choice.rank}: {node.word}"),
        table({"segment": "in flight, outermost first", "age": "for"}, rows, numbers=("age",), name="chosen-flight")
        if rows
        else hint("Nothing is in flight."),
        hint(f"It waits for rank {', '.join(map(str, waits[:12]))}." if waits else "It waits for no rank."),
        _timeline_link(view, attempt, choice.rank, node.step),
    ]


def _timeline_link(view: View, attempt: Attempt, rank: int, step: int | None) -> Component:
    steps = None if step is None else (max(0, step - 1), step)
    href = view.same_job().url("/timeline", rank=rank, axis=peer_axis(attempt), steps=steps)
    return html.P(dcc.Link(f"rank {rank} in the timeline", href=href))


PAGE = Page("/3d", "3D", frame, body)
