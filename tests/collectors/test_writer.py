"""The writer: what is committed is read back exactly, what is not is never seen, and small files are merged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.collectors.tables.schemas import SCHEMA_VERSION
from megascope.collectors.upkeep.sweeping import sweep
from megascope.collectors.writing import manifest_writer as writers
from megascope.collectors.writing import merging
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError
from support.table_rows import ADDED, NAMES, as_text, rows_of, tables


@given(tables(), NAMES.filter(bool), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_value_comes_back(
    tmp_path_factory: pytest.TempPathFactory, written: tuple[str, dict[str, list[Any]]], run: str, attempt: int
) -> None:
    name, columns = written
    root = tmp_path_factory.mktemp("store")
    with TableWriter(root, "w") as writer:
        writer.write(name, run, attempt, columns)
        writer.commit()
    with Store(root) as store:
        (path,) = store.files(name)
        table = pq.ParquetFile(path).read()
    found = [{k: v for k, v in row.items() if k not in ADDED} for row in table.to_pylist()]
    assert sorted(map(as_text, found)) == sorted(map(as_text, rows_of(columns)))
    assert set(table["run"].to_pylist()) == {run}
    assert set(table["attempt"].to_pylist()) == {attempt}


def test_files_carry_schema_version_and_encodings(writer: TableWriter, events: Callable[..., Any]) -> None:
    writer.write("events", "r", 0, events(100))
    writer.commit()
    file = pq.ParquetFile(writer.root / writer.committed_files[0].path)
    assert file.metadata.metadata[b"megascope.schema"] == str(SCHEMA_VERSION).encode()
    columns = {file.metadata.row_group(0).column(i).path_in_schema: file.metadata.row_group(0).column(i)
               for i in range(file.metadata.num_columns)}  # fmt: skip
    assert {"DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"} & set(columns["start_ns"].encodings)
    assert "BYTE_STREAM_SPLIT" in columns["duration_ns"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["run"].has_dictionary_page


def test_manifest_entries_tell_what_a_file_spans(writer: TableWriter, events: Callable[..., Any]) -> None:
    writer.write("events", "r", 1, events(3, rank=5, step=9))
    writer.commit()
    (entry,) = writer.committed_files
    assert (entry.rows, entry.order) == (3, 1)
    assert entry.max_ns == max(events(3, rank=5, step=9)["start_ns"]) + 10
    assert entry.size_bytes == (writer.root / entry.path).stat().st_size


def test_nothing_is_seen_before_the_commit(writer: TableWriter, events: Callable[..., Any]) -> None:
    writer.write("events", "r", 0, events(2))
    writer.commit({"at": 1})
    writer.write("events", "r", 0, events(5))
    with Store(writer.root) as store:
        assert store.read("events", store.attempt()).num_rows == 2
        writer.commit({"at": 2})
        assert store.read("events", store.attempt()).num_rows == 2
        store.refresh()
        assert store.read("events", store.attempt()).num_rows == 7


def test_the_next_incarnation_goes_on_and_clears_what_was_never_committed(
    store_root: Path, events: Callable[..., Any]
) -> None:
    first = TableWriter(store_root, "w")
    first.write("events", "r", 0, events(2))
    first.commit({"at": [1, 2]})
    first.write("events", "r", 0, events(3))
    (orphan,) = [path for path in store_root.rglob("*.parquet") if path.name.endswith("2-0.parquet")]
    (orphan.parent / (orphan.name + ".tmp")).touch()
    first._lock.release()  # as a kill does: the lock is gone, the staged file is not
    with TableWriter(store_root, "w") as second:
        assert second.state == {"at": [1, 2]}
        assert not orphan.exists()
        assert not list(store_root.rglob("*.tmp"))
        assert second.commit() == 2


def test_rollback_deletes_what_was_staged(writer: TableWriter, events: Callable[..., Any]) -> None:
    writer.write("events", "r", 0, events(2))
    writer.rollback()
    assert not list(writer.root.rglob("*.parquet"))
    writer.commit()
    assert writer.committed_files == ()


def test_replace_takes_the_place_of_what_was_there(writer: TableWriter) -> None:
    for name in ("old", "new"):
        writer.write("segments", "r", 0, {"segment": [1], "name": [name], "kind": ["compute"]}, replace=True)
        writer.write("segments", "other", 0, {"segment": [1], "name": [name], "kind": ["compute"]})
        writer.commit()
    with Store(writer.root) as store:
        assert store.read("segments", store.attempt("r"), ["name"]).to_pydict() == {"name": ["new"]}
        assert len(store.files("segments", store.attempt("r"))) == 1
        assert len(store.files("segments", store.attempt("other"))) == 2


def test_a_second_writer_of_the_same_name_is_refused(writer: TableWriter) -> None:
    with pytest.raises(MegascopeError, match="Another process holds"):
        TableWriter(writer.root, writer.writer)
    with TableWriter(writer.root, "another"):
        pass


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"rank": [1], "nonsense": [2]}, "no column nonsense"),
        ({"rank": [1, 2], "step": [1]}, "different lengths"),
        ({"rank": [None], "step": [1], "start_ns": [1]}, "may not be NULL"),
    ],
)
def test_rows_that_do_not_fit_are_refused(writer: TableWriter, rows: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(MegascopeError, match=message):
        writer.write("steps", "r", 0, rows)


def test_an_unknown_table_is_refused(writer: TableWriter) -> None:
    with pytest.raises(MegascopeError, match="no table"):
        writer.write("nonsense", "r", 0, {})


def test_a_newer_store_is_not_written(store_root: Path) -> None:
    store_root.mkdir()
    (store_root / "_megascope.json").write_text('{"schema": 99}')
    with pytest.raises(MegascopeError, match="newer"):
        TableWriter(store_root, "w")


def test_small_files_are_merged_and_nothing_is_lost(writer: TableWriter, events: Callable[..., Any]) -> None:
    for number in range(100):
        writer.write("events", "r", 0, events(3, step=100 - number, first=3 * number))
        writer.commit()
        assert len(writer.committed_files) <= merging.MERGE_ABOVE_FILES
    with Store(writer.root) as store:
        rows = store.read("events", store.attempt(), ["sequence", "step"])
        assert sorted(rows["sequence"].to_pylist()) == list(range(300))
    merged = max(writer.committed_files, key=lambda entry: entry.rows)
    steps = pq.ParquetFile(writer.root / merged.path).read()["step"].to_pylist()
    assert steps == sorted(steps)
    assert len(list(writer.root.rglob("events/**/*.parquet"))) <= 2 * merging.MERGE_ABOVE_FILES + 2


def test_replaced_files_stay_for_their_grace(store_root: Path, events: Callable[..., Any]) -> None:
    with TableWriter(store_root, "w", grace_s=3600) as writer:
        for _ in range(merging.MERGE_ABOVE_FILES + 2):
            writer.write("events", "r", 0, events(1))
            writer.commit()
        on_disk = set(store_root.rglob("*.parquet"))
        live = {store_root / entry.path for entry in writer.committed_files}
        assert live < on_disk
        assert len(on_disk - live) == merging.MERGE_ABOVE_FILES
    with TableWriter(store_root, "w", grace_s=3600) as again:  # those on their way out are no orphans
        assert set(store_root.rglob("*.parquet")) == on_disk
        again.grace_s = 0
        again.commit()
        assert set(store_root.rglob("*.parquet")) == live


def test_what_a_writer_that_is_gone_had_replaced_is_swept(store_root: Path, events: Callable[..., Any]) -> None:
    with TableWriter(store_root, "w", grace_s=3600) as writer:
        for _ in range(merging.MERGE_ABOVE_FILES + 1):
            writer.write("events", "r", 0, events(1))
            writer.commit()
        assert sweep(store_root, grace_s=0) == 0, "a living writer looks after its files itself"
    assert sweep(store_root) == 0
    assert sweep(store_root, grace_s=0) == merging.MERGE_ABOVE_FILES
    assert sweep(store_root, grace_s=0) == 0
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == merging.MERGE_ABOVE_FILES + 1


def test_a_merge_never_exceeds_its_rows(
    writer: TableWriter, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MERGE_MAX_ROWS", 50)
    for number in range(60):
        writer.write("events", "r", 0, events(7 if number % 10 else 49, first=100 * number))
        writer.commit()
    assert max(entry.rows for entry in writer.committed_files) <= 50
    assert sum(entry.rows for entry in writer.committed_files) == 54 * 7 + 6 * 49


def test_readers_see_every_row_exactly_once_while_files_are_merged(
    store_root: Path, events: Callable[..., Any]
) -> None:
    """A reader's rows are always those of one commit: 10 a commit, none twice, none missing."""
    with TableWriter(store_root, "w", grace_s=60) as writer:
        writer.write("events", "r", 0, events(10))
        writer.commit()
        done = threading.Event()
        counts: list[tuple[int, int]] = []
        failures: list[BaseException] = []

        def read() -> None:
            try:
                with Store(store_root) as store:
                    attempt = store.attempt()
                    while not done.is_set():
                        store.refresh()
                        sql = 'SELECT count(*) AS n, count(DISTINCT "sequence") AS d FROM events'
                        row = store.query(sql, attempt=attempt).to_pylist()[0]
                        counts.append((row["n"], row["d"]))
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(1, 60):
            writer.write("events", "r", 0, events(10, first=1 + 10 * number))
            writer.commit()
        done.set()
        reader.join(timeout=30)
    assert not failures
    assert len(set(counts)) > 3, "the reader has to have seen the store at several moments"
    assert all(n == distinct and n % 10 == 0 for n, distinct in counts)
    assert counts == sorted(counts)


def test_a_failed_commit_can_be_tried_again(
    writer: TableWriter, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    writer.write("events", "r", 0, events(4))
    with monkeypatch.context() as patch:
        patch.setattr(writers, "write_manifest", full)
        with pytest.raises(OSError, match="No space"):
            writer.commit({"at": 1})
    assert writer.state == {}
    writer.commit({"at": 1})
    with Store(writer.root) as store:
        assert store.read("events", store.attempt()).num_rows == 4
    manifest = sorted((writer.root / "_manifests" / "writer").glob("*.json"))[-1]
    assert json.loads(manifest.read_text())["state"] == {"at": 1}


# -- age, large files, manifests that cannot be read ------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 1, 1, 40]), st.booleans(), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=20, deadline=None)
def test_the_newest_row_wins_however_files_are_merged(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, int, bool, bool]]
) -> None:
    """Rows of a few steps again and again, in files small and large; the writer is opened anew here and there."""
    root = tmp_path_factory.mktemp("store")
    newest: dict[int, float] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MERGE_ABOVE_FILES", 2), ("SMALL_FILE_BYTES", 5000), ("LARGE_FILE_BYTES", 40_000)):
            patch.setattr(merging, name, value)
        patch.setattr(merging, "ROWS_AT_ONCE", 20)
        writer = TableWriter(root, "w-000000000009", grace_s=0)
        for number, (step, rows, commits, reopens) in enumerate(plan):
            steps = [step] * rows + list(range(10 * number + 10, 10 * number + 10 + 20 * (rows > 1)))
            losses = [float(number) + index / 1000 for index in range(len(steps))]
            newest |= dict(zip(steps, losses, strict=True))
            columns = {"rank": [0] * len(steps), "step": steps, "start_ns": steps, "loss": losses}
            writer.write("steps", "r", 0, columns)
            if commits or reopens:
                writer.commit()
            if reopens:
                writer.close()
                writer = TableWriter(root, "w-000000000009", grace_s=0)
        writer.commit()
        writer.close()
    with Store(root) as store:
        found = store.read("steps", store.attempt(), ["step", "loss"]).to_pylist()
        raw = store.query("SELECT count(*) AS n FROM steps_all")["n"].to_pylist()
    assert {row["step"]: row["loss"] for row in found} == newest
    assert raw == [len(newest)]


def test_a_large_file_between_small_ones_keeps_its_age(store_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SMALL_FILE_BYTES", 20_000)
    monkeypatch.setattr(merging, "MERGE_ABOVE_FILES", 3)
    with TableWriter(store_root, "w", grace_s=0) as writer:

        def write(loss: float, count: int = 1) -> None:
            steps = [0, *range(1, count)]
            columns = {"rank": [0] * count, "step": steps, "start_ns": steps, "loss": [loss * (1 + s) for s in steps]}
            writer.write("steps", "r", 0, columns)
            writer.commit()

        for loss in range(3):
            write(loss)
        write(3.5, 5000)
        with Store(store_root) as store:
            assert store.read("steps", store.attempt(), where="step = 0")["loss"].to_pylist() == [3.5]
        for loss in range(4, 8):
            write(loss)
        assert [entry.rows for entry in sorted(writer.committed_files, key=lambda entry: entry.order)] == [
            1,
            1,
            1,
            5000,
            4,
        ]
    with Store(store_root) as store:
        assert store.read("steps", store.attempt(), where="step = 0")["loss"].to_pylist() == [7.0]


def test_large_files_are_merged_a_piece_at_every_commit(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SMALL_FILE_BYTES", 3000)
    monkeypatch.setattr(merging, "MERGE_ABOVE_FILES", 3)
    monkeypatch.setattr(merging, "ROWS_AT_ONCE", 1)
    with TableWriter(store_root, "w", grace_s=0) as writer:
        counts = []
        for number in range(12):
            writer.write("events", "r", 0, events(500, first=1 + 500 * number))
            writer.commit()
            counts.append(len(writer.committed_files))
            with Store(store_root) as store:
                rows = store.read("events", store.attempt(), ["sequence"])["sequence"].to_pylist()
            assert sorted(rows) == list(range(1, 500 * (number + 1) + 1))
        assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9]
        assert list(store_root.rglob("*.tmp"))
    assert not list(store_root.rglob("*.tmp"))
    assert max(entry.rows for entry in writer.committed_files) == 2000


def test_a_large_merge_that_cannot_read_is_given_up(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SMALL_FILE_BYTES", 3000)
    monkeypatch.setattr(merging, "MERGE_ABOVE_FILES", 3)
    with TableWriter(store_root, "w", grace_s=0) as writer:
        for number in range(6):
            if number == 3:
                path = store_root / writer.committed_files[0].path
                path.write_bytes(b"x" * path.stat().st_size)
            writer.write("events", "r", 0, events(500, first=1 + 500 * number))
            writer.commit()
        assert len(writer.committed_files) == 6
    assert not list(store_root.rglob("*.tmp"))


def _spoil_manifests(root: Path) -> list[Path]:
    paths = sorted((root / "_manifests" / "w").glob("*.json"))
    for path in paths:
        path.write_text("{")
    return paths


def test_a_writer_without_a_readable_manifest_deletes_nothing(store_root: Path, events: Callable[..., Any]) -> None:
    with TableWriter(store_root, "w") as writer:
        for _ in range(3):
            writer.write("events", "r", 0, events(2))
            writer.commit()
    with TableWriter(store_root, "other") as writer:
        writer.write("events", "r", 0, events(1))
        writer.commit()
    before = sorted(store_root.rglob("*.parquet"))
    paths = _spoil_manifests(store_root)
    for _ in range(2):
        with pytest.raises(MegascopeError, match="None of the manifests"):
            TableWriter(store_root, "w")
    assert sorted(store_root.rglob("*.parquet")) == before
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == 1
        assert [file.path for file in store.damaged] == [paths[-1]]


def test_files_of_a_newest_manifest_that_cannot_be_read_stay(store_root: Path, events: Callable[..., Any]) -> None:
    with TableWriter(store_root, "w") as writer:
        for _ in range(2):
            writer.write("events", "r", 0, events(2))
            writer.commit({"at": writer.snapshot})
    before = sorted(store_root.rglob("*.parquet"))
    newest = max((store_root / "_manifests" / "w").glob("*.json"))
    newest.write_text("")
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == 2
        assert [file.path for file in store.damaged] == [newest]
    with TableWriter(store_root, "w") as writer:
        assert writer.state == {"at": 0}
        assert sorted(store_root.rglob("*.parquet")) == before
        writer.write("events", "r", 0, events(2))
        writer.commit()
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == 4
        assert store.damaged == []


def test_what_a_newer_writer_says_of_a_file_is_passed_over(store_root: Path, events: Callable[..., Any]) -> None:
    with TableWriter(store_root, "w") as writer:
        writer.write("events", "r", 0, events(2))
        writer.commit()
    path = store_root / "_manifests" / "w" / f"{1:012d}.json"
    document = json.loads(path.read_text())
    document["files"][0]["colour"] = "blue"
    path.write_text(json.dumps(document))
    with TableWriter(store_root, "w") as writer:
        assert [entry.rows for entry in writer.committed_files] == [2]
