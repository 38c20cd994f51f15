"""Timeline: the spans of a rank and its group, lane by lane, with arrows from send to receive."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.store import Attempt
from ..absence import pruned_texts
from ..components import Rendered, controls, data, field, hint, select, widget
from ..shell import job_controls
from ..span_choice import ALONE, NEAREST_RANKS, SpanChoice, choose_spans
from ..verdicts import verdict_banners
from ..view import View, ranks_text
from ..workbench import Workbench
from .page import Page

LEGEND = {
    "compute": "forward and other compute",
    "backward": "backward",
    "collective": "collective",
    "p2p": "send, receive",
    "data": "data",
    "optimizer": "optimizer",
    "other": "other",
}

KEYS = {
    "W, S": "zoom in, out",
    "A, D": "move left, right",
    "arrow up, down": "scroll",
    "0": "show all",
    "/": "search",
    "N, Shift+N": "next, previous match",
    "wheel": "zoom; with Shift scroll",
    "drag": "move",
    "double click": "zoom to a span",
}


def frame(view: View, bench: Workbench) -> Component:
    """Run, attempt, rank, which group of it, steps, search."""
    attempt = bench.attempt(view)
    choice = choose_spans(view, bench, attempt)
    own = controls(
        [
            field("rank", "rank", str(choice.rank)),
            select("axis", "show", _axes(attempt, choice), choice.axis),
            field(
                "steps",
                "steps",
                "" if view.steps is None else _range(view.steps),
                placeholder="newest",
                hint=f"A step or a range between {choice.first_step} and {choice.last_step}",
            ),
        ],
        clears=("t", "scroll", "ranks"),
    )
    named = controls(
        [field("ranks", "or these ranks", ranks_text(view.ranks), placeholder="0,5,8-15")],
        clears=("t", "scroll", "axis"),
    )
    search = html.Div(
        controls(
            [
                field("find", "search (/)", view.find or "", placeholder="name or kind"),
                html.Button("Next", type="button", **data(action="timeline-next")),
                html.Span(id="find-count", className="hint"),
                html.Button("Show all (0)", type="button", **data(action="timeline-reset")),
            ],
            manual=True,
        ),
    )
    keys = html.Details(
        [html.Summary("Keys (?)"), html.Ul([html.Li(f"{key}: {text}") for key, text in KEYS.items()])], id="keys"
    )
    return job_controls(view, bench, own, named, search, keys)


def _axes(attempt: Attempt, choice: SpanChoice) -> dict[str, str]:
    groups = {axis: f"its {axis.upper()} group ({_many(size)})" for axis, size in attempt.layout.items() if size > 1}
    named = {} if choice.axis else {"": f"{len(choice.ranks)} named ranks"}
    return {**named, **groups, ALONE: "this rank only"}


def _many(size: int) -> str:
    return f"{size} ranks" if size <= NEAREST_RANKS else f"{NEAREST_RANKS} of {size} ranks"


def _range(steps: tuple[int, int]) -> str:
    return str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}:{steps[1]}"


def body(view: View, bench: Workbench) -> Rendered:
    """The canvas, its legend and its keys."""
    attempt = bench.attempt(view)
    banners, awaited = verdict_banners(bench, attempt, view)
    choice = choose_spans(view, bench, attempt)
    shown = View(
        run=attempt.run,
        attempt=attempt.attempt,
        rank=choice.rank,
        axis=choice.axis or None,
        ranks=() if choice.axis else choice.ranks,
        steps=choice.steps,
    )
    legend = [html.Span([html.I(style={"background": f"var(--{colour})"}), text]) for colour, text in LEGEND.items()]
    export = html.A("export for Perfetto", href=shown.url("/export/timeline.json"), download="")
    children = [
        html.Div([*legend, export, *_step_links(view, choice)], className="legend"),
        widget("timeline", f"{shown.url('/data/spans')}&v={bench.stamp()}", height=470),
        hint(f"Times are on the reference host's clock. {_where(attempt, choice)}"),
        *(hint(text) for text in pruned_texts(bench, attempt, ("events",), choice.steps[0])),
    ]
    return Rendered(banners, children, awaited, str(choice.rank))


def _step_links(view: View, choice: SpanChoice) -> list[Component]:
    size = choice.steps[1] - choice.steps[0] + 1
    earlier = (choice.steps[0] - size, choice.steps[1] - size)
    later = (choice.steps[0] + size, choice.steps[1] + size)
    links: list[Component] = []
    if earlier[0] >= choice.first_step:
        links.append(dcc.Link("< earlier", href=view.url("/timeline", rank=choice.rank, steps=earlier, t=None)))
    if later[1] <= choice.last_step:
        links.append(dcc.Link("later >", href=view.url("/timeline", rank=choice.rank, steps=later, t=None)))
    return links


def _where(attempt: Attempt, choice: SpanChoice) -> str:
    group = f"the {choice.axis.upper()} group of rank {choice.rank}" if choice.axis in attempt.layout else "chosen"
    if choice.group_size > len(choice.ranks):
        group = f"the nearest {len(choice.ranks)} of {choice.group_size} ranks in {group}; name others to see them"
    steps = "step" if choice.steps[0] == choice.steps[1] else "steps"
    return f"Ranks {ranks_text(choice.ranks, 12)} ({group}), {steps} {_range(choice.steps)}."


PAGE = Page("/timeline", "Timeline", frame, body)
