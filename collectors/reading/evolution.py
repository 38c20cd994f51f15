"""Files of older versions of the tables, read as if they were of this one: what they lack is NULL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from ..manifests.manifest import FileEntry
from ..tables.schemas import SCHEMA_VERSION, Table

_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.int16(): "SMALLINT"} | {
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
}

ByVersion = Mapping[int, Sequence[Path]]
"""Files of one table by the version of the tables that they were written with."""

_NUMBERED = ", filename = true, file_row_number = true"
_NUMBERED_COLUMNS = ", NULL::VARCHAR AS filename, NULL::BIGINT AS file_row_number"


def by_version(root: Path, entries: Iterable[FileEntry]) -> dict[int, list[Path]]:
    """The paths of files by their versions."""
    found: dict[int, list[Path]] = {}
    for entry in entries:
        found.setdefault(entry.schema, []).append(root / entry.path)
    return found


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


def nothing_of(table: Table, axes: Sequence[str] = (), more: str = "") -> str:
    """A SELECT without rows that has all columns of the table with their types."""
    columns = (f"NULL::{duck_type(field.type)} AS {identifier(field.name)}" for field in table.schema(axes))
    return f"SELECT {', '.join(columns)}{more} WHERE false"


def scan(table: Table, files: ByVersion, axes: Sequence[str] = (), *, numbered: bool = False) -> str:
    """What stands behind FROM to read a table's files; ``numbered`` adds ``filename`` and ``file_row_number``.

    Files of this version are read as they are. Those of older ones are put under the columns of this one by name,
    also inside of structs, with NULL for what they lack.
    """
    options = (_NUMBERED if numbered else "") + (", union_by_name = true" if table.has_axes else "")
    reads = [_read(paths, options) for _, paths in sorted(files.items()) if paths]
    if len(reads) == 1 and files.get(SCHEMA_VERSION):
        return reads[0]
    first = nothing_of(table, axes, _NUMBERED_COLUMNS if numbered else "")
    return "(" + " UNION ALL BY NAME ".join([first, *(f"SELECT * FROM {read}" for read in reads)]) + ")"


def _read(files: Sequence[Path], options: str) -> str:
    listed = ", ".join(literal(str(path)) for path in files)
    return f"read_parquet([{listed}], hive_partitioning = false{options})"
