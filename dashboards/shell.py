"""What surrounds every page: the bar with navigation, age of the data and switches, and the run selector."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from ..collectors.reading.store import Attempt
from .components import controls, data, select, utc
from .view import View
from .workbench import Workbench

TICK_MS = 2000
PENDING_TICK_MS = 400
_OF_AN_ATTEMPT = ("steps", "since", "until", "zoom", "t", "moment")
"""Parameters that mean nothing in another attempt."""
_OF_A_RANK = ("/timeline", "/3d")
"""Pages that show one rank among the others."""


def app_layout() -> Component:
    """The parts that stay while pages come and go."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Interval(id="tick", interval=TICK_MS),
            dcc.Store(id="shown"),
            html.Header(
                [
                    html.Span("megascope", className="brand"),
                    html.Nav(id="nav"),
                    html.Span(id="age", className="age", title="Age of the newest heartbeat or span in the store"),
                    html.Button("Pause", id="pause", title="Stop or go on following the store"),
                    html.Button("Light / dark", **data(action="theme")),
                ],
                className="bar",
            ),
            html.Button(id="again", hidden=True),
            html.Main([html.Div(id="banner"), html.Div(id="frame"), html.Div(id="body")]),
        ]
    )


def navigation(pages: dict[str, str], here: str, view: View) -> list[Component]:
    """Links to all pages (path to name) that keep run and attempt, and the rank where both pages show one."""
    job = view.same_job()
    return [
        dcc.Link(
            name,
            href=job.url(path, rank=view.rank if path in _OF_A_RANK else None),
            className="here" if path == here else "",
            id=f"nav-{name.lower()}",
        )
        for path, name in pages.items()
    ]


def job_controls(view: View, bench: Workbench, *more: Component) -> Component:
    """A form with the run and the attempt, and a page's own fields after them."""
    attempt = bench.attempt(view)
    known = bench.store.attempts()
    runs = {each.run: each.run for each in reversed(known)}
    numbers = {str(each.attempt): _attempt_label(each) for each in reversed(known) if each.run == attempt.run}
    return html.Div(
        [
            controls(
                [select("run", "run", runs, attempt.run)],
                clears=(
                    "attempt",
                    *_OF_AN_ATTEMPT,
                    "segment",
                    "order",
                    "group",
                    "rank",
                    "axis",
                    "ranks",
                    "scroll",
                    "camera",
                ),
            ),
            controls(
                [select("attempt", "attempt", numbers, str(attempt.attempt))],
                clears=_OF_AN_ATTEMPT,
            ),
            *more,
        ],
        className="control-row",
    )


def jobs_key(bench: Workbench, attempt: Attempt) -> str:
    """What `job_controls` shows, as a key: a restart or an end changes it, and the controls are drawn again."""
    known = [(each.run, each.attempt, each.exit_reason) for each in bench.store.attempts()]
    return f"{hash((attempt.run, attempt.attempt, *known)) & 0xFFFFFFFF:x}"


def _attempt_label(attempt: Attempt) -> str:
    return f"{attempt.attempt}: {attempt.exit_reason or 'not ended'}, from {utc(attempt.start_ns)}"


def age_text(bench: Workbench, attempt: Attempt, counter: int) -> tuple[str, str, str]:
    """(text, data-age, data-newest): how old the newest data are.

    The second and third let the browser count on between answers; they are empty once the attempt has ended.
    """
    moment = bench.store.last_moment_ns(attempt)
    if attempt.end_ns is not None:
        return f"{attempt.exit_reason or 'ended'} {utc(attempt.end_ns)}", "", ""
    if moment is not None and "imported" in attempt.configuration:
        return f"recorded until {utc(moment)}", "", ""
    age = bench.store.data_age_s(attempt)
    if age is None:
        return "no data yet", "", ""
    return f"data {age:.0f} s old (newest {utc(moment)})", f"{max(age, 0):.3f}|{counter}", utc(moment)
