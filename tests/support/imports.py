"""Imports files for a test, into a store or only into memory, and reads what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from megascope.collectors.importers.imported import Format, Imported, Report, no_progress
from megascope.collectors.importers.importing import import_run, open_source
from megascope.collectors.importers.kineto.kineto import DEFAULT_DEPTH
from megascope.collectors.importers.recognise import recognise
from megascope.collectors.reading.store import Store
from megascope.collectors.tables.schemas import TABLES


def imported(folder: Path, *paths: Path, **options: Any) -> tuple[Report, Store]:
    """The report of an import, and the open store."""
    report = import_run(paths, folder / "imported", **options)
    return report, Store(folder / "imported")


@dataclass(frozen=True, slots=True)
class Taken:
    """What an importer handed over, in memory: its tables, and the view ``spans`` as a store has it."""

    done: Imported
    connection: duckdb.DuckDBPyConnection

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a SELECT."""
        found: list[dict[str, Any]] = self.connection.sql(sql).to_arrow_table().to_pylist()
        return found


class _Memory:
    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        """Keep rows in the order and types of the schema, with NULL for what was not given."""
        schema = TABLES[table].schema()
        columns = {
            field.name: rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(len(rows), field.type)
            for field in schema
        }
        axes = {name: rows[name] for name in rows.column_names if name not in columns}
        self.tables.setdefault(table, []).append(pa.table({**columns, **axes}))


def taken(*paths: Path, depth: int = DEFAULT_DEPTH) -> Taken:
    """Let an importer read files without a store."""
    memory = _Memory()
    done = open_source(recognise(paths), paths, None, depth).read(memory, no_progress)
    connection = duckdb.connect()
    for name in ("events", "steps", "ranks", "groups", "segments", "schedule"):
        parts = memory.tables.get(name) or [TABLES[name].schema().empty_table()]
        connection.register(f"{name}_rows", pa.concat_tables(parts).unify_dictionaries())
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {name}_rows")
    connection.execute(
        """CREATE VIEW spans AS SELECT events.*, segments.name AS segment_name, segments.kind, segments.axis
           FROM events JOIN segments USING (segment)"""
    )
    return Taken(done, connection)


def rows(source: Store | Taken, sql: str) -> list[dict[str, Any]]:
    """Rows of a SELECT over the newest run."""
    if isinstance(source, Taken):
        return source.rows(sql)
    found: list[dict[str, Any]] = source.query(sql, attempt=source.attempt()).to_pylist()
    return found


__all__ = ["Format", "Taken", "imported", "rows", "taken"]
