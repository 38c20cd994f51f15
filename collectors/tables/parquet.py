"""How rows become a Parquet file: encodings, sort order, and what a manifest needs to know about the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...profiler.errors import MegascopeError
from ..storage.object_files import open_object
from ..storage.object_path import ObjectPath
from .schemas import Table

ROW_GROUP_ROWS = 128 * 1024
WINDOW_GROUP_ROWS = 32 * 1024
"""The same of rollups: one segment of a block of ranks, of which a heatmap reads nothing else."""

ZSTD_LEVEL = 3

_DELTA = {"moment_ns", "begun_ns", "sequence"}
_SPLIT = {"start_ns", "enqueue_ns", "duration_ns", "self_ns", "exposed_ns", "exposed_sum_ns"} | {
    f"{metric}_{of}_ns" for metric in ("duration", "self") for of in ("sum", "min", "max")
}
_SPLIT_LISTS = {f"{metric}_{part}" for metric in ("duration", "self") for part in ("bins", "bin_counts")}
_WITH_STATISTICS = {
    *("rank", "step", "segment", "start_ns", "moment_ns", "window_steps", "first_step", "group", "sequence"),
    *("attempt", "host", "metric", "incident", "stage"),
}
"""Columns by which readers leave row groups out: statistics of the others cost a fifth of the writing."""

_SORT: Mapping[str, tuple[str, ...]] = {
    "events": ("step", "rank", "start_ns"),
    "steps": ("step", "rank"),
    "heartbeats": ("moment_ns", "rank"),
    "health": ("moment_ns",),
    "hardware_events": ("moment_ns",),
    # Coarse windows apart from fine ones, so that a view over all steps passes over the many fine ones.
    "rank_windows": ("window_steps", "segment", "first_step", "rank"),
}


def conform(
    table: Table, run: str, attempt: int, rows: pa.Table | Mapping[str, Sequence[Any]], axes: Sequence[str]
) -> pa.Table:
    """Bring rows into the table's schema: key columns added, columns left out filled with NULL, types cast.

    Raises MegascopeError for a column that the table does not have, for lengths that differ, for NULL where a
    value is required, and for an axis that is named like a column.
    """
    doubled = sorted(set(axes) & {column.name for column in table.columns})
    if doubled and table.has_axes:
        raise MegascopeError(f"Table {table.name} has a column {doubled[0]} already: rename the axis.")
    schema = table.schema(axes)
    given = {name: rows[name] for name in (rows.column_names if isinstance(rows, pa.Table) else rows)}
    unknown = sorted(set(given) - set(schema.names))
    if unknown:
        raise MegascopeError(f"Table {table.name} has no column {', '.join(unknown)}: remove it or name the axis.")
    lengths = {len(values) for name, values in given.items() if name not in ("run", "attempt")}
    if len(lengths) > 1:
        raise MegascopeError(f"The columns for table {table.name} have different lengths: {sorted(lengths)}.")
    count = lengths.pop() if lengths else 0
    key = {"run": _constant_name(run, count), "attempt": pa.repeat(pa.scalar(attempt, pa.int32()), count)}
    arrays = [_column(table, field, {**given, **key}.get(field.name), count) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _constant_name(value: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([value], pa.string()))


def _column(table: Table, field: pa.Field, values: Any, count: int) -> pa.Array | pa.ChunkedArray:
    if values is None:
        column = pa.nulls(count, field.type)
    elif not isinstance(values, (pa.Array, pa.ChunkedArray)):
        column = pa.array(values, field.type)
    elif values.type == field.type:
        column = values
    else:
        column = values.cast(field.type)
    if not field.nullable and column.null_count:
        raise MegascopeError(f"Column {field.name} of table {table.name} may not be NULL: give every row a value.")
    return column


def sort_rows(name: str, rows: pa.Table) -> pa.Table:
    """Rows in the order in which they are read most; a table without such an order stays as it is."""
    keys = _SORT.get(name)
    if keys is None or rows.num_rows < 2:
        return rows
    if _is_sorted([rows[key] for key in keys]):
        return rows.unify_dictionaries()
    order = pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in keys])
    return rows.unify_dictionaries().combine_chunks().take(order)


def _is_sorted(keys: Sequence[pa.ChunkedArray]) -> bool:
    """Whether rows ascend by integer keys, the first one first; NULL comes last."""
    ascends = np.ones(len(keys[0]) - 1, bool)
    for key in reversed(keys):
        if not pa.types.is_integer(key.type):
            return False
        full = key.fill_null(np.iinfo(key.type.to_pandas_dtype()).max) if key.null_count else key
        values = full.to_numpy()
        before, after = values[:-1], values[1:]
        ascends = (before < after) | ((before == after) & ascends)
    return bool(ascends.all())


def open_parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Begin a file. Times are delta-encoded and durations byte-split, which other columns' dictionaries beat."""
    plain = {name for name in schema.names if name in _DELTA | _SPLIT}
    encodings = {name: "DELTA_BINARY_PACKED" if name in _DELTA else "BYTE_STREAM_SPLIT" for name in plain}
    encodings |= {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _SPLIT_LISTS & set(schema.names)}
    # The Arrow schema is left out (its dictionaries break Sail); the version goes in as plain metadata instead.
    writer = pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=_dictionary_paths(schema, plain),
        column_encoding=encodings or None,
        write_statistics=[name for name in schema.names if name in _WITH_STATISTICS] or False,
        store_schema=False,
    )
    writer.add_key_value_metadata({key.decode(): value.decode() for key, value in schema.metadata.items()})
    return writer


def row_group_rows(schema: pa.Schema) -> int:
    """Rows of a row group in a file of a table's schema."""
    return WINDOW_GROUP_ROWS if "window_steps" in schema.names else ROW_GROUP_ROWS


def write_parquet(rows: pa.Table, path: Path) -> None:
    """Write one file."""
    with open_parquet(path, rows.schema) as writer:
        writer.write_table(rows, row_group_size=row_group_rows(rows.schema))


def read_parquet(path: Path) -> pa.Table:
    """All rows of one file. Raises OSError or pa.ArrowException where it is missing or damaged."""
    with pq.ParquetFile(open_object(path) if isinstance(path, ObjectPath) else path) as file:
        return file.read()


def _dictionary_paths(schema: pa.Schema, plain: set[str]) -> list[str]:
    """Columns to encode with a dictionary. Nested ones go without: their paths differ between Parquet writers."""
    return [field.name for field in schema if field.name not in plain and not pa.types.is_nested(field.type)]


def last_moment(rows: pa.Table) -> int | None:
    """The last sample, or the end of the last span, in UTC ns; None where the table has neither."""
    if "moment_ns" in rows.column_names:
        return pc.max(rows["moment_ns"]).as_py()  # type: ignore[no-any-return]
    if "start_ns" not in rows.column_names or "duration_ns" not in rows.column_names:
        return None
    ends = pc.add(rows["start_ns"], pc.fill_null(rows["duration_ns"], 0))
    return pc.max(ends).as_py()  # type: ignore[no-any-return]
