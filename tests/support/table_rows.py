"""Rows of any table, with any value that its types can hold, for property tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from megascope.collectors.tables.schemas import TABLES, WRITER_COLUMN, WRITTEN_COLUMN

ADDED = ("run", "attempt", WRITTEN_COLUMN, WRITER_COLUMN)
NAMES_OF_TABLES = tuple(sorted(set(TABLES) - {"runs"}))
NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return NAMES
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        return st.floats(allow_nan=False)
    if pa.types.is_list(kind):
        return st.lists(_values(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: _values(field.type) | st.none() for field in kind})
    limit = 2 ** (kind.bit_width - 1)
    return st.integers(-limit, limit - 1)


@st.composite
def tables(
    draw: st.DrawFn, name: str | None = None, names: Sequence[str] = NAMES_OF_TABLES
) -> tuple[str, dict[str, list[Any]]]:
    """A table and rows of it: any value that its types can hold, NULL where it may stand."""
    name = name or draw(st.sampled_from(names))
    count = draw(st.integers(1, 4))
    columns = {}
    for column in TABLES[name].columns:
        if column.name in ADDED:
            continue
        values = _values(column.type) if not column.nullable else _values(column.type) | st.none()
        columns[column.name] = draw(st.lists(values, min_size=count, max_size=count))
    return name, columns


def as_text(row: dict[str, Any]) -> str:
    """A row as text that can be sorted."""
    return json.dumps(row, sort_keys=True)


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Columns as rows."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
