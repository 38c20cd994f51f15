"""The store as readers meet it: whole, damaged, copied, read-only, being written, restarted, of another version."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from megascope.collectors.manifests.files import FileChecker
from megascope.collectors.reading.store import Store
from megascope.collectors.tables.schemas import TABLES, WRITER_COLUMN, WRITTEN_COLUMN
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.topology import Topology

MESH = Topology.of(pp=2, dp=1, tp=2)


@pytest.fixture
def filled(writer: TableWriter, events: Callable[..., Any]) -> Path:
    """A store with one attempt of 4 ranks and 3 steps."""
    _fill(writer, events, "r", 0, steps=range(3))
    writer.commit()
    return writer.root


def _fill(writer: TableWriter, events: Callable[..., Any], run: str, attempt: int, steps: range) -> None:
    writer.write("runs", run, attempt, {
        "layout": ['{"pp": 2, "dp": 1, "tp": 2}'], "world_size": [4], "configuration": ['{"lr": 0.1}'],
        "start_ns": [1000 * (attempt + 1)],
    })  # fmt: skip
    places = [MESH.coordinates(rank) for rank in range(4)]
    writer.write("ranks", run, attempt, {
        "rank": range(4), "host": ["a", "a", "b", "b"], **{axis: [p[axis] for p in places] for axis in MESH.names},
    }, axes=MESH.names)  # fmt: skip
    writer.write(
        "segments", run, attempt, {"segment": [7], "name": ["tp_all_reduce"], "kind": ["collective"], "axis": ["tp"]}
    )
    for rank in range(4):
        for step in steps:
            writer.write("events", run, attempt, events(5, rank=rank, step=step))
        count = len(steps)
        losses = [attempt + 0.5] * count
        columns = {"rank": [rank] * count, "step": list(steps), "start_ns": list(steps), "loss": losses}
        writer.write("steps", run, attempt, columns)


# -- opening ----------------------------------------------------------------------------------------------------


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MegascopeError, match=r"no store at .*nowhere"):
        Store(tmp_path / "nowhere")


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MegascopeError, match="is a file"):
        Store(tmp_path / "file")


def test_a_folder_of_something_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "events.parquet").touch()
    with pytest.raises(MegascopeError, match="no store of megascope"):
        Store(tmp_path)


def test_an_empty_store_says_so(writer: TableWriter) -> None:
    with pytest.raises(MegascopeError, match="is empty"):
        Store(writer.root)


@pytest.mark.parametrize("marker", ['{"schema": 999}', '{"schema": "two"}'])
def test_a_newer_store_is_refused(filled: Path, marker: str) -> None:
    (filled / "_megascope.json").write_text(marker)
    with pytest.raises(MegascopeError, match="newer"):
        Store(filled)


def test_every_error_is_one_sentence_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(MegascopeError) as caught:
        Store(tmp_path)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


# -- attempts ---------------------------------------------------------------------------------------------------


def test_attempts_come_by_start_and_the_newest_is_the_default(writer: TableWriter, events: Callable[..., Any]) -> None:
    _fill(writer, events, "r", 1, steps=range(1))
    _fill(writer, events, "r", 0, steps=range(1))
    _fill(writer, events, "q", 7, steps=range(1))
    writer.commit()
    with Store(writer.root) as store:
        assert [(a.run, a.attempt) for a in store.attempts()] == [("r", 0), ("r", 1), ("q", 7)]
        assert (store.attempt().run, store.attempt().attempt) == ("q", 7)
        assert store.attempt("r").attempt == 1
        found = store.attempt("r", 0)
        assert list(found.layout.items()) == [("pp", 2), ("dp", 1), ("tp", 2)]
        assert (found.world_size, found.configuration, found.end_ns) == (4, {"lr": 0.1}, None)
        with pytest.raises(UsageError, match="has r, q"):
            store.attempt("nonsense")
        with pytest.raises(UsageError, match="it has 0, 1"):
            store.attempt("r", 5)


def test_an_attempt_without_a_row_in_runs_is_listed(writer: TableWriter, events: Callable[..., Any]) -> None:
    writer.write("events", "bare", 3, events(1))
    writer.commit()
    with Store(writer.root) as store:
        (attempt,) = store.attempts()
        assert (attempt.run, attempt.attempt, attempt.layout, attempt.world_size) == ("bare", 3, {}, None)
        assert store.read("ranks", attempt).num_rows == 0


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("finished", "finished"), ("finished", 30)),
        (("finished", "interrupted"), ("interrupted", 30)),
        (("interrupted", "crashed"), ("crashed", 30)),
        (("finished", None), (None, None)),
    ],
)
def test_an_attempt_on_two_hosts_ends_when_both_say_so(
    store_root: Path, reasons: tuple[str, str | None], expected: tuple[str | None, int | None]
) -> None:
    for host, reason in enumerate(reasons):
        with TableWriter(store_root, f"agent-{host}") as writer:
            writer.write("runs", "r", 0, {"start_ns": [10 + host], "world_size": [2]})
            writer.commit()
            row = {"start_ns": [10 + host], "world_size": [2], "end_ns": [20 + 10 * host], "exit_reason": [reason]}
            writer.write("runs", "r", 0, row if reason else {"start_ns": [10 + host], "world_size": [2]})
            writer.commit()
    with Store(store_root) as store:
        attempt = store.attempt()
        assert (attempt.exit_reason, attempt.end_ns) == expected
        assert attempt.start_ns == 10


def test_the_age_of_the_data(writer: TableWriter) -> None:
    now = time.time_ns()
    writer.write("heartbeats", "r", 0, {"rank": [0], "moment_ns": [now - 5 * 10**9]})
    writer.write("segments", "q", 0, {"segment": [1], "name": ["x"], "kind": ["compute"]})
    writer.commit()
    with Store(writer.root) as store:
        assert store.last_moment_ns(store.attempt("r")) == now - 5 * 10**9
        assert store.data_age_s(store.attempt("r")) == pytest.approx(5, abs=3)
        assert store.data_age_s(store.attempt("q")) is None


# -- views ------------------------------------------------------------------------------------------------------


def test_spans_carry_names_and_places(filled: Path) -> None:
    with Store(filled) as store:
        spans = store.read("spans", store.attempt())
        assert spans.num_rows == 4 * 3 * 5
        row = store.read("spans", store.attempt(), where="rank = ? AND step = 2", parameters=[3]).to_pylist()[0]
    assert (row["segment_name"], row["kind"], row["axis"], row["host"], row["stage"]) == (
        "tp_all_reduce", "collective", "tp", "b", 1,
    )  # fmt: skip
    assert (row["pp"], row["dp"], row["tp"]) == (1, 0, 1)


def test_views_can_be_restricted_to_an_attempt(writer: TableWriter, events: Callable[..., Any]) -> None:
    _fill(writer, events, "r", 0, steps=range(2))
    _fill(writer, events, "q", 0, steps=range(1))
    writer.commit()
    with Store(writer.root) as store:
        assert store.query("SELECT count(*) AS n FROM events")["n"].to_pylist() == [60]
        assert store.query("SELECT count(*) AS n FROM events", attempt=store.attempt("q"))["n"].to_pylist() == [20]


def test_what_many_writers_repeat_is_shown_once(store_root: Path) -> None:
    for host in range(3):
        with TableWriter(store_root, f"agent-{host}") as writer:
            writer.write("segments", "r", 0, {"segment": [1, 2], "name": ["x", "y"], "kind": ["compute"] * 2})
            writer.write("groups", "r", 0, {"group": [5], "kind": ["dp"], "ranks": [[0, 1, 2]]})
            writer.write("ranks", "r", 0, {"rank": [host], "host": [f"h{host}"], "dp": [host]}, axes=["dp"])
            writer.commit()
    with Store(store_root) as store:
        attempt = store.attempt()
        assert sorted(store.read("segments", attempt)["segment"].to_pylist()) == [1, 2]
        assert store.read("groups", attempt).to_pylist() == [
            {"run": "r", "attempt": 0, "group": 5, "kind": "dp", "ranks": [0, 1, 2]}
        ]
        assert sorted(store.read("ranks", attempt)["dp"].to_pylist()) == [0, 1, 2]


def test_repeated_steps_show_the_newest_attempt_and_keep_both(writer: TableWriter, events: Callable[..., Any]) -> None:
    _fill(writer, events, "r", 0, steps=range(4))
    _fill(writer, events, "r", 1, steps=range(2, 6))
    writer.commit()
    with Store(writer.root) as store:
        steps = store.query("SELECT step, attempt FROM steps WHERE rank = 0 ORDER BY step").to_pylist()
        assert [(row["step"], row["attempt"]) for row in steps] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1)]
        assert store.query("SELECT count(*) AS n FROM steps_all WHERE rank = 0")["n"].to_pylist() == [8]
        spans = store.query("SELECT step, attempt, count(*) AS n FROM spans GROUP BY ALL ORDER BY ALL").to_pylist()
        assert [(row["step"], row["attempt"], row["n"]) for row in spans] == [
            (step, int(step >= 2), 20) for step in range(6)
        ]
        assert store.read("steps", store.attempt("r", 0), where="rank = 0").num_rows == 4
        assert store.read("spans", store.attempt("r", 0)).num_rows == 80
        assert store.query("SELECT count(*) AS n FROM events")["n"].to_pylist() == [160]


def test_a_step_written_again_shows_its_newest_row(writer: TableWriter) -> None:
    for loss in (None, 0.25):
        writer.write("steps", "r", 0, {"rank": [0], "step": [3], "start_ns": [9], "loss": [loss]})
        writer.commit()
    with Store(writer.root) as store:
        assert store.read("steps", store.attempt(), ["step", "loss"]).to_pylist() == [{"step": 3, "loss": 0.25}]


def test_every_table_and_view_answers_without_files(writer: TableWriter) -> None:
    writer.write("runs", "r", 0, {"layout": ['{"pp": 1, "ep": 4}'], "start_ns": [1]})
    writer.commit()
    with Store(writer.root) as store:
        attempt = store.attempt()
        for name, table in TABLES.items():
            empty = store.read(name, attempt)
            seen = [column.name for column in table.columns if column.name not in (WRITTEN_COLUMN, WRITER_COLUMN)]
            assert empty.schema.names[: len(seen)] == seen
        assert store.read("ranks", attempt).schema.names[-2:] == ["pp", "ep"]
        assert store.read("spans", attempt).schema.names[-2:] == ["pp", "ep"]
        assert store.tables() == ["runs"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_query_finds_every_view_that_it_needs_and_no_other_is_made(
    writer: TableWriter, events: Callable[..., Any], restarts: bool
) -> None:
    for attempt in range(1 + restarts):
        _fill(writer, events, "r", attempt, steps=range(3))
    writer.commit()
    with Store(writer.root) as store:
        names = list(store.statements())
        assert set(store.query("SHOW TABLES").column("name").to_pylist()) == set(names)
    for name in names:
        with Store(writer.root) as store:
            assert store.query(f'SELECT * FROM "{name.upper()}"').num_rows >= 0
            assert name in store._views[None].made
            assert len(store._views[None].made) < len(names) / 2


def test_an_axis_may_have_any_name(writer: TableWriter, events: Callable[..., Any]) -> None:
    writer.write("ranks", "r", 0, {"rank": [0], "host": ["h"], "group": [3], "select": [4]}, axes=["group", "select"])
    writer.write("events", "r", 0, events(1))
    writer.commit()
    with Store(writer.root) as store:
        (row,) = store.read("spans", store.attempt()).to_pylist()
        assert row["select"] == 4
        assert row["group"] is None, "the span's own column of that name is not hidden"


def test_aligned_events_apply_offset_and_drift(writer: TableWriter) -> None:
    writer.write("ranks", "r", 0, {"rank": [0, 1], "host": ["a", "b"]})
    writer.write("clock_offsets", "r", 0, {
        "host": ["a", "b", "b"], "moment_ns": [0, 0, 1000], "offset_ns": [0, 1, 50], "drift_ppb": [0.0, 0.0, 1e6],
        "uncertainty_ns": [1, 2, 3],
    })  # fmt: skip
    common = {"segment": [7] * 3, "clock": ["host"] * 3, "status": ["ok"] * 3}
    writer.write("events", "r", 0, {"rank": [0, 1, 2], "start_ns": [100, 2000, 300], **common})
    writer.commit()
    with Store(writer.root) as store:
        rows = store.read("events_aligned", store.attempt(), ["rank", "start_ns", "uncertainty_ns"]).to_pylist()
    assert [tuple(row.values()) for row in sorted(rows, key=lambda row: row["rank"])] == [
        (0, 100, 1), (1, 2000 + 50 + 1, 3), (2, None, None),
    ]  # fmt: skip


def test_sums_are_plain_integers_and_strings_are_plain(filled: Path) -> None:
    with Store(filled) as store:
        table = store.query("SELECT sum(duration_ns) AS total, min(clock) AS clock FROM events")
    assert (str(table.schema.field("total").type), str(table.schema.field("clock").type)) == ("int64", "string")


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT nonsense FROM events", "SELECT * FROM nonsense"])
def test_wrong_sql_is_the_users_error(filled: Path, sql: str) -> None:
    with Store(filled) as store, pytest.raises(UsageError) as caught:
        store.query(sql)
    assert "\n" not in str(caught.value)


def test_a_stream_gives_the_same_rows_in_pieces(filled: Path) -> None:
    with Store(filled) as store:
        attempt = store.attempt()
        sql = 'SELECT rank, step, "sequence" FROM events WHERE rank <> ? ORDER BY ALL'
        pieces = list(store.stream(sql, [1], attempt, batch_rows=7))
        assert len(pieces) > 1
        assert [row for piece in pieces for row in piece.to_pylist()] == store.query(sql, [1], attempt).to_pylist()


def test_threads_share_a_store(filled: Path) -> None:
    with Store(filled) as store:
        results: list[int] = []

        def ask(number: int) -> None:
            attempt = store.attempt() if number % 2 else None
            sql = "SELECT count(*) AS n FROM spans"
            results.extend(store.query(sql, attempt=attempt)["n"][0].as_py() for _ in range(5))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert results == [60] * 30


# -- damage, copies, live stores ------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _foreign(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for index in range(8, len(data) // 3):
        data[index] ^= 0xFF
    path.write_bytes(data)


def _footer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for index in range(len(data) - 60, len(data) - 8):
        data[index] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_cut, _empty, _foreign, _flip, _footer, Path.unlink])
def test_a_damaged_file_is_left_out_and_listed(filled: Path, damage: Callable[[Path], None]) -> None:
    with Store(filled) as store:
        victim = store.files("events")[0]
    damage(victim)
    with Store(filled) as store:
        rows = store.query("SELECT DISTINCT rank, step FROM spans WHERE duration_ns > 0", attempt=store.attempt())
        assert rows.num_rows == 4 * 3 - 1
        assert [file.path for file in store.damaged] == [victim]
        assert store.damaged[0].reason
        assert victim not in store.files("events")


def test_damage_while_the_store_is_open_is_noticed(filled: Path) -> None:
    with Store(filled) as store:
        attempt = store.attempt()
        assert store.read("spans", attempt).num_rows == 60
        _flip(store.files("events")[3])
        assert store.query("SELECT * FROM spans WHERE duration_ns > 0", attempt=attempt).num_rows == 55
        assert len(store.damaged) == 1


def test_a_copied_store_opens_the_same_way(filled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(filled, copy)
    shutil.rmtree(filled)
    with Store(copy) as store:
        assert store.read("spans", store.attempt()).num_rows == 60
        assert store.damaged == []


def test_reading_writes_nothing_into_the_store(filled: Path) -> None:
    def listing() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in filled.rglob("*")}

    before = listing()
    with Store(filled) as store:
        store.refresh()
        for name in (*TABLES, "spans", "events_aligned", "steps_all", "windows"):
            store.read(name, store.attempt())
            store.query(f'SELECT count(*) FROM "{name}"')
    assert listing() == before


def test_a_relative_path_works_after_the_working_folder_changed(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(filled.parent)
    with Store(filled.name) as store:
        monkeypatch.chdir("/")
        assert store.read("spans", store.attempt()).num_rows == 60


def test_refresh_takes_over_what_was_committed(writer: TableWriter, events: Callable[..., Any], filled: Path) -> None:
    with Store(filled) as store:
        attempt, version = store.attempt(), store.version()
        store.refresh()
        assert store.version() == version
        _fill(writer, events, "new", 0, steps=range(1))
        writer.write("events", "r", 0, events(5, step=8))
        writer.commit()
        assert store.read("events", attempt).num_rows == 60
        store.refresh()
        assert store.version() != version
        assert store.read("events", attempt).num_rows == 65
        assert {a.run for a in store.attempts()} == {"r", "new"}


def test_a_reader_left_far_behind_catches_up_by_itself(store_root: Path, events: Callable[..., Any]) -> None:
    """Its files were merged and deleted meanwhile: the query takes over the newer manifest instead of failing."""
    with TableWriter(store_root, "w", grace_s=0) as writer:
        writer.write("events", "r", 0, events(5))
        writer.commit()
        with Store(store_root) as store:
            attempt = store.attempt()
            assert store.read("events", attempt).num_rows == 5
            for number in range(40):
                writer.write("events", "r", 0, events(5, step=number + 1))
                writer.commit()
            assert store.query("SELECT sum(duration_ns) AS s FROM events", attempt=attempt)["s"].to_pylist() == [
                41 * 50
            ]
            assert store.damaged == []


def test_the_catalog_serves_any_duckdb_client(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(filled.parent)
    with Store(filled.name) as store:
        path = store.write_catalog()
        store.write_catalog()
    monkeypatch.chdir("/")
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.sql("SELECT count(*), min(segment_name) FROM spans").fetchall() == [(60, "tp_all_reduce")]
        names = {row[0] for row in connection.sql("SHOW TABLES").fetchall()}
    assert names == {*TABLES, "spans", "steps_all", "events_aligned", "windows"}
    assert not list(filled.glob("*.tmp"))


def test_other_readers_understand_the_folders(filled: Path) -> None:
    """The layout is Hive's: a plain DuckDB finds run, attempt and block in the paths."""
    with duckdb.connect() as connection:
        pattern = str(filled / "events/*/*/*/*.parquet").replace("'", "''")
        sql = f"SELECT DISTINCT run, attempt, block FROM read_parquet('{pattern}', hive_partitioning = true)"
        assert connection.sql(sql).fetchall() == [("r", 0, "b000")]


@pytest.mark.parametrize(
    "sql", ["SELECT CAST('x' AS BIGINT)", "SELECT error('mine')", "SELECT 1 +", "SELECT * FROM events WHERE nonsense"]
)
def test_an_error_of_the_query_reads_no_file(filled: Path, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    looked: list[object] = []
    with Store(filled) as store:
        monkeypatch.setattr(store._checker, "check_thoroughly", looked.append)
        with pytest.raises(MegascopeError):
            store.query(sql)
    assert looked == []


@pytest.mark.parametrize("seed", range(12))
def test_damage_of_any_kind_ends_in_an_answer(filled: Path, seed: int) -> None:
    """A few bytes of one file are others: the rest of the store is shown, and no error passes for another's."""
    chance = random.Random(seed)
    with Store(filled) as store:
        path = store.files("events")[0]
    data = bytearray(path.read_bytes())
    first = chance.randrange(4, len(data) - 8)
    for index in range(first, min(len(data) - 8, first + chance.choice([1, 30, 300]))):
        data[index] ^= chance.choice([0xFF, 0x01, 0x80])
    path.write_bytes(data)
    with Store(filled) as store:
        rows = store.query("SELECT rank, step, start_ns FROM events", attempt=store.attempt()).num_rows
        assert rows == (60 if not store.damaged else 55)


def test_a_long_read_whose_files_went_says_why(store_root: Path) -> None:
    count = 10_000
    columns: dict[str, Any] = {
        "rank": [0] * count,
        "segment": [1] * count,
        "start_ns": range(count),
        "sequence": range(count),
    }
    columns |= {"clock": ["host"] * count, "status": ["ok"] * count}
    for number in range(60):
        with TableWriter(store_root, f"w{number}") as writer:
            writer.write("events", "r", 0, columns)
            writer.commit()
    with Store(store_root) as store:
        batches = store.stream("SELECT * FROM events", attempt=store.attempt())
        next(batches)
        for path in store.files("events"):
            path.unlink()
        with pytest.raises(MegascopeError, match="compacted meanwhile") as caught:
            list(batches)
    assert not isinstance(caught.value, UsageError)


def test_only_the_file_that_an_error_names_is_read_from_end_to_end(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        with TableWriter(store_root, f"w{number}") as writer:
            writer.write("events", "r", 0, events(50, first=1 + 50 * number))
            writer.commit()
    read: list[list[Path]] = []
    check = FileChecker.check_thoroughly

    def noting(checker: FileChecker, paths: list[Path]) -> bool:
        read.append(paths)
        return check(checker, paths)

    monkeypatch.setattr(FileChecker, "check_thoroughly", noting)
    with Store(store_root) as store:
        path = store.files("events")[2]
        assert not store.recover(duckdb.IOException(f'Could not read from file "{path}": Input/output error'), None)
        assert read == [[path]]
        assert not store.recover(duckdb.IOException("Input/output error"), None)
        assert read[1:] == [store.files("events")]
