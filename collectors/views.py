"""The SQL of the views: every table of a store over an explicit list of files, and what is joined from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from .schemas import TABLES, Table

_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.int16(): "SMALLINT"} | {
    pa.float64(): "DOUBLE"
}

NEWEST_ROW_OF: Mapping[str, tuple[str, ...]] = {
    "ranks": ("run", "attempt", "rank"),
    "groups": ("run", "attempt", "group"),
    "segments": ("run", "attempt", "segment"),
    "schedule": ("run", "attempt", "stage", "position"),
    "incidents": ("run", "attempt", "incident"),
    "faults": ("run", "attempt", "fault"),
    "steps": ("run", "attempt", "rank", "step"),
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

    files: Mapping[str, Sequence[Path]]
    axes: Sequence[str] = ()
    has_restarts: bool = False


def identifier(name: str) -> str:
    """A name as SQL takes it: quoted, since ``group`` and many an axis are words of the language."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as SQL takes it."""
    return "'" + text.replace("'", "''") + "'"


def duck_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type that a column of the store may have."""
    if pa.types.is_dictionary(kind):
        return duck_type(kind.value_type)
    if pa.types.is_list(kind):
        return duck_type(kind.value_type) + "[]"
    if pa.types.is_struct(kind):
        return "STRUCT(" + ", ".join(f"{identifier(field.name)} {duck_type(field.type)}" for field in kind) + ")"
    return _TYPES[kind]


def view_statements(source: ViewSource) -> dict[str, str]:
    """The SELECT of every view by its name, in an order in which each needs only earlier ones."""
    selects = {name: _table_view(table, source) for name, table in TABLES.items()}
    selects["steps_all"] = selects.pop("steps")
    selects["steps"] = _NEWEST_STEPS if source.has_restarts else "SELECT * FROM steps_all"
    selects["spans"] = _spans_view(source)
    selects["events_aligned"] = _EVENTS_ALIGNED
    return selects


def _table_view(table: Table, source: ViewSource) -> str:
    files = source.files.get(table.name, ())
    if not files:
        return _empty(table, source.axes)
    if table.name == "runs":
        return _runs_view(files)
    if table.name in NEWEST_ROW_OF:
        return _newest(table, files)
    return f"SELECT * FROM {_scan(files)}"


def _empty(table: Table, axes: Sequence[str]) -> str:
    columns = (f"NULL::{duck_type(field.type)} AS {identifier(field.name)}" for field in table.schema(axes))
    return f"SELECT {', '.join(columns)} WHERE false"


def _scan(files: Sequence[Path], options: str = "") -> str:
    listed = ", ".join(literal(str(path)) for path in files)
    return f"read_parquet([{listed}], hive_partitioning = false{options})"


_ORDERED_SCAN = ", filename = true, file_row_number = true"
# A writer's newer files sort behind its older ones, also after merges: WRITER-ORDER-NUMBER.parquet.
_AGE = "filename DESC, file_row_number DESC"
_WRITER = r"regexp_extract(filename, '([^/]+)-\d{12}(-\d+)?\.parquet$', 1)"


def _newest(table: Table, files: Sequence[Path]) -> str:
    key = ", ".join(identifier(name) for name in NEWEST_ROW_OF[table.name])
    by_name = ", union_by_name = true" if table.has_axes else ""
    return (
        f"SELECT * EXCLUDE (filename, file_row_number) FROM {_scan(files, _ORDERED_SCAN + by_name)} "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {_AGE}) = 1"
    )


def _runs_view(files: Sequence[Path]) -> str:
    """One row an attempt: the newest of each writer, then all writers (the agents of the hosts) together.

    An attempt has ended once every writer says so, and its exit reason is the worst that any of them saw.
    """
    return f"""
        WITH newest AS (
            SELECT * FROM {_scan(files, _ORDERED_SCAN)}
            QUALIFY row_number() OVER (PARTITION BY run, attempt, {_WRITER} ORDER BY {_AGE}) = 1
        )
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
    stage = "coalesce(ranks.pp, 0)" if "pp" in source.axes else "0"
    return f"""
        SELECT events.*, segments.name AS segment_name, segments.kind AS kind, segments.axis AS axis,
            ranks.host AS host, {stage} AS stage{places}
        FROM events
        LEFT JOIN segments ON segments.run = events.run AND segments.attempt = events.attempt
            AND segments.segment = events.segment
        LEFT JOIN ranks ON ranks.run = events.run AND ranks.attempt = events.attempt AND ranks.rank = events.rank
        {_SUPERSEDED if source.has_restarts else ""}
    """


_EVENTS_ALIGNED = """
    WITH offsets AS (
        SELECT * FROM clock_offsets
        QUALIFY row_number() OVER (PARTITION BY run, attempt, host ORDER BY moment_ns DESC) = 1
    )
    SELECT events.* REPLACE (
            events.start_ns + coalesce(offsets.offset_ns, 0)
            + coalesce(CAST(round(offsets.drift_ppb * 1e-9 * (events.start_ns - offsets.moment_ns)) AS BIGINT), 0)
            AS start_ns),
        offsets.uncertainty_ns AS uncertainty_ns
    FROM events
    LEFT JOIN ranks ON ranks.run = events.run AND ranks.attempt = events.attempt AND ranks.rank = events.rank
    LEFT JOIN offsets ON offsets.run = events.run AND offsets.attempt = events.attempt AND offsets.host = ranks.host
"""
