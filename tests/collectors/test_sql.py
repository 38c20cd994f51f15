"""The fence around users' SQL: reads of the store pass, everything else is refused in one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.sql import SqlLimits, run_sql
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError, UsageError


@pytest.fixture
def store(writer: TableWriter, events: Callable[..., Any]) -> Iterator[Store]:
    """A store of two runs with 30 spans each, beside a file that nobody may read."""
    for run in ("r", "q"):
        writer.write("events", run, 0, events(30))
    writer.commit()
    (writer.root.parent / "secret.csv").write_text("a,b\n1,2\n")
    with Store(writer.root) as store:
        yield store


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM spans",
        "select count(*) as n from events -- comment",
        "FROM events SELECT count(*) AS n",
        "WITH e AS (SELECT * FROM events) SELECT count(*) AS n FROM e",
        "(SELECT count(*) AS n FROM events_aligned);",
    ],
)
def test_selects_run(store: Store, sql: str) -> None:
    result = run_sql(store, sql)
    assert result.table.to_pylist() == [{"n": 60}]
    assert not result.truncated
    assert result.seconds > 0


@pytest.mark.parametrize("sql", ["DESCRIBE events", "SHOW TABLES", "SUMMARIZE steps", "VALUES (1)"])
def test_questions_about_the_tables_run(store: Store, sql: str) -> None:
    assert run_sql(store, sql).table.num_rows > 0


def test_parameters_and_an_attempt(store: Store) -> None:
    sql = 'SELECT count(*) AS n FROM events WHERE "sequence" <= ?'
    assert run_sql(store, sql, [10], attempt=store.attempt("q")).table["n"].to_pylist() == [10]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{outside}')",
        "SELECT * FROM '{outside}'",
        "SELECT * FROM read_text('{store}/../secret.csv')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM sniff_csv('{outside}')",
        "SELECT * FROM parquet_metadata('/tmp/x.parquet')",
        "SELECT * FROM read_json('http://127.0.0.1:1/x')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT getenv('HOME')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{store}/x.csv''')",
        "COPY events TO '{store}/x.csv'",
        "COPY (SELECT 1) TO '{outside}'",
        "EXPORT DATABASE '{store}/x'",
        "ATTACH '{store}/x.duckdb'",
        "ATTACH ':memory:' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "CALL duckdb_tables()",
        "CREATE TABLE x (a INT)",
        "CREATE VIEW events AS SELECT 1",
        "DROP VIEW events",
        "INSERT INTO events VALUES (1)",
        "DELETE FROM events",
        "PREPARE x AS SELECT 1",
        "USE main",
        "BEGIN",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{store}/x.csv'",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW events",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT * FROM nonsense",
    ],
)
def test_everything_else_is_refused_in_one_sentence(store: Store, sql: str) -> None:
    outside = store.root.parent / "secret.csv"
    before = sorted(store.root.rglob("*"))
    with pytest.raises(UsageError) as caught:
        run_sql(store, sql.format(store=store.root, outside=outside))
    assert "\n" not in str(caught.value)
    assert sorted(store.root.rglob("*")) == before
    assert outside.read_text() == "a,b\n1,2\n"


def test_python_variables_are_not_tables(store: Store) -> None:
    import pyarrow as pa

    secret = pa.table({"a": [1]})
    with pytest.raises(UsageError):
        run_sql(store, "SELECT * FROM secret")
    assert secret.num_rows == 1


@pytest.mark.parametrize(("rows", "truncated"), [(59, True), (60, False), (61, False), (1, True)])
def test_the_limit_of_rows(store: Store, rows: int, truncated: bool) -> None:
    result = run_sql(store, "SELECT * FROM events", limits=SqlLimits(rows=rows))
    assert (result.table.num_rows, result.truncated) == (min(rows, 60), truncated)


def test_rows_beyond_the_limit_are_not_computed(store: Store) -> None:
    result = run_sql(store, "SELECT * FROM range(1000000000000)", limits=SqlLimits(rows=5, seconds=20))
    assert (result.table.num_rows, result.truncated) == (5, True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(100000000000) a, range(1000) b",
        "SELECT * FROM range(1000000000000) WHERE hash(range) % 1000000 = 7",
    ],
)
def test_the_limit_of_time(store: Store, sql: str) -> None:
    with pytest.raises(MegascopeError, match=r"longer than 0\.3 s") as caught:
        run_sql(store, sql, limits=SqlLimits(seconds=0.3, rows=10**9))
    assert caught.value.exit_code == 1


def test_the_limit_of_memory(store: Store) -> None:
    sql = "SELECT list(a.range) FROM range(1000000) a, range(1000) b GROUP BY b.range"
    with pytest.raises(MegascopeError, match="64 MiB"):
        run_sql(store, sql, limits=SqlLimits(memory_mib=64))


def test_a_store_with_a_quote_in_its_path(tmp_path: Path, events: Callable[..., Any]) -> None:
    with TableWriter(tmp_path / "o'store", "w") as writer:
        writer.write("events", "r'", 0, events(1))
        writer.commit()
    with Store(tmp_path / "o'store") as store:
        assert run_sql(store, "SELECT run FROM events").table["run"].to_pylist() == ["r'"]


def test_damaged_files_are_left_out(store: Store) -> None:
    store.files("events")[0].write_bytes(b"")
    assert run_sql(store, "SELECT count(*) AS n FROM events").table["n"].to_pylist() == [30]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM (SELECT unnest(range(100000000)))",
        "SELECT count(*) FROM (SELECT unnest(range(100000000)) FROM range(20))",
        "SELECT length(repeat('x', 2000000000) || repeat('y', 2000000000))",
    ],
)
def test_what_cannot_be_interrupted_is_ended_all_the_same(store: Store, sql: str) -> None:
    """DuckDB folds constants, and fills one vector, without looking at its clock."""
    started = time.monotonic()
    with pytest.raises(MegascopeError, match=r"longer than 0\.3 s|MiB of memory"):
        run_sql(store, sql, limits=SqlLimits(seconds=0.3, memory_mib=512))
    assert time.monotonic() - started < 5


def test_the_size_of_a_result_is_limited(store: Store) -> None:
    sql = "SELECT repeat('x', 20000) AS text FROM range(10000)"
    result = run_sql(store, sql, limits=SqlLimits(memory_mib=64))
    assert result.truncated
    assert 64 * 2**20 <= result.table.nbytes < 110 * 2**20


@pytest.mark.parametrize("rows", [0, -1])
def test_a_limit_without_rows_is_refused(store: Store, rows: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        run_sql(store, "SELECT 1", limits=SqlLimits(rows=rows))


def test_a_damaged_page_is_left_out(store: Store) -> None:
    path = store.files("events")[0]
    data = bytearray(path.read_bytes())
    for index in range(8, len(data) // 3):
        data[index] ^= 0xFF
    path.write_bytes(data)
    assert run_sql(store, "SELECT * FROM events WHERE start_ns > 0").table.num_rows == 30
    assert [file.path for file in store.damaged] == [path]


def test_a_query_leaves_no_process_behind(store: Store) -> None:
    import psutil

    before = psutil.Process().children()
    run_sql(store, "SELECT * FROM events", limits=SqlLimits(rows=1))
    assert psutil.Process().children() == before


def test_an_error_after_the_first_rows_is_no_short_result(store: Store) -> None:
    sql = "SELECT CASE WHEN range > 50000 THEN error('late') ELSE range END FROM range(60000)"
    with pytest.raises(MegascopeError, match="late"):
        run_sql(store, sql, limits=SqlLimits(rows=10**6))
