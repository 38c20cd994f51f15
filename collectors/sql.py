"""Queries by users, fenced: one SELECT over the views of one store, with limits of time, rows and memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from ..profiler.errors import MegascopeError, UsageError
from .duck import as_duckdb_error, connect, plain_integers, query_error
from .store import Attempt, Store
from .views import identifier, literal

_BATCH_ROWS = 2048


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one query may use. Rows beyond ``rows`` are left out; the other two end the query with an error."""

    rows: int = 10_000
    seconds: float = 30.0
    memory_mib: int = 2048


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows, whether there were more than the limit, and how long it took."""

    table: pa.Table
    truncated: bool
    seconds: float


def run_sql(
    store: Store,
    sql: str,
    parameters: Sequence[object] = (),
    *,
    attempt: Attempt | None = None,
    limits: SqlLimits | None = None,
) -> SqlResult:
    """Run one SELECT (also FROM, WITH, VALUES, DESCRIBE, SHOW, SUMMARIZE) over the views, as `Store.query` has them.

    The query gets a database of its own that can read files of the store and nothing else, whose settings cannot be
    changed. Raises UsageError for anything but one SELECT and for SQL that is wrong, MegascopeError where a limit of
    time or memory is hit or data cannot be read.
    """
    limit = limits or SqlLimits()
    started = time.monotonic()
    try:
        with contextlib.closing(connect(spill=False)) as connection:
            _check_statement(connection, sql)
            _create_views(connection, store, attempt)
            _fence(connection, store, limit)
            with _interrupted_after(connection, limit.seconds):
                table, truncated = _fetch(connection, sql, parameters, limit.rows)
    except duckdb.InterruptException as error:
        raise MegascopeError(
            f"The query took longer than {limit.seconds:g} s and was ended: narrow it, for example to fewer steps."
        ) from error
    except duckdb.OutOfMemoryException as error:
        raise MegascopeError(
            f"The query needs more than its {limit.memory_mib} MiB of memory: narrow it or aggregate."
        ) from error
    except duckdb.PermissionException as error:
        raise UsageError(
            f"The query asks for something outside of the store {store.root}: use its tables only."
        ) from error
    except duckdb.Error as error:
        raise query_error(error) from error
    return SqlResult(plain_integers(table), truncated, time.monotonic() - started)


def _check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        found = "nothing" if not statements else f"{len(statements)} statements"
        raise UsageError(f"The SQL holds {found}: give one SELECT.")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            f"Only SELECT may be run here, not {statements[0].type.name}: the store is read, never changed."
        )


def _create_views(connection: duckdb.DuckDBPyConnection, store: Store, attempt: Attempt | None) -> None:
    store.query("SELECT 1", attempt=attempt)  # meets, and leaves out, files that are damaged
    for name, select in store.statements(attempt).items():
        connection.execute(f"CREATE VIEW {identifier(name)} AS {select}")


def _fence(connection: duckdb.DuckDBPyConnection, store: Store, limits: SqlLimits) -> None:
    connection.execute(f"SET memory_limit = '{limits.memory_mib}MiB'")
    connection.execute(f"SET allowed_directories = [{literal(str(store.root))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _fetch(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object], rows: int
) -> tuple[pa.Table, bool]:
    """The first rows of the result, and whether there are more; what is not asked for is not computed to the end."""
    reader = connection.sql(sql, params=list(parameters) or None).to_arrow_reader(_BATCH_ROWS)
    batches: list[pa.RecordBatch] = []
    count = 0
    try:
        for batch in reader:
            batches.append(batch)
            count += batch.num_rows
            if count > rows:
                break
    except (OSError, pa.ArrowException) as error:
        raise as_duckdb_error(error) from error
    table = pa.Table.from_batches(batches, reader.schema)
    return table.slice(0, rows), count > rows


@contextlib.contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
