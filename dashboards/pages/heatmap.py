"""Heatmap: one segment over ranks and steps, or hosts and GPUs, beside the worst ranks and cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.reading.store import Attempt
from ...heatmap.matrix import Matrix
from ..absence import pruned_texts
from ..components import Awaited, Rendered, controls, data, field, hint, number, select, table, widget
from ..heat.address import shown_view, source_of
from ..heat.bins import bin_size
from ..heat.data import (
    SLOW_RATIO,
    HeatChoice,
    choose,
    matrix_of,
    placement_of,
    segments_of,
    slowest_steps,
    steps_of,
    worst_cells,
    worst_ranks,
)
from ..heat.export import heat_sql
from ..heat.rows import ORDERS, groups_of
from ..heat.segments import SlowestRank, glance_at
from ..heat.tokens import tokens_note
from ..heat.transfers import TRANSFER
from ..shell import job_controls
from ..verdicts import FIRST_WAIT_S, marks_of, peer_axis, stragglers_of, verdict_banners
from ..view import METRICS, OVER, SHAPES, SHOWN, View, moment_text, ranks_text
from ..workbench import Latest, Workbench
from .page import Page

RANKS_LISTED, CELLS_LISTED = 6, 3
"""Rows of the tables, which stand above the fold at 1280x720."""

TOKENS_WAIT_S = 0.05
"""How long the picture waits for whether tokens differ, if nothing else is worked out: seldom more than a look."""

SHOWN_BY_P99 = 100
"""From so many steps in a window on, one slow step is not among its slowest hundredth."""

_STEPLESS = (
    " No span belongs to a step: a column is {:.3g} s of the run. Call megascope.step(n) where each step begins, and "
    "the ranks are compared step by step."
)
_WAITING = "A long time here is waiting. The rank that all wait for arrives last, and waits least."
_TRANSFERS = " The members of a group have its transfers alike, so that a slow link or group stands out of its stage."
_TIME = "A time in UTC, such as 2026-01-31 14:05: steps that began {} it"


def frame(view: View, bench: Workbench) -> Component:
    """Run, attempt, segment, metric, what to show, layout, order, threshold, steps or times, and ranks."""
    attempt = bench.attempt(view)
    choice = choose(view, bench, attempt)
    segments = {row["segment"]: f"{row['segment']} ({row['kind']})" for row in segments_of(bench, attempt)}
    steps = "" if view.steps is None else f"{view.steps[0]}:{view.steps[1]}"
    above = "" if view.above is None else f"{view.above:g}"
    own = controls(
        [
            select("segment", "segment", segments, choice.segment),
            select("metric", "measure", METRICS, choice.metric),
            select("show", "colour shows", SHOWN, choice.show),
            field("above", "from ratio", above, placeholder="x1.10", hint="A ratio to peers: lower cells are greyed"),
            field("ranks", "ranks", ranks_text(view.ranks), placeholder="all", hint="A list such as 0,5,8-15"),
        ],
        clears=("zoom",),
    )
    layout = controls(
        [
            select("shape", "picture", SHAPES, choice.shape),
            *([select("over", "of the steps", OVER, choice.over)] if choice.is_by_hosts else []),
            select("order", "order", ORDERS, choice.order),
            select("group", "grouped by", groups_of(attempt), choice.group),
        ],
        clears=("zoom",),
    )
    between = controls(
        [field("steps", "steps", steps, placeholder="all", hint="A range such as 20:60, or drag over the picture")],
        clears=("zoom", "since", "until"),
    )
    times = controls(
        [
            field("since", "since (UTC)", moment_text(view.since), placeholder="start", hint=_TIME.format("from")),
            field("until", "until (UTC)", moment_text(view.until), placeholder="now", hint=_TIME.format("before")),
        ],
        clears=("zoom", "steps"),
    )
    return job_controls(view, bench, own, layout, between, html.Div(times, className="times"))


def body(view: View, bench: Workbench) -> Rendered:
    """The canvas, and the tables that say the same in numbers."""
    attempt = bench.attempt(view)
    steps = steps_of(bench, attempt, view)
    if view.segment is not None:  # no verdict has a say in the picture, and one that starts first would slow it
        matrix_of(bench, attempt, choose(view, bench, attempt))
    banners, awaited = verdict_banners(bench, attempt, view, steps=steps)
    # One analysis runs at a time: behind the first verdict there is nothing to wait for.
    glance = glance_at(bench, attempt, steps, wait_s=0.0 if awaited == Awaited.FIRST else FIRST_WAIT_S)
    choice = choose(view, bench, attempt)  # after the verdict and the glance, which it follows
    matrix = matrix_of(bench, attempt, choice)
    verdict = stragglers_of(bench, attempt, steps, wait_s=0).value
    is_free = awaited == Awaited.NOTHING and not glance.stale
    tokens = tokens_note(bench, attempt, choice, matrix, wait_s=TOKENS_WAIT_S if is_free else 0.0)
    heat = [
        _ways_out(view, bench, attempt, choice),
        widget(
            "heatmap",
            source_of(bench, attempt, choice),
            height=452,
            marks=marks_of(verdict, choice.segment, attempt),
        ),
        hint(
            _coverage(matrix, attempt),
            "" if choice.parts is None else _STEPLESS.format(choice.parts.length_ns / 1e9),
            _above(matrix, choice),
            _TRANSFERS if choice.metric == TRANSFER else "",
            _bins(matrix, choice),
            *_single_steps(view, matrix, choice),
        ),
        *_unequal_tokens(view, tokens),
        hint(
            "Drag: choose steps (Escape: all), wheel: zoom (Shift: rows only, Alt: steps only), Shift+drag: move, "
            "double click: whole picture, click: timeline, Shift+click: 3D. Arrow keys, W, S, 0 do the same.",
        ),
        *(hint(text) for text in pruned_texts(bench, attempt, ("events", "rank_windows"), (choice.steps or (0, 0))[0])),
    ]
    by_segment, more = _by_segment(view, glance)
    side = html.Div([*_tables(view, bench, attempt, choice, matrix), *by_segment], className="side")
    children = html.Div([html.Div(heat), side], className="split")
    return Rendered(banners, children, max(awaited, more, _awaited(tokens)), choice.segment)


def _ways_out(view: View, bench: Workbench, attempt: Attempt, choice: HeatChoice) -> Component:
    """What is shown in words, a way back to all steps, and CSV, PNG and SQL."""
    steps = "all steps" if choice.steps is None else f"steps {choice.steps[0]} to {choice.steps[1]}"
    whole = dcc.Link("all steps", href=view.url("/heatmap", steps=None, since=None, until=None, zoom=None))
    query = View(run=view.run, attempt=view.attempt, q=heat_sql(bench, attempt, choice)).url("/sql")
    return html.Div(
        [
            html.Span([html.B(choice.segment), f": {METRICS[choice.metric]}, {SHOWN[choice.show]}, {steps}"]),
            *([] if choice.steps is None else [whole]),
            html.Span(className="grow"),
            html.A("CSV", href=shown_view(attempt, choice).url("/export/heatmap.csv"), download="", id="heatmap-csv"),
            html.Button("PNG", **data(action="heatmap-png"), id="heatmap-png", className="quiet"),
            dcc.Link("SQL", href=query, id="heatmap-sql"),
        ],
        className="legend",
    )


def _coverage(matrix: Matrix, attempt: Attempt) -> str:
    seen = int(np.isfinite(matrix.values).any(axis=1).sum())
    of = attempt.world_size or len(matrix.ranks)
    missing = int((~np.isfinite(matrix.values)).sum())
    text = f"{seen:,} of {of:,} ranks have data; {missing:,} of {matrix.values.size:,} cells have none."
    if matrix.step_width > 1:
        text += (
            f" A column is a window of {matrix.step_width} steps, from rollups: spans are too many or not all there."
        )
    return text if seen == of else text + " Absent is not healthy."


def _above(matrix: Matrix, choice: HeatChoice) -> str:
    if choice.above is None:
        return ""
    slow = np.nan_to_num(matrix.ratio, nan=0.0) >= choice.above
    return f" {slow.sum():,} cells of {slow.any(axis=1).sum():,} ranks are at x{choice.above:g} or more."


def _bins(matrix: Matrix, choice: HeatChoice) -> str:
    rows = int(np.isin(matrix.ranks, choice.ranks).sum()) if choice.ranks else len(matrix.ranks)
    high, wide = (1, 1) if choice.is_by_hosts else bin_size(rows, len(matrix.steps))
    if high == wide == 1:
        return ""
    columns = "" if wide == 1 else f" x {wide} columns"
    return f" A cell is the hottest of {high} ranks{columns}: zoom in to see each."


def _single_steps(view: View, matrix: Matrix, choice: HeatChoice) -> list[Component | str]:
    """Where a column is the mean of several steps: what shows a single slow one."""
    if not 1 < matrix.step_width < SHOWN_BY_P99 or choice.metric not in ("self", "duration"):
        return []
    percentile = dcc.Link("99th percentile", href=view.url("/heatmap", metric="p99"), id="heatmap-p99")
    return [" A single slow step hides in the mean of its window: the ", percentile, " of its spans shows it."]


def _unequal_tokens(view: View, latest: Latest[str]) -> list[Component]:
    """That times are not per token, where ranks had unequally many; and a way to what the verdict says of it."""
    if not latest.value:
        return []
    judged = dcc.Link("not judged", href=view.same_job().url("/"), id="heatmap-tokens")
    return [hint(latest.value, " (", judged, ")")]


def _awaited(latest: Latest[Any]) -> Awaited:
    return Awaited.NOTHING if not latest.stale else Awaited.NEWER if latest.stamp else Awaited.FIRST


def _tables(view: View, bench: Workbench, attempt: Attempt, choice: HeatChoice, matrix: Matrix) -> list[Component]:
    placement, above = placement_of(bench, attempt), choice.above or SLOW_RATIO
    unit, least_first = "spans" if choice.metric == "count" else "ms", choice.is_waiting
    ranks = [
        {
            "rank": _timeline(view, attempt, row["rank"], row["worst_step"], str(row["rank"])),
            "host": placement.host_of(row["rank"]),
            "ratio": _times(row["ratio"]),
            "slow": f"{row['slow']:.0%}",
            "worst": _timeline(
                view, attempt, row["rank"], row["worst_step"], f"{_times(row['worst_ratio'])} at {row['worst_step']}"
            ),
        }
        for row in worst_ranks(matrix, RANKS_LISTED, above, least_first=least_first)
    ]
    if not np.isfinite(matrix.values).any():  # the picture says why
        return []
    if not ranks:
        return _without_peers(view, attempt, matrix, unit)
    heads = {"rank": "rank", "host": "host", "ratio": "mean", "slow": f"≥x{above:.2f}", "worst": "worst step"}
    if least_first:
        heads |= {"slow": f"≤x{1 / above:.2f}", "worst": "least at step"}
    cells = worst_cells(matrix, CELLS_LISTED, least_first=least_first)
    return [
        html.H2("Who waits least comes first" if least_first else "Ranks against their peers"),
        *([hint(_WAITING)] if least_first else []),
        table(heads, ranks, numbers=("ratio", "slow", "worst"), name="worst-ranks"),
        html.H2("Least waiting" if least_first else "Worst cells"),
        _cells(view, attempt, cells, {"value": unit, "peers": "peers", "ratio": "ratio", "z": "z"}),
    ]


def _without_peers(view: View, attempt: Attempt, matrix: Matrix, unit: str) -> list[Component]:
    """Nobody does the same work: a rank's steps are compared with its own usual one."""
    return [
        html.H2("Slowest steps"),
        hint("No rank has peers at this segment: each step is compared with the same rank's median step."),
        _cells(view, attempt, slowest_steps(matrix), {"value": unit, "peers": "median", "ratio": "ratio"}),
    ]


def _cells(view: View, attempt: Attempt, cells: list[dict[str, float]], heads: dict[str, str]) -> Component:
    rows = []
    for row in cells:
        rank, step = int(row["rank"]), int(row["step"])
        rows.append(
            {
                "rank": _timeline(view, attempt, rank, step, f"{rank} at {step}"),
                **{name: number(row[name]) for name in ("value", "peers")},
                "ratio": _times(row["ratio"]),
                "z": number(row["z"], 3) if "z" in row else None,
            }
        )
    return table({"rank": "rank, step", **heads}, rows, numbers=tuple(heads), name="worst-cells")


def _by_segment(view: View, latest: Latest[list[SlowestRank]]) -> tuple[list[Component], Awaited]:
    """The segments at which a rank loses the most, each a way to its picture."""
    awaited = _awaited(latest)
    rows = [
        {
            "segment": dcc.Link(
                one.segment, href=view.url("/heatmap", segment=one.segment, zoom=None), title=one.segment
            ),
            "rank": str(one.rank),
            "ratio": _times(one.ratio),
            "excess": number(one.excess_ms, 3),
        }
        for one in latest.value or []
    ]
    if not rows:
        return [], awaited
    heads = {"segment": "segment", "rank": "rank", "ratio": "mean", "excess": "ms more a step"}
    return [
        html.H2("By segment (self time)"),
        table(heads, rows, numbers=("rank", "ratio", "excess"), name="by-segment"),
    ], awaited


def _timeline(view: View, attempt: Attempt, rank: int, step: int, text: str) -> Component:
    job = View(run=view.run, attempt=view.attempt, axis=peer_axis(attempt))
    return dcc.Link(text, href=job.url("/timeline", rank=rank, steps=(step, step)))


PAGE = Page("/heatmap", "Heatmap", frame, body)


def _times(ratio: float) -> str:
    """A ratio in three digits, so that it fits into its column."""
    return f"x{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"
