"""A small store for a bundle: of one attempt, what the hang verdict is read from, the newest rows of what is large."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...collectors.tables.schemas import TABLES
from ...collectors.writing.writer import TableWriter

WRITER = "bundle"

WHOLE = ("ranks", "groups", "segments", "incidents", "clock_offsets", "machines")
"""Small tables, copied as they are."""

NEWEST = {
    "heartbeats": ("moment_ns", 300_000),
    "in_flight": ("begun_ns", 300_000),
    "events": ("start_ns", 500_000),
    "steps": ("start_ns", 200_000),
    "health": ("moment_ns", 100_000),
    "hardware_events": ("moment_ns", 100_000),
}
"""Tables that grow: the column by which rows are the newest, and so many rows of them at most."""

_RUNS = "layout, world_size, versions, start_ns, end_ns, exit_reason"


def write_excerpt(root: Path, store: Store, attempt: Attempt) -> list[str]:
    """Write the small store at ``root``; what was left out of it, in words.

    Neither the run's configuration nor anything of other attempts goes in. OSError where it cannot be written.
    """
    notes = []
    with TableWriter(root, WRITER) as writer:
        runs = store.query(f"SELECT {_RUNS} FROM runs", attempt=attempt)
        writer.write("runs", attempt.run, attempt.attempt, runs.append_column("configuration", _mark(attempt, runs)))
        for name in WHOLE:
            _write(writer, attempt, name, store.read(name, attempt))
        for name, (column, most) in NEWEST.items():
            rows = store.query(
                f"SELECT * FROM {name} ORDER BY {column} DESC NULLS LAST LIMIT {most + 1}", attempt=attempt
            )
            if rows.num_rows > most:
                notes.append(f"{name}: the newest {most:,} rows")
            _write(writer, attempt, name, rows.slice(0, most))
        writer.commit()
    return notes


def _write(writer: TableWriter, attempt: Attempt, name: str, rows: pa.Table) -> None:
    known = {column.name for column in TABLES[name].columns}
    axes = [column for column in rows.column_names if column not in known] if TABLES[name].has_axes else []
    if rows.num_rows:
        writer.write(name, attempt.run, attempt.attempt, rows, axes=axes)


def _mark(attempt: Attempt, runs: pa.Table) -> pa.Array:
    """Of the configuration only that the run was imported: its recording ended, and not the job."""
    text = json.dumps({"imported": {}}) if "imported" in attempt.configuration else None
    return pa.array([text] * runs.num_rows, pa.string())
