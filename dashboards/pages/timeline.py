"""Timeline: the spans of a rank and its group, lane by lane, with what leads from one to another."""

from __future__ import annotations

import json

from dash import html
from dash.development.base_component import Component

from ...collectors.reading.store import Attempt
from ...profiler.errors import MegascopeError
from ..absence import pruned_texts
from ..components import Rendered, controls, data, field, hint, select, utc, widget
from ..moments import step_moments
from ..perfetto import perfetto_folder
from ..shell import job_controls
from ..spans.beside import beside_of
from ..spans.choice import ALONE, EVERYONE, NEAREST_RANKS, SpanChoice, choose_spans
from ..spans.stamp import has_spans, spans_stamp
from ..spans.steps import step_bounds
from ..verdicts import verdict_banners
from ..view import View, moment_text, ranks_text
from ..workbench import Workbench
from .page import Page

HEIGHT_PX = 446
LEGEND = {
    "compute": "forward, other compute",
    "backward": "backward",
    "collective": "collective",
    "p2p": "send, receive",
    "data": "data",
    "optimizer": "optimizer",
    "other": "other",
}

SWITCHES = {
    "waiting": (
        "waiting (h)",
        "Hatched: waiting, for all to arrive or for communication to end. Click to hide or show",
    ),
    "arrows": (
        "arrows (x)",
        "From send to receive, and from the last arrival to who waited for it. Click to hide or show",
    ),
    "path": ("critical path (c)", "The longest chain to the end of the shown steps. Click to hide or show"),
}

KEYS = {
    "W, S": "zoom in, out",
    "A, D or arrow left, right": "move left, right",
    "arrow up, down": "scroll",
    "0 or Home": "the chosen steps",
    "O": "the whole run",
    "F": "fit all lanes to the screen, or not",
    "[ and ]": "earlier, later steps",
    "/": "search: name, kind, axis, rank:5, step:7, mb:3, peer:2",
    "N, Shift+N": "next, previous match",
    "H, X, C": "hide or show waiting, arrows, critical path",
    "wheel": "zoom; with Shift scroll",
    "drag": "move",
    "double click": "zoom to a span or a step",
    "? and Esc": "show, close this list",
}


def frame(view: View, bench: Workbench) -> Component:
    """Run, attempt, rank, which group of it, steps or times, what to lay beside, search."""
    attempt = bench.attempt(view)
    choice = choose_spans(view, bench, attempt)
    own = controls(
        [
            field("rank", "rank", str(choice.rank)),
            select("axis", "show", _axes(attempt, choice), choice.axis),
        ],
        clears=("t", "scroll", "ranks"),
    )
    named = controls(
        [field("ranks", "or these ranks", ranks_text(view.ranks), placeholder="0,5,8-15")],
        clears=("t", "scroll", "axis"),
    )
    steps = controls(
        [
            field(
                "steps",
                "steps",
                "" if view.steps is None else _range(view.steps),
                placeholder="newest",
                hint=f"A step or a range between {choice.first_step} and {choice.last_step}",
            ),
            field("since", "or since (UTC)", moment_text(view.since), placeholder=_began(bench, attempt)),
            field("until", "until (UTC)", moment_text(view.until), placeholder="now"),
        ],
        clears=("t",),
    )
    beside = controls(
        [
            field(
                "beside",
                "beside it",
                view.beside or "",
                placeholder="step",
                hint="A second view: STEP, ATTEMPT:STEP or ATTEMPT:STEP:RUN, aligned at the start of the step",
            )
        ]
    )
    return job_controls(view, bench, own, named, steps, beside, *_search(view))


def _search(view: View) -> list[Component]:
    search = controls(
        [
            field("find", "search (/)", view.find or "", placeholder="name or kind"),
            html.Button("Previous", type="button", **data(action="timeline-previous")),
            html.Button("Next", type="button", **data(action="timeline-next")),
            html.Span(id="find-count", className="hint"),
        ],
        manual=True,
    )
    moves = html.Div(
        [
            html.Button("Chosen steps (0)", type="button", **data(action="timeline-reset")),
            html.Button("Whole run (o)", type="button", **data(action="timeline-run")),
            html.Button("Fit lanes (f)", type="button", **data(action="timeline-fit")),
        ],
        className="buttons",
    )
    keys = html.Details(
        [html.Summary("Keys (?)"), html.Ul([html.Li(f"{key}: {text}") for key, text in KEYS.items()])], id="keys"
    )
    return [html.Div(search), moves, keys]


def _began(bench: Workbench, attempt: Attempt) -> str:
    moments = step_moments(bench, attempt)
    return moment_text(int(moments.began_ns[0]) // 10**9 * 10**9) if len(moments.steps) else ""


def _axes(attempt: Attempt, choice: SpanChoice) -> dict[str, str]:
    groups = {axis: f"its {axis.upper()} group ({_many(size)})" for axis, size in attempt.layout.items() if size > 1}
    named = {} if choice.axis else {"": f"{len(choice.ranks)} named rank{'s' if len(choice.ranks) != 1 else ''}"}
    everyone = {EVERYONE: f"all ({_many(attempt.world_size)})"} if attempt.world_size else {EVERYONE: "all"}
    return {**named, **groups, **everyone, ALONE: "this rank only"}


def _many(size: int) -> str:
    if size == 1:
        return "1 rank"
    return f"{size} ranks" if size <= NEAREST_RANKS else f"{NEAREST_RANKS} of {size} ranks"


def _range(steps: tuple[int, int]) -> str:
    return str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}:{steps[1]}"


def body(view: View, bench: Workbench) -> Rendered:
    """The canvas, the one beside it, and their legend."""
    attempt = bench.attempt(view)
    banners, awaited = verdict_banners(bench, attempt, view)
    choice = choose_spans(view, bench, attempt)
    shown = _shown(attempt, choice)
    legend = [html.Span([html.I(style={"background": f"var(--{colour})"}), text]) for colour, text in LEGEND.items()]
    switches = [
        html.Button(
            [html.I(className=f"mark-{name}"), text], type="button", title=help_text, **data(action=f"timeline-{name}")
        )
        for name, (text, help_text) in SWITCHES.items()
    ]
    exports = _exports(shown) if has_spans(bench, attempt, choice) else []
    other = beside_of(view)
    height = HEIGHT_PX if other is None else HEIGHT_PX // 2 - 14
    children = [
        html.Div([*legend, *switches], className="legend"),
        _widget("timeline", bench, attempt, choice, height),
        html.Div(id="timeline-note", className="hint"),
        *(_second(other, bench, height) if other is not None else ()),
        html.Div([*exports, *_step_links(choice)], className="legend"),
        hint(_where(bench, attempt, choice)),
        *(hint(text) for text in pruned_texts(bench, attempt, ("events",), choice.steps[0])),
    ]
    return Rendered(banners, children, awaited, str(choice.rank))


def _widget(kind: str, bench: Workbench, attempt: Attempt, choice: SpanChoice, height: int) -> Component:
    """A canvas whose source changes with what its spans depend on, and whose marks tell the store's version."""
    source = f"{_shown(attempt, choice).url('/data/spans')}&v={spans_stamp(bench, attempt, choice)}"
    return widget(kind, source, height=height, marks=json.dumps({"version": bench.stamp()}))


def _shown(attempt: Attempt, choice: SpanChoice) -> View:
    return View(
        run=attempt.run,
        attempt=attempt.attempt,
        rank=choice.rank,
        axis=choice.axis or None,
        ranks=() if choice.axis else choice.ranks,
        steps=choice.steps,
    )


def _second(other: View, bench: Workbench, height: int) -> list[Component]:
    """The second canvas under a line that says what it shows; an error is said there, and leaves the first alone."""
    try:
        attempt = bench.attempt(other)
        choice = choose_spans(other, bench, attempt)
    except MegascopeError as error:
        return [hint(f"Nothing can be shown beside it: {error}")]
    close = html.Button("Close", id="beside-close", type="button", **data(action="timeline-alone"))
    text = f"Beside it: {attempt.run}, attempt {attempt.attempt}, step {choice.steps[0]}, from the same start. "
    return [
        hint(text, close),
        _widget("timeline-beside", bench, attempt, choice, height),
        html.Div(id="timeline-note-beside", className="hint"),
    ]


def _exports(shown: View) -> list[Component]:
    export = html.A("export for Perfetto", href=shown.url("/export/timeline.json"), download="")
    if perfetto_folder() is not None:
        return [
            html.Button("Open in Perfetto", type="button", id="open-perfetto", **data(action="timeline-perfetto")),
            export,
        ]
    how = "(open the file at ui.perfetto.dev, or install megascope[perfetto] to open it here, offline)"
    return [export, html.Span(how)]


def _step_links(choice: SpanChoice) -> list[Component]:
    """Buttons to the steps before and after, as many as are shown; the script keeps all else in the address."""
    size = choice.steps[1] - choice.steps[0] + 1
    earlier = (choice.steps[0] - size, choice.steps[1] - size)
    later = (choice.steps[0] + size, choice.steps[1] + size)
    buttons: list[Component] = []
    if earlier[0] >= choice.first_step:
        attributes = data(action="timeline-earlier", steps=_range(earlier))
        buttons.append(html.Button("< earlier ([)", id="step-earlier", type="button", **attributes))
    if later[1] <= choice.last_step:
        attributes = data(action="timeline-later", steps=_range(later))
        buttons.append(html.Button("later (]) >", id="step-later", type="button", **attributes))
    return buttons


def _where(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> str:
    groups = {**{axis: f"the {axis.upper()} group of rank {choice.rank}" for axis in attempt.layout}, EVERYONE: "all"}
    group = groups.get(choice.axis, "chosen")
    if choice.group_size > len(choice.ranks):
        group = f"the nearest {len(choice.ranks)} of {choice.group_size} ranks in {group}; name others to see them"
    steps = "step" if choice.steps[0] == choice.steps[1] else "steps"
    ranks = f"Rank{'s' if len(choice.ranks) != 1 else ''} {ranks_text(choice.ranks, 12)}"
    shown = f"{ranks} ({group}), {steps} {_range(choice.steps)}"
    return shown + _when(bench, attempt, choice) + "."


def _when(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> str:
    bounds = step_bounds(bench, attempt, choice)
    if bounds is None:
        return ""
    clock = "on the reference host's clock" if bounds.is_aligned else "by their own clocks where those are not known"
    first, last = (utc(moment, seconds_only=False) for moment in (bounds.first_ns, bounds.last_ns))
    return f", from {first} to {last}, {clock}"


PAGE = Page("/timeline", "Timeline", frame, body)
