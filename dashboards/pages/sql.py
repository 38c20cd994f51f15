"""SQL: one fenced SELECT over the store's views, its rows as a table, and the same as CSV."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from dash import dcc, html
from dash.development.base_component import Component

from ...collectors.reading.sql import SqlLimits, run_sql
from ...collectors.tables.schemas import TABLES
from ...profiler.errors import MegascopeError
from ..components import Rendered, banner, controls, hint, number, select, table
from ..shell import job_controls
from ..view import View
from ..workbench import Workbench
from .page import Page

SHOWN_ROWS = 500
LIMITS = SqlLimits(rows=SHOWN_ROWS, seconds=20.0, memory_mib=1024)
SCOPES = {"attempt": "the chosen attempt", "store": "the whole store"}

EXAMPLES = {
    "slowest ranks at a segment": """SELECT rank, host, stage, count(*) AS spans,
    median(self_ns) / 1e6 AS median_self_ms
FROM spans WHERE segment_name = 'forward' AND step > 0
GROUP BY ALL ORDER BY median_self_ms DESC LIMIT 20""",
    "where the time goes": """SELECT segment_name, kind, count(*) AS spans, sum(self_ns) / 1e9 AS self_s,
    sum(exposed_ns) / 1e9 AS waited_s
FROM spans GROUP BY ALL ORDER BY self_s DESC""",
    "loss and step time": """SELECT step, avg(loss) AS loss, median(duration_ns) / 1e6 AS step_ms,
    max(duration_ns) / 1e6 AS slowest_ms
FROM steps GROUP BY step ORDER BY step""",
    "who waited longest": """SELECT rank, host, segment_name, axis, sum(exposed_ns) / 1e6 AS waited_ms
FROM spans WHERE exposed_ns IS NOT NULL
GROUP BY ALL ORDER BY waited_ms DESC LIMIT 20""",
    "last heartbeats": """SELECT rank, step, process_state, to_timestamp(moment_ns / 1e9) AS moment,
    list_transform(in_flight, lambda f: f.segment) AS in_flight
FROM heartbeats QUALIFY row_number() OVER (PARTITION BY rank ORDER BY moment_ns DESC) = 1
ORDER BY rank""",
    "faults put in": "SELECT * FROM faults",
}


def frame(view: View, bench: Workbench) -> Component:
    """The query's text, what it runs over, examples."""
    query = view.q or next(iter(EXAMPLES.values()))
    text = dcc.Textarea(id="field-q", name="q", value=query, className="sql", spellCheck=False, rows=6)
    form = html.Div(
        controls(
            [
                html.Label(["query (Ctrl+Enter runs it)", text], className="grow"),
                select("around", "over", SCOPES, view.around if view.around in SCOPES else "attempt"),
                html.Button("Run", type="submit", id="sql-run"),
            ],
            manual=True,
        ),
        className="sql",
    )
    links = [dcc.Link(name, href=view.url("/sql", q=sql)) for name, sql in EXAMPLES.items()]
    return html.Div([job_controls(view, bench), form, html.Div(links, className="chips")])


def body(view: View, bench: Workbench) -> Rendered:
    """The rows of the query in the address; without one, what there is to ask."""
    if view.q is None:
        return Rendered([], [hint("Choose an example or write a query, then Run."), *_columns()])
    attempt = bench.attempt(view) if view.around != "store" else None
    try:
        result = run_sql(bench.store, view.q, attempt=attempt, limits=LIMITS)
    except MegascopeError as error:
        return Rendered(banner("bad", "No result", str(error)), _columns())
    rows = result.table
    many = f"{number(rows.num_rows)} row" + ("" if rows.num_rows == 1 else "s")
    count = f"the first {SHOWN_ROWS} rows" if result.truncated else many
    download = html.A("download as CSV", href=view.url("/export/sql.csv"), download="")
    return Rendered(
        [],
        [
            html.P([f"{count} in {result.seconds:.2f} s. ", download], className="hint"),
            html.Div(_result(rows), className="scroll"),
            *_columns(),
        ],
    )


def _result(rows: pa.Table) -> Component:
    if not rows.num_rows:
        return hint("No rows.")
    # Names may come twice (SELECT *, rank): number the columns instead.
    columns = {str(at): name for at, name in enumerate(rows.column_names)}
    data = [column.to_pylist() for column in rows.columns]
    lines = [{str(at): _text(values[line]) for at, values in enumerate(data)} for line in range(rows.num_rows)]
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    right = [str(at) for at, column in enumerate(rows.columns) if any(is_kind(column.type) for is_kind in kinds)]
    return table(columns, lines, numbers=right, name="sql-result")


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 300 else text[:300] + " ..."


def _columns() -> list[Component]:
    """The tables and views with their columns, folded."""
    items = [
        html.Details(
            [
                html.Summary(f"{name}: {each.doc}"),
                html.Ul([html.Li(f"{column.name}: {column.doc}") for column in each.columns]),
            ]
        )
        for name, each in TABLES.items()
    ]
    extra = "spans is events with segment_name, kind, axis, host, stage and one column for each axis of the mesh."
    return [html.H2("Tables"), hint(extra), *items]


PAGE = Page("/sql", "SQL", frame, body, live=False)
