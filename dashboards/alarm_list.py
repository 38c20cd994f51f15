"""The alarms of an attempt on the page Health: what was told, when and to whom, and what waits to be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ..viz3d.verdict import plain_age
from .alarm_data import AlarmRow, State
from .components import hint, table, utc
from .view import View

MOST_ROWS = 30
_COLUMNS = {
    "moment": "happened", "kind": "alarm", "sentence": "what it says", "state": "state", "told": "told after",
    "whom": "told to", "teller": "told by",
}  # fmt: skip
_TONES = {State.TOLD: "none", State.WAITING: "warning", State.FAILED: "error", State.SILENCED: "note"}
NONE = (
    "No alarm of this attempt is known. Alarms are told where MEGASCOPE_ALARM_COMMAND or MEGASCOPE_ALARM_WEBHOOK is set"
    " on the hosts of the job, or for megascope watch."
)


def alarm_list(rows: Sequence[AlarmRow] | str, view: View) -> list[Component]:
    """All of them, the newest first, and how many are in each state; or why they cannot be read."""
    if isinstance(rows, str) or not rows:
        return [html.H2("Alarms", id="alarms-title"), hint(rows if isinstance(rows, str) else NONE)]
    counts = Counter(row.state for row in rows)
    told = ", ".join(f"{counts[state]:,} {state}" for state in State if counts[state])
    more = len(rows) - MOST_ROWS
    rest = [hint(f"{more:,} earlier alarms are not shown.")] if more > 0 else []
    shown = [_row(row, view) for row in rows[:MOST_ROWS]]
    return [
        html.H2(f"Alarms ({told})", id="alarms-title"),
        html.Div(table(_COLUMNS, shown, numbers=("told",), name="alarms"), className="scroll"),
        *rest,
    ]


def _row(row: AlarmRow, view: View) -> dict[str, Any]:
    job = view.same_job()
    kind: Component | str = row.kind
    if row.incident is not None:
        kind = dcc.Link(row.kind, href=job.url("/incidents", incident=row.incident))
    late_ns = None if row.told_ns is None else row.told_ns - row.moment_ns
    problem = "" if row.problem is None else f" ({row.problem})"
    return {
        "moment": utc(row.moment_ns),
        "kind": kind,
        "sentence": html.Span(row.sentence, className="wrap"),
        "state": html.Span(
            [html.Span(str(row.state), className=f"state {_TONES[row.state]}"), problem], className="wrap"
        ),
        "told": None if late_ns is None else plain_age(late_ns / 1e9),
        "whom": " and ".join(row.targets) or None,
        "teller": row.teller,
    }
