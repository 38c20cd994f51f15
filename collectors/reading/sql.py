"""Queries by users, fenced: one SELECT over the views of one store, with limits of time, rows and memory."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import duckdb
import pyarrow as pa

from ...profiler.errors import MegascopeError, UsageError
from ..storage.object_path import ObjectPath
from . import sql_child
from .duck import as_duckdb_error, is_read_error, plain_integers, query_error, settings
from .store import Attempt, Store
from .views import identifier, literal

_BATCH_ROWS = 2048
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one query may use. A larger result is cut; more time, or memory to compute it, ends the query."""

    rows: int = 10_000
    seconds: float = 30.0
    memory_mib: int = 2048


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows, whether there were more than the limits allow, and how long it took."""

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

    The query runs in a process of its own, which is killed at the limit of time. It has a database of its own, that
    can read files of the store and nothing else and whose settings cannot be changed. Damaged files are left out.
    Raises UsageError for anything but one SELECT and for SQL that is wrong, MegascopeError where a limit of time or
    memory is hit or data cannot be read.
    """
    limit = limits or SqlLimits()
    if limit.rows < 1:
        raise UsageError(f"A limit of {limit.rows} rows leaves nothing to show: allow at least 1.")
    started = time.monotonic()
    try:
        _check_statement(sql)
        try:
            table, truncated = _run(store, sql, parameters, attempt, limit)
        except duckdb.Error as error:
            if not (is_read_error(error) and store.recover(error, attempt)):
                raise
            table, truncated = _run(store, sql, parameters, attempt, limit)
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


def _check_statement(sql: str) -> None:
    with contextlib.closing(duckdb.connect(":memory:", config=settings(spill=False))) as connection:
        statements = connection.extract_statements(sql)
    if len(statements) != 1:
        found = "nothing" if not statements else f"{len(statements)} statements"
        raise UsageError(f"The SQL holds {found}: give one SELECT.")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            f"Only SELECT may be run here, not {statements[0].type.name}: the store is read, never changed."
        )


def _run(
    store: Store, sql: str, parameters: Sequence[object], attempt: Attempt | None, limits: SqlLimits
) -> tuple[pa.Table, bool]:
    """The result, cut to the limits, and whether it was. Raises what DuckDB raised in the other process."""
    with _process() as process:
        store.query("SELECT 1", attempt=attempt)  # meets, and leaves out, files that are damaged
        views = [f"CREATE VIEW {identifier(name)} AS {select}" for name, select in store.statements(attempt).items()]
        job = sql_child.Job(
            settings=dict(settings(spill=False)),
            object_store=str(store.root) if isinstance(store.root, ObjectPath) else None,
            statements=[*views, *_fence(store, limits)],
            sql=sql,
            parameters=list(parameters),
            batch_rows=_BATCH_ROWS,
            memory_bytes=limits.memory_mib * 2**20,
            seconds=limits.seconds,
        )
        return _talk(process, job, limits)


def _fence(store: Store, limits: SqlLimits) -> list[str]:
    return [
        f"SET memory_limit = '{limits.memory_mib}MiB'",
        f"SET allowed_directories = [{literal(str(store.root))}]",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ]


@contextlib.contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """The process of one query; at the end it is killed, whatever it does."""
    # -P: what lies beside the file must not be imported in place of a library.
    command = [sys.executable, "-P", str(Path(sql_child.__file__))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def _talk(process: subprocess.Popen[bytes], job: sql_child.Job, limits: SqlLimits) -> tuple[pa.Table, bool]:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        pickle.dump(job, stdin)
    with _killed_after(process, _START_S):
        is_ready = process.stdout.readline() == sql_child.READY
    with _killed_after(process, limits.seconds) as is_late:
        with contextlib.suppress(OSError, pa.ArrowException):  # the stream ends where the process does
            if is_ready:
                table, is_cut = _fetch(process.stdout, limits)
                if is_cut or process.wait() == 0:  # a stream that ends early looks like one that is whole
                    return table, is_cut
        raise duckdb.InterruptException("it took too long") if is_late.is_set() else _failure(process)


def _failure(process: subprocess.Popen[bytes]) -> duckdb.Error:
    """What DuckDB raised there; a process that died without a word had no more memory."""
    assert process.stderr is not None
    try:
        told = json.loads(process.stderr.read().splitlines()[-1])
        kind: type[Exception] = getattr(duckdb, told["kind"], Exception)
        error = kind(str(told["message"]))
    except (ValueError, LookupError, TypeError):
        return duckdb.OutOfMemoryException("the process of the query was ended")
    return error if isinstance(error, duckdb.Error) else as_duckdb_error(error)


def _fetch(stream: IO[bytes], limits: SqlLimits) -> tuple[pa.Table, bool]:
    """The first rows of the result, and whether there are more; what is not asked for is not computed to the end."""
    batches: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    with pa.ipc.open_stream(stream) as reader:
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows > limits.rows or size_bytes > limits.memory_mib * 2**20:
                break
        table = pa.Table.from_batches(batches, reader.schema)
    is_cut = rows > limits.rows or size_bytes > limits.memory_mib * 2**20
    return table.slice(0, limits.rows), is_cut


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """Within, the process may run for so long; the event tells that it was killed."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()
        timer.join()
