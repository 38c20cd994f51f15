"""What a job found, for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

MAX_ROWS = 40


def render(job: str, answer: dict[str, Any]) -> Group:
    """Sentences and tables of one job's answer (the object that ``--json`` prints)."""
    head = Text(
        f"{job} of run {answer['run']}, attempt{'s' if len(answer['attempts']) > 1 else ''} "
        f"{', '.join(map(str, answer['attempts']))}: about {answer['spans_about']:,} spans read by {answer['engine']} "
        f"in {answer['seconds']:.1f} s"
    )
    return Group(head, *_BODIES[job](answer["result"]))


def _table(rows: list[dict[str, Any]], columns: dict[str, tuple[str, str]]) -> Table:
    """Columns: heading to (key, format)."""
    table = Table(box=None, pad_edge=False)
    for heading in columns:
        table.add_column(heading, justify="right")
    for row in rows[:MAX_ROWS]:
        table.add_row(*(_cell(row[key], how) for key, how in columns.values()))
    if len(rows) > MAX_ROWS:
        table.caption = f"{len(rows) - MAX_ROWS} more rows: see --json"
    return table


def _cell(value: Any, how: str) -> str:
    if value is None:
        return "-"
    if how == "ms":
        return f"{value / 1e6:,.3f}"
    if how == "us":
        return f"{value / 1e3:,.1f}"
    return format(value, how)


WORK = {"segment": ("segment", ""), "stage": ("stage", ""), "chunk": ("chunk", "")}
RANK = {"rank": ("rank", ""), "host": ("host", "")}


def _worst(rows: Any) -> list[Any]:
    if not rows:
        return [Text("No work has enough peers to be compared with.")]
    measures = {
        "median ms": ("median_ns", "ms"),
        "peers ms": ("peers_median_ns", "ms"),
        "ratio": ("ratio", ".3f"),
        "lost s": ("lost_s", ",.1f"),
        "spans": ("spans", ","),
    }
    note = Text("Measures, the costliest first; `megascope stragglers` says which of them are no chance.")
    return [_table(rows, RANK | WORK | measures), note]


def _changed(result: Any) -> list[Any]:
    took = {"took x": ("ratio", ".3f")}
    segments = _table(result["segments"], WORK | {"ranks": ("ranks", "")} | took | {"lost s": ("lost_s", ",.1f")})
    before_after = {"before ms": ("before_ns", "ms"), "after ms": ("after_ns", "ms")}
    beyond = {"others x": ("others_ratio", ".3f"), "beyond s": ("beyond_others_s", ",.1f")}
    ranks = _table(result["ranks"], RANK | WORK | before_after | took | beyond)
    note = f"{result['in_one_stretch_only']} rows are in one of the stretches only, and are compared with nothing."
    return [segments, Text("\nRanks that changed otherwise than the others of their segment:"), ranks, Text(note)]


def _rollups(result: Any) -> list[Any]:
    lines = [
        f"{result['windows']:,} windows of segments, all ranks together, were made again: {result['equal']:,} as in "
        f"the store, {result['different']:,} different, {result['not_in_store']:,} not in the store; "
        f"{result['not_in_raw_spans']:,} of the store's have no raw spans any more."
    ]
    if result["saved_to"]:
        lines.append(f"{result['saved_rows']:,} rows of rank_windows are in {result['saved_to']}.")
    return [Text(line) for line in lines]


def _align(result: Any) -> list[Any]:
    if not result["hosts"]:
        return [Text("No attempt has several hosts that did something together: there is nothing to align.")]
    table = _table(
        result["hosts"],
        {"attempt": ("attempt", ""), "host": ("host", ""), "offset us": ("offset_ns", "us"),
         "uncertainty us": ("uncertainty_ns", "us"), "stored us": ("stored_offset_ns", "us"),
         "drift ppb": ("drift_ppb", ",.0f")},
    )  # fmt: skip
    lines = [Text(f"{result['windows']} windows of time were aligned again; the newest offsets:"), table]
    if result["saved_to"]:
        lines.append(Text(f"{result['saved_rows']:,} rows of clock_offsets are in {result['saved_to']}."))
    return lines


def _whatif(result: Any) -> list[Any]:
    table = _table(
        result["stretches"],
        {"attempt": ("attempt", ""), "from step": ("first_step", ""), "steps": ("steps", ""), "S": ("slowdown", ".4f"),
         "M_W": ("m_w", ".3f"), "M_S": ("m_s", ".3f"), "step s": ("step_s", ".4f"), "why not": ("reason", "")},
    )  # fmt: skip
    if result["slowdown"] is None:
        return [table, Text("No stretch could be replayed.")]
    whole = (
        f"S {result['slowdown']:.4f} over {result['replayed_steps']:,} steps: {result['lost_s']:,.1f} s beyond ideal."
    )
    return [table, Text(whole)]


_BODIES = {"worst": _worst, "changed": _changed, "rollups": _rollups, "align": _align, "whatif": _whatif}
