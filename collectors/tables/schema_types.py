"""What tables are made of: columns with a type and a meaning, and the version that all tables share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 4
"""Version of all tables together; a store of a newer version is refused with a sentence.

A column that is added raises it by one; no column is ever renamed, removed or given another type. Then files of an
older version are read with NULL for what they lack. Version 1 was that of release 0.1.0;
version 2 had no ``worked_ns`` of a step, version 3 no ``rank_tokens``.
"""

NAME = pa.dictionary(pa.int32(), pa.string())
I64, I32, I16, F64 = pa.int64(), pa.int32(), pa.int16(), pa.float64()

FLIGHT = pa.struct(
    [
        ("segment", pa.string()),
        ("kind", pa.string()),
        ("group", I64),
        ("sequence", I64),
        ("peer", I32),
        ("microbatch", I32),
        ("begun_ns", I64),
        ("size_bytes", I64),
        ("waiting", pa.bool_()),
    ]
)
"""One segment in flight in a heartbeat: as in `in_flight`, outermost first."""

GROUP_PROGRESS = pa.struct([("group", I64), ("issued", I64), ("completed", I64)])
"""Last sequence number that a rank issued, and completed, in a group."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Arrow type, one sentence of meaning, and whether NULL may stand in it."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the store. The columns ``run`` and ``attempt`` come first in every one."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    has_axes: bool = False

    def schema(self, axes: Iterable[str] = ()) -> pa.Schema:
        """Arrow schema, its version in the metadata; each of ``axes`` adds an int32 column where the table has them."""
        fields = [pa.field(column.name, column.type, column.nullable) for column in self.columns]
        if self.has_axes:
            fields += [pa.field(axis, pa.int32(), True) for axis in axes]
        metadata = {"megascope.table": self.name, "megascope.schema": str(SCHEMA_VERSION)}
        return pa.schema(fields, metadata=metadata)


def table_of(name: str, doc: str, *columns: Column, has_axes: bool = False) -> Table:
    """A table whose columns ``run`` and ``attempt`` come before those given."""
    key = (
        Column("run", NAME, "The training job, through all its restarts.", nullable=False),
        Column("attempt", I32, "The incarnation of the run, launch to exit: 0, 1, ...", nullable=False),
    )
    return Table(name, doc, key + columns, has_axes)
