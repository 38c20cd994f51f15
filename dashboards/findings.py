"""What a straggler verdict says beyond its culprits: early warnings, and who was waited for."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from ..collectors.reading.store import Attempt
from ..heatmap.verdict import StragglerVerdict
from ..heatmap.waited_row import WaitedBasis, WaitedFor
from .components import hint, number, table
from .verdicts import peer_axis
from .view import View

LISTED = 3
"""Rows of a table here: the costliest; `megascope stragglers` has all."""


def verdict_details(verdict: StragglerVerdict | None, attempt: Attempt, view: View) -> list[Component]:
    """Early warnings and who was waited for, as far as the verdict has them."""
    if verdict is None:
        return []
    parts: list[Component] = []
    if verdict.warnings:
        parts.append(html.H2("Early warnings (nobody is accused)"))
        lines = [f"{one.sentence()[0].upper()}{one.sentence()[1:]}." for one in verdict.warnings[:LISTED]]
        if (more := len(verdict.warnings) - LISTED) > 0:
            lines.append(f"{more} more: megascope stragglers lists them.")
        parts.append(html.Ul([html.Li(line) for line in lines], className="plain", id="warnings"))
    if verdict.arrivals:
        parts += _waited_for(verdict.arrivals, attempt, view)
    return parts


def _waited_for(rows: tuple[WaitedFor, ...], attempt: Attempt, view: View) -> list[Component]:
    """Who was waited for, as `WaitedFor` explains it."""
    by_frontier = rows[0].basis == WaitedBasis.FRONTIER
    job = view.same_job()
    heads = {"rank": "rank", "caused": "ms a step"}
    heads |= {"segment": "furthest behind in"} if by_frontier else {"last": "last in", "share": "of all waiting"}
    told = [
        {
            "rank": dcc.Link(str(one.rank), href=job.url("/timeline", rank=one.rank, axis=peer_axis(attempt))),
            "caused": number(one.caused_ms, 3),
            "segment": one.segment,
            "last": None if one.last_in is None else f"{one.last_in:,} of {one.operations or 0:,}",
            "share": None if one.origin_share is None else f"{one.origin_share:.0%}",
        }
        for one in rows[:LISTED]
    ]
    what = "what it adds to the step beyond the median rank" if by_frontier else "what the others waited, all together"
    steps = f"{rows[0].steps:,} step{'' if rows[0].steps == 1 else 's'}"
    return [
        html.H2("Who was waited for"),
        table(heads, told, numbers=("caused", "last", "share"), name="waited-for"),
        hint(f"{what[0].upper()}{what[1:]}; by {rows[0].basis}, {steps}."),
    ]
