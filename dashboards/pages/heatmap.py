"""Heatmap: one segment over ranks and steps, beside the worst ranks and cells; a click opens the timeline."""

from __future__ import annotations

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.store import Attempt
from ...heatmap.matrix import Matrix
from ..absence import pruned_texts
from ..components import Rendered, controls, field, hint, number, select, table, widget
from ..heat_bins import bin_size
from ..heat_data import (
    SLOW_RATIO,
    HeatChoice,
    choose,
    matrix_of,
    orders_of,
    placement_of,
    segments_of,
    worst_cells,
    worst_ranks,
)
from ..shell import job_controls
from ..verdicts import marks_of, peer_axis, stragglers_of, verdict_banners
from ..view import METRICS, SHOWN, View, ranks_text
from ..workbench import Workbench
from .page import Page


def frame(view: View, bench: Workbench) -> Component:
    """Run, attempt, segment, metric, what to show, order of the rows, steps and ranks."""
    attempt = bench.attempt(view)
    choice = choose(view, bench, attempt)
    segments = {row["segment"]: f"{row['segment']} ({row['kind']})" for row in segments_of(bench, attempt)}
    steps = "" if view.steps is None else f"{view.steps[0]}:{view.steps[1]}"
    own = controls(
        [
            select("segment", "segment", segments, choice.segment),
            select("metric", "measure", METRICS, choice.metric),
            select("show", "colour shows", SHOWN, choice.show),
            select("order", "rows by", orders_of(attempt), choice.order),
            field("steps", "steps", steps, placeholder="all", hint="A range such as 20:60"),
            field("ranks", "ranks", ranks_text(view.ranks), placeholder="all", hint="A list such as 0,5,8-15"),
        ],
        clears=("zoom",),
    )
    return job_controls(view, bench, own)


def body(view: View, bench: Workbench) -> Rendered:
    """The canvas, and the tables that say the same in numbers."""
    attempt = bench.attempt(view)
    banners, awaited = verdict_banners(bench, attempt, view)
    choice = choose(view, bench, attempt)
    matrix = matrix_of(bench, attempt, choice)
    verdict = stragglers_of(bench, attempt, wait_s=0).value
    source = View(
        run=attempt.run,
        attempt=attempt.attempt,
        segment=choice.segment,
        metric=choice.metric,
        show=choice.show,
        order=choice.order,
        steps=choice.steps,
        ranks=choice.ranks,
    ).url("/data/heatmap")
    heat = [
        widget("heatmap", f"{source}&v={bench.stamp()}", height=500, marks=marks_of(verdict, choice.segment)),
        hint(
            _coverage(matrix, attempt),
            _bins(matrix, choice),
            " Wheel: zoom (Shift: rows only, Alt: steps only), drag: move, double click: all, "
            "click on a cell: timeline. Arrow keys, W, S, 0 do the same.",
        ),
        *(hint(text) for text in pruned_texts(bench, attempt, ("events", "rank_windows"), (choice.steps or (0, 0))[0])),
    ]
    side = html.Div(_tables(view, bench, attempt, choice, matrix), className="side")
    return Rendered(banners, html.Div([html.Div(heat), side], className="split"), awaited, choice.segment)


def _coverage(matrix: Matrix, attempt: Attempt) -> str:
    seen = int(np.isfinite(matrix.values).any(axis=1).sum())
    of = attempt.world_size or len(matrix.ranks)
    missing = int((~np.isfinite(matrix.values)).sum())
    text = f"{seen} of {of} ranks have data; {missing:,} of {matrix.values.size:,} cells have none."
    if matrix.step_width > 1:
        text += (
            f" A column is a window of {matrix.step_width} steps, from rollups: spans are too many or not all there."
        )
    return text if seen == of else text + " Absent is not healthy."


def _bins(matrix: Matrix, choice: HeatChoice) -> str:
    rows = int(np.isin(matrix.ranks, choice.ranks).sum()) if choice.ranks else len(matrix.ranks)
    high, wide = bin_size(rows, len(matrix.steps))
    if high == wide == 1:
        return ""
    columns = "" if wide == 1 else f" x {wide} columns"
    return f" A cell is the hottest of {high} ranks{columns}: name ranks or steps to see each."


def _tables(view: View, bench: Workbench, attempt: Attempt, choice: HeatChoice, matrix: Matrix) -> list[Component]:
    placement = placement_of(bench, attempt)
    job = View(run=view.run, attempt=view.attempt, axis=peer_axis(attempt))

    def link(rank: int, step: int, text: str) -> Component:
        return dcc.Link(text, href=job.url("/timeline", rank=rank, steps=(step, step)))

    ranks = [
        {
            "rank": link(row["rank"], row["worst_step"], str(row["rank"])),
            "host": placement.host_of(row["rank"]),
            "ratio": f"x{row['ratio']:.2f}",
            "slow": f"{row['slow']:.0%}",
            "worst": link(row["rank"], row["worst_step"], f"x{row['worst_ratio']:.2f} at {row['worst_step']}"),
        }
        for row in worst_ranks(matrix)
    ]
    cells = [
        {
            "rank": link(row["rank"], row["step"], f"{row['rank']} at {row['step']}"),
            "value": number(row["value"]),
            "peers": number(row["peers"]),
            "ratio": f"x{row['ratio']:.2f}",
            "z": number(row["z"], 3),
        }
        for row in worst_cells(matrix)
    ]
    if not ranks:
        return [html.H2("No peers"), hint("No rank has peers at this segment, so nothing can be compared.")]
    unit = "spans" if choice.metric == "count" else "ms"
    heads = {"rank": "rank", "host": "host", "ratio": "mean", "slow": f"≥x{SLOW_RATIO:.2f}", "worst": "worst step"}
    return [
        html.H2("Ranks against their peers"),
        table(heads, ranks, numbers=("ratio", "slow", "worst"), name="worst-ranks"),
        html.H2("Worst cells"),
        table(
            {"rank": "rank, step", "value": unit, "peers": "peers", "ratio": "ratio", "z": "z"},
            cells,
            numbers=("value", "peers", "ratio", "z"),
            name="worst-cells",
        ),
    ]


PAGE = Page("/heatmap", "Heatmap", frame, body)
