"""DuckDB as the store uses it: a database in memory, plain results, and errors in one sentence."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from ...profiler.errors import MegascopeError, UsageError
from ..storage.remote import UnreachableError
from .evolution import identifier

_HUGEINT = pa.decimal128(38, 0)


Settings = dict[str, str | bool | int | float | list[str]]


def settings(*, spill: bool) -> Settings:
    """Of a database that sees no Python variables; ``spill`` lets it use the temporary folder."""
    return {
        "python_enable_replacements": False,
        "temp_directory": str(Path(tempfile.gettempdir()) / "megascope-duckdb") if spill else "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB database in memory."""
    connection = duckdb.connect(":memory:", config=settings(spill=True))
    connection.execute("SET parquet_metadata_cache = true")
    return connection


def replace_views(
    cursor: duckdb.DuckDBPyConnection, schema: str, wanted: Mapping[str, str], present: Mapping[str, str]
) -> None:
    """Create what has changed, in one transaction: a reader sees all of it or nothing."""
    cursor.execute("BEGIN")
    try:
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        cursor.execute(f"USE {schema}")
        for name, select in wanted.items():
            if present.get(name) != select:
                cursor.execute(f"CREATE OR REPLACE VIEW {identifier(name)} AS {select}")
        cursor.execute("COMMIT")
    except duckdb.Error:
        cursor.execute("ROLLBACK")
        raise


def plain_integers(table: pa.Table) -> pa.Table:
    """Sums of BIGINT are HUGEINT in DuckDB and decimals in Arrow: make them int64 where they fit."""
    for index, column in enumerate(table.schema):
        if column.type == _HUGEINT:
            with contextlib.suppress(pa.ArrowInvalid):
                table = table.set_column(index, column.name, table.column(index).cast(pa.int64()))
    return table


_RAISED = re.compile(r"^\w+Error: .*$", re.MULTILINE)
_READ_ERRORS = (duckdb.IOException, duckdb.SerializationException, duckdb.FatalException)


def is_read_error(error: duckdb.Error) -> bool:
    """Whether an error can come from a file that is damaged or gone, rather than from the query or its limits.

    DuckDB's Parquet and Thrift readers raise IOException, plain errors of no class, or InvalidInputException.
    """
    if isinstance(error, duckdb.InvalidInputException):
        return "parquet" in str(error).lower()
    return isinstance(error, _READ_ERRORS) or type(error) is duckdb.Error


def query_error(error: duckdb.Error) -> MegascopeError:
    """What a user is told about a failed query, in one sentence."""
    text = str(error)
    if raised := _RAISED.findall(text):  # by what reads an object store: DuckDB tells the whole traceback
        text = raised[-1]
    message = " ".join(text.split("\n\n")[0].split("LINE ")[0].split())
    if UnreachableError.__name__ in message:
        return MegascopeError(f"The query failed ({message.partition(': ')[2]}): try again once the store answers.")
    if message.startswith(PermissionError.__name__):
        return MegascopeError(f"The query failed ({message.partition(': ')[2]}): check the credentials.")
    is_gone = isinstance(error, duckdb.IOException) and "No such file" in message
    if ".parquet" in message and (is_gone or message.startswith("FileNotFoundError")):
        return MegascopeError(
            f"A file went while it was read ({message}): the store was compacted meanwhile, so run it again, and prune "
            "with a longer --grace where it takes longer than that."
        )
    if isinstance(error, duckdb.ProgrammingError):
        return UsageError(f"The query cannot be run ({message}): correct it.")
    return MegascopeError(f"The query failed ({message}): narrow it to fewer rows or look at the damaged files.")


def as_duckdb_error(error: Exception) -> duckdb.Error:
    """What DuckDB raised while Arrow read its result in pieces: it comes wrapped as an OSError."""
    message = str(error)
    kinds: tuple[tuple[str, type[duckdb.Error]], ...] = (
        ("INTERRUPT", duckdb.InterruptException),
        ("Out of Memory", duckdb.OutOfMemoryException),
        ("IO Error", duckdb.IOException),
    )
    for mark, kind in kinds:
        if mark in message:
            return kind(message)
    return duckdb.InvalidInputException(message)
