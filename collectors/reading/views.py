"""The SQL of the views: every table of a store over an explicit list of files, and what is joined from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...profiler.vocabulary import stage_axis
from ..tables.schemas import TABLES, WRITER_COLUMN, WRITTEN_COLUMN, Table
from .clock_sql import EVENTS_ALIGNED
from .evolution import ByVersion, identifier, literal, nothing_of, scan
from .window_sql import windows_view

__all__ = ["NEWEST_ROW_OF", "ViewSource", "identifier", "literal", "newest_rows", "view_statements", "views_of"]

NEWEST_ROW_OF: Mapping[str, tuple[str, ...]] = {
    "ranks": ("run", "attempt", "rank"),
    "groups": ("run", "attempt", "group"),
    "segments": ("run", "attempt", "segment"),
    "schedule": ("run", "attempt", "stage", "position"),
    "incidents": ("run", "attempt", "incident"),
    "faults": ("run", "attempt", "fault"),
    "machines": ("run", "attempt", "host"),
    "steps": ("run", "attempt", "rank", "step"),
    "clock_offsets": ("run", "attempt", "host", "moment_ns", "source"),
}
"""Tables whose rows may be written several times, by one writer or by many: the newest of a key is shown."""

_SPAN_COLUMNS = frozenset(column.name for column in TABLES["events"].columns) | {
    "segment_name",
    "kind",
    "axis",
    "host",
    "stage",
}


@dataclass(frozen=True, slots=True)
class ViewSource:
    """What the views are made of: the files of each table, the axes of the mesh, and whether a run has restarts."""

    files: Mapping[str, ByVersion]
    axes: Sequence[str] = ()
    has_restarts: bool = False


def view_statements(source: ViewSource) -> dict[str, str]:
    """The SELECT of every view by its name, in an order in which each needs only earlier ones."""
    selects = {name: _table_view(table, source) for name, table in TABLES.items()}
    selects["steps_all"] = selects.pop("steps")
    selects["steps"] = _NEWEST_STEPS if source.has_restarts else "SELECT * FROM steps_all"
    selects["spans"] = _spans_view(source)
    selects["events_aligned"] = EVENTS_ALIGNED
    selects["windows"] = windows_view(has_restarts=source.has_restarts)
    return selects


_COMPOSED = ("steps", "spans", "events_aligned", "windows")
_ABOUT_ALL = re.compile(r"\b(show|pragma|information_schema|duckdb_\w+|pg_\w+|sqlite_\w+)\b", re.IGNORECASE)


def views_of(sql: str, statements: Mapping[str, str]) -> set[str]:
    """The views that a query may use, with those that they are made of; all where it asks for what there is.

    Words that only look like a view's name count too: one too many costs time, one too few an answer.
    """
    if _ABOUT_ALL.search(sql):
        return set(statements)
    found, texts = set[str](), [sql]
    while texts:
        words = {word.lower() for word in re.findall(r"\w+", texts.pop())}
        new = words & statements.keys() - found
        found |= new
        texts += [statements[name] for name in new if name in _COMPOSED]
    return found


def _table_view(table: Table, source: ViewSource) -> str:
    files = source.files.get(table.name, {})
    if not any(files.values()):
        return f"SELECT * {_exclude(table)} FROM ({nothing_of(table, source.axes)})"
    if table.name == "runs":
        return _runs_view(table, files)
    if table.name in NEWEST_ROW_OF:
        return f"SELECT * {_exclude(table, *_FILE_COLUMNS)} FROM ({newest_rows(table, files, source.axes)})"
    return f"SELECT * FROM {scan(table, files)}"


_FILE_COLUMNS = ("filename", "file_row_number")
_UNSEEN = (WRITTEN_COLUMN, WRITER_COLUMN)

_AGE = f"{WRITTEN_COLUMN} DESC NULLS LAST, filename DESC, file_row_number DESC"
"""The newest row first. Those of version 1 have no moment; a writer's newer files sort behind its older ones."""

_WRITER = f"coalesce({WRITER_COLUMN}, regexp_extract(filename, '([^/]+)-\\d{{12}}(-\\d+)?\\.parquet$', 1))"


def _exclude(table: Table, *names: str) -> str:
    """Leaves out the columns that only files have."""
    unseen = [*(column.name for column in table.columns if column.name in _UNSEEN), *names]
    return f"EXCLUDE ({', '.join(unseen)})" if unseen else ""


def newest_rows(table: Table, files: ByVersion, axes: Sequence[str] = ()) -> str:
    """A SELECT of the newest row of each key, of ``runs`` of each writer; with the columns that only files have."""
    if table.name == "runs":
        whose = f"SELECT * REPLACE ({_WRITER} AS {WRITER_COLUMN}) FROM {scan(table, files, numbered=True)}"
        key, rows = f"run, attempt, {WRITER_COLUMN}", f"({whose})"
    else:
        key = ", ".join(identifier(name) for name in NEWEST_ROW_OF[table.name])
        rows = scan(table, files, axes, numbered=True)
    return f"SELECT * FROM {rows} QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {_AGE}) = 1"


def _runs_view(table: Table, files: ByVersion) -> str:
    """One row an attempt: the newest of each writer, then all writers (the agents of the hosts) together.

    An attempt has ended once every writer says so, and its exit reason is the worst that any of them saw.
    """
    return f"""
        WITH newest AS ({newest_rows(table, files)})
        SELECT run, attempt, max(layout) AS layout, max(world_size) AS world_size,
            max(configuration) AS configuration, max(versions) AS versions, min(start_ns) AS start_ns,
            CASE WHEN bool_and(exit_reason IS NOT NULL) THEN max(end_ns) END AS end_ns,
            CASE WHEN bool_and(exit_reason IS NOT NULL) THEN
                CASE WHEN bool_or(exit_reason = 'crashed') THEN 'crashed'
                     WHEN bool_or(exit_reason = 'interrupted') THEN 'interrupted'
                     WHEN bool_or(exit_reason = 'exited') THEN 'exited' ELSE max(exit_reason) END
            END AS exit_reason
        FROM newest GROUP BY run, attempt
    """


_NEWEST_STEPS = """
    SELECT * FROM steps_all QUALIFY row_number() OVER (PARTITION BY run, rank, step ORDER BY attempt DESC) = 1
"""

_SUPERSEDED = """
    LEFT JOIN (SELECT run, step, max(attempt) AS attempt FROM steps_all GROUP BY run, step) newest
        ON newest.run = events.run AND newest.step = events.step AND newest.attempt > events.attempt
    WHERE newest.attempt IS NULL
"""


def _spans_view(source: ViewSource) -> str:
    """Events with the names of their segments and the places of their ranks; a stage is the index on pp, else 0."""
    places = "".join(f", ranks.{identifier(axis)}" for axis in source.axes if axis not in _SPAN_COLUMNS)
    pipeline = stage_axis(source.axes)
    stage = "0" if pipeline is None else f"coalesce(ranks.{identifier(pipeline)}, 0)"
    return f"""
        SELECT events.*, segments.name AS segment_name, segments.kind AS kind, segments.axis AS axis,
            ranks.host AS host, {stage} AS stage{places}
        FROM events
        LEFT JOIN segments ON segments.run = events.run AND segments.attempt = events.attempt
            AND segments.segment = events.segment
        LEFT JOIN ranks ON ranks.run = events.run AND ranks.attempt = events.attempt AND ranks.rank = events.rank
        {_SUPERSEDED if source.has_restarts else ""}
    """
