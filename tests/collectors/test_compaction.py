"""Compaction: rows stay what they are, each once, for every reader, at every moment, whoever dies when."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.agent.compaction_idle import compact_if_alone
from megascope.collectors.drains.run import RunDrain
from megascope.collectors.reading.store import Store
from megascope.collectors.storage import durable
from megascope.collectors.storage.mounts import mount_type
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.upkeep.compaction_merge import Merge
from megascope.collectors.upkeep.keeper import SPILL
from megascope.collectors.upkeep.sweeping import sweep
from megascope.collectors.writing.writer import TableWriter, WriterHeldError
from support import churn
from support.churn import Actor, look, survive
from support.dying import EXIT_CODE, Point
from support.table_rows import NAMES_OF_TABLES, as_text, tables

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def actors() -> Iterator[list[BaseProcess]]:
    """Processes of a test; what still runs at its end is killed."""
    started: list[BaseProcess] = []
    yield started
    for process in started:
        process.kill()
        process.join(timeout=10)


# -- a kill at every point --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three writers that are gone, with many small files."""
    root = tmp_path_factory.mktemp("crowded") / "store"
    churn.fill(root)
    return root


POINTS = [
    *(Point(what, number) for what in ("before-rename", "after-rename") for number in (1, 2, 7, 16)),
    *(Point("deletion", number) for number in (1, 6, 12)),
]
"""`benchmarks/kills.py` goes through all of them."""


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.what}-{point.number}")
def test_a_compactor_and_pruner_may_die_at_any_point(point: Point, crowded: Path, tmp_path: Path) -> None:
    """A durable write or a deletion is the last that the process does; what is left is right, and can be tidied up."""
    root = tmp_path / "store"
    shutil.copytree(crowded, root)
    process = Actor("pruner", root, rounds=2, pause_s=0.0, grace_s=0.0, quiet_s=0.0, point=point).start()
    process.join(timeout=60)
    assert process.exitcode == EXIT_CODE
    survive(root)


@pytest.mark.parametrize("what", ["large-before-rename", "large-after-rename"])
def test_a_writer_may_die_at_the_rename_of_a_merge_of_large_files(what: str, store_root: Path) -> None:
    point = Point(what, 1)
    process = Actor("writer", store_root, 1, rounds=200, pause_s=0.0, seal_after_s=60.0, point=point).start()
    process.join(timeout=60)
    assert process.exitcode == EXIT_CODE
    survive(store_root)


@pytest.mark.parametrize("how", ["error", "interrupt"])
@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("what", ["before-rename", "after-rename"])
def test_an_error_or_ctrl_c_at_a_point_loses_nothing(
    what: str, number: int, how: str, crowded: Path, tmp_path: Path
) -> None:
    """The process goes on, or cleans up: neither may delete what the manifests on the disk list."""
    root = tmp_path / "store"
    shutil.copytree(crowded, root)
    point = Point(what, number, how)
    process = Actor("pruner", root, rounds=2, pause_s=0.0, grace_s=0.0, quiet_s=0.0, point=point).start()
    process.join(timeout=60)
    assert process.exitcode == (0 if how == "error" else 1)
    survive(root)


def test_a_reader_sees_each_row_once_while_all_are_at_work(store_root: Path, actors: list[BaseProcess]) -> None:
    """The short form of `benchmarks/kills.py`: eight seconds, the compactor and a writer are killed again and again."""
    roles = [Actor("writer", store_root, rank) for rank in range(3)]
    roles += [Actor("compactor", store_root), Actor("pruner", store_root, pause_s=0.3)]
    actors += [role.start() for role in roles[:3]]
    while not list(store_root.glob("_manifests/*/000000000002.json")):
        time.sleep(0.05)
    actors += [role.start() for role in roles[3:]]
    polls, began, kill_at = 0, time.monotonic(), time.monotonic() + 2
    seen = {(0, 0)}
    with Store(store_root) as store:
        while time.monotonic() < began + 8 or (time.monotonic() < began + 60 and not any(pruned for _, pruned in seen)):
            found = look(store)
            assert found.is_right, found
            seen.add((found.spans, found.pruned))
            polls += 1
            if time.monotonic() > kill_at:
                for number in (2, 3):
                    actors[number].kill()
                    actors[number].join(timeout=10)
                    actors[number] = roles[number].start()
                kill_at += 1.5
        assert polls > 5
        assert len(seen) > 5
        assert max(pruned for _, pruned in seen) > 0, "the pruner had something to do"
        assert any(name.startswith("compactor/") for name, _ in store.version())


# -- what it makes ----------------------------------------------------------------------------------------------


def _agent(root: Path, host: int, **settings: Any) -> TableWriter:
    return TableWriter(root, f"agent-{host}", **settings)


def _encodings(file: Any) -> dict[str, set[str]]:
    columns = [file.metadata.row_group(0).column(index) for index in range(file.metadata.num_columns)]
    return {column.path_in_schema: set(column.encodings) for column in columns}


def test_many_writers_become_one_sorted_file(store_root: Path, events: Callable[..., Any]) -> None:
    import pyarrow.parquet as pq

    for host in range(6):
        with _agent(store_root, host) as writer:
            for step in range(4):
                writer.write("events", "r", 0, events(10, rank=host, step=3 - step, first=1 + 10 * step))
                writer.commit()
    small = _encodings(pq.ParquetFile(store_root / writer.committed_files[0].path))
    report = compact(store_root, quiet_s=0)
    assert (report.files_before, report.files_after, report.rows) == (24, 1, 240)
    with Store(store_root) as store:
        (path,) = store.files("events")
        assert store.read("events", store.attempt()).num_rows == 240
    file = pq.ParquetFile(path)
    rows = file.read()
    keys = list(zip(rows["step"].to_pylist(), rows["rank"].to_pylist(), rows["start_ns"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    assert _encodings(file) == small, "as its writers have chosen them"
    assert compact(store_root, quiet_s=0).files_before == 0, "nothing is left to do"


def test_what_a_living_writer_still_merges_is_left_to_it(store_root: Path, events: Callable[..., Any]) -> None:
    with _agent(store_root, 0) as writer:
        for number in range(4):
            writer.write("events", "r", 0, events(5, first=1 + 5 * number))
            writer.commit()
        assert compact(store_root, quiet_s=0).files_before == 0
        writer.seal_after_s = 0.0
        writer.commit()
        assert compact(store_root, quiet_s=0).files_before == 4
        writer.write("events", "r", 0, events(5, first=21))
        writer._looked_at = -1e9
        writer.commit()
        assert [entry.rows for entry in writer.committed_files] == [5], "it has let go of the others"
        with Store(store_root) as store:
            rows = store.read("events", store.attempt(), ["sequence"])["sequence"].to_pylist()
        assert sorted(rows) == list(range(1, 26))


def test_a_writer_that_comes_back_merges_nothing_that_was_compacted(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.collectors.writing.merging.MERGE_ABOVE_FILES", 3)
    with _agent(store_root, 0) as writer:
        for number in range(3):
            writer.write("events", "r", 0, events(5, first=1 + 5 * number))
            writer.commit()
    compact(store_root, quiet_s=0)
    with _agent(store_root, 0) as writer:
        for number in range(3, 8):
            writer.write("events", "r", 0, events(5, first=1 + 5 * number))
            writer.commit()
    with Store(store_root) as store:
        rows = store.read("events", store.attempt(), ["sequence"])["sequence"].to_pylist()
    assert sorted(rows) == list(range(1, 41))


def test_a_path_is_never_used_twice(store_root: Path, events: Callable[..., Any]) -> None:
    """A new file under the name of one that was replaced would not be seen."""
    seen: set[str] = set()
    for number in range(4):
        with _agent(store_root, 0, grace_s=0.0) as writer:
            for part in range(3):
                writer.write("events", "r", 0, events(1, first=1 + 3 * number + part))
                writer.commit()
            new = {entry.path for entry in writer.committed_files}
        assert not new & seen
        seen |= new
        compact(store_root, quiet_s=0, grace_s=0)
        for _ in range(2):
            sweep(store_root, 0)
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == 12


def test_windows_of_each_length_get_a_file_of_their_own(store_root: Path) -> None:
    for host in range(2):
        with _agent(store_root, host) as writer:
            lengths = [10, 100, 1000, 10]
            rows: dict[str, list[Any]] = {
                "rank": [host] * 4, "segment": [1] * 4, "window_steps": lengths, "first_step": [0, 0, 0, 10],
            }  # fmt: skip
            histogram: dict[str, list[Any]] = {"duration_bins": [[1, 2]] * 4, "duration_bin_counts": [[3, 4]] * 4}
            writer.write("rank_windows", "r", 0, rows | {"duration_count": [7] * 4} | histogram)
            writer.commit()
    compact(store_root, quiet_s=0)
    with Store(store_root) as store:
        assert sorted((entry.level or 0, entry.rows) for entry in store.entries("rank_windows")) == [
            (10, 4), (100, 2), (1000, 2),
        ]  # fmt: skip
        found = store.read("rank_windows", store.attempt()).to_pylist()
    assert all(row["duration_bins"] == [1, 2] and row["duration_bin_counts"] == [3, 4] for row in found)
    assert compact(store_root, quiet_s=0).files_before == 0


def test_open_blocks_belong_to_their_agent(store_root: Path) -> None:
    rows = {"rank": [0], "segment": [1], "window_steps": [10], "first_step": [0]}
    for host in range(3):
        with _agent(store_root, host) as writer:
            writer.write("rank_windows", "r", 0, rows, block="b000-open", replace=True)
            writer.commit()
    assert compact(store_root, quiet_s=0).files_before == 0


def test_the_newest_row_wins_whatever_its_writer_is_called(store_root: Path) -> None:
    """The later of two writers has the name that sorts first."""
    for name, loss in (("zebra", 1.0), ("aardvark", 2.0), ("middle", 3.0)):
        with TableWriter(store_root, name) as writer:
            columns = {"rank": [0, 0], "step": [0, 1], "start_ns": [0, 0], "loss": [loss, loss]}
            writer.write("steps", "r", 0, columns)
            writer.write("segments", "r", 0, {"segment": [1], "name": [name], "kind": ["compute"]})
            writer.write("runs", "r", 0, {"start_ns": [1], "exit_reason": ["finished" if name == "middle" else None]})
            writer.commit()
    for _ in range(2):
        with Store(store_root) as store:
            attempt = store.attempt()
            assert store.read("steps", attempt)["loss"].to_pylist() == [3.0, 3.0]
            assert store.read("segments", attempt)["name"].to_pylist() == ["middle"]
            assert attempt.exit_reason is None, "two writers have not ended"
        compact(store_root, quiet_s=0)


def test_a_clock_that_steps_back_makes_no_row_older(store_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"rank": [0], "step": [0], "start_ns": [0]}
    for number, now in enumerate((5000, 1000, 3000)):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        with TableWriter(store_root, "w") as writer:
            writer.write("steps", "r", 0, columns | {"loss": [float(number)]})
            writer.commit()
    with Store(store_root) as store:
        assert store.read("steps", store.attempt())["loss"].to_pylist() == [2.0]


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_no_value_changes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any rows of any table, of two writers: what the views show is the same afterwards. Rollups add up instead."""
    root = tmp_path_factory.mktemp("store")
    name, first = data.draw(tables(names=[name for name in NAMES_OF_TABLES if name != "rank_windows"]))
    _, second = data.draw(tables(name))
    for host, columns in enumerate((first, second)):
        with _agent(root, host) as writer:
            writer.write(name, "r", 0, columns)
            writer.commit()

    def seen() -> list[str]:
        with Store(root) as store:
            return sorted(map(as_text, store.query(f"SELECT * FROM {name}").to_pylist()))

    before = seen()
    assert compact(root, quiet_s=0).files_before == 2
    assert seen() == before


def _gone_writers(root: Path, names: str, events: Callable[..., Any], first: int = 1) -> None:
    """Writers that wrote ten spans each, and are gone."""
    for place, name in enumerate(names):
        with TableWriter(root, name, grace_s=0.0) as writer:
            writer.write("events", "r", 0, events(10, first=first + 10 * place))
            writer.commit()


def _spans(root: Path) -> int:
    with Store(root) as store:
        found = store.read("events", store.attempt(), ["sequence"])["sequence"].to_pylist()
    assert len(set(found)) == len(found)
    return len(found)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_once_a_snapshot_was_renamed_nothing_takes_it_back(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The sync of the folder, and what comes behind it, fails: readers see the snapshot already."""
    _gone_writers(store_root, "abc", events)
    sync = durable.sync_folder

    def failing(folder: Path) -> None:
        if folder.name.startswith("compactor") and list(folder.glob("*.json")):
            raise error
        sync(folder)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_folder", failing)
        if isinstance(error, OSError):
            assert compact(store_root, grace_s=0, quiet_s=0).files_after == 1
        else:
            with pytest.raises(KeyboardInterrupt):
                compact(store_root, grace_s=0, quiet_s=0)
    assert _spans(store_root) == 30
    for _ in range(2):
        sweep(store_root, 0)
    assert _spans(store_root) == 30
    assert len(list(store_root.rglob("*.parquet"))) == 1
    _gone_writers(store_root, "de", events, first=31)
    assert compact(store_root, grace_s=0, quiet_s=0).files_before == 3
    assert _spans(store_root) == 50


def test_a_damaged_manifest_of_a_compactor_is_left_until_it_is_put_back(
    store_root: Path, events: Callable[..., Any]
) -> None:
    _gone_writers(store_root, "abc", events)
    compact(store_root, quiet_s=0)
    _gone_writers(store_root, "def", events, first=31)
    compact(store_root, quiet_s=0)
    for _ in range(2):  # the writers let go of what was replaced: the compacted file is the only copy
        for name in "abcdef":
            with TableWriter(store_root, name, grace_s=0.0) as writer:
                writer.commit()
    newest = max(store_root.glob("_manifests/compactor*/*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:50])
    said: list[str] = []
    for number, names in enumerate(("gh", "ij")):
        _gone_writers(store_root, names, events, first=61 + 20 * number)
        report = compact(store_root, quiet_s=0)
        assert report.files_before == 0
        (problem,) = report.problems
        assert str(newest) in problem
        assert sweep(store_root, 0, say=said.append) == 0
    assert said == report.problems * 2
    newest.write_bytes(whole)
    assert _spans(store_root) == 100
    assert compact(store_root, quiet_s=0).files_before == 5
    assert _spans(store_root) == 100


def test_what_a_kill_left_to_spill_goes_at_the_next_start(store_root: Path, events: Callable[..., Any]) -> None:
    _gone_writers(store_root, "abc", events)
    compact(store_root, quiet_s=0)
    spill = next(store_root.glob("_manifests/compactor*")) / SPILL
    spill.mkdir()
    (spill / "duckdb_temp_storage-0.tmp").write_bytes(b"x" * 1000)
    sweep(store_root, 3600)
    assert not spill.exists()
    assert _spans(store_root) == 30


def test_a_returning_writer_waits_for_one_merge_only(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one attempt's table is merged, writers of the block that have no part in it are free."""
    _gone_writers(store_root, "ab", events)
    for name in "cd":
        with TableWriter(store_root, name) as writer:
            writer.write("steps", "r", 0, {"rank": [0], "step": [0], "start_ns": [0]})
            writer.commit()
    seen: dict[str, set[str]] = {}
    levels = Merge.levels

    def looking(merge: Merge) -> list[int | None]:
        held = {name for name in "abcd" if _is_held(store_root, name)}
        seen[merge.entries[0].table] = held
        return levels(merge)

    monkeypatch.setattr(Merge, "levels", looking)
    compact(store_root, quiet_s=0)
    assert seen == {"events": {"a", "b"}, "steps": {"c", "d"}}


def _is_held(root: Path, name: str) -> bool:
    try:
        TableWriter(root, name).close()
    except WriterHeldError as error:
        return "compaction" in str(error)
    return False


def test_a_compaction_stops_when_it_is_told(store_root: Path, events: Callable[..., Any]) -> None:
    _gone_writers(store_root, "abc", events)
    asked = [False, False, True]  # before the block, before its merge, and within it
    report = compact(store_root, quiet_s=0, should_stop=lambda: asked.pop(0))
    assert asked == []
    assert (report.files_before, report.problems) == (0, [])
    assert len(list(store_root.rglob("*.parquet"))) == 3
    assert not list(store_root.rglob("*.tmp"))
    assert compact(store_root, quiet_s=0).files_before == 3


# -- what goes wrong --------------------------------------------------------------------------------------------


def test_a_damaged_file_is_left_and_the_others_are_merged(store_root: Path, events: Callable[..., Any]) -> None:
    for host in range(5):
        with _agent(store_root, host) as writer:
            writer.write("events", "r", 0, events(50, first=1 + 50 * host))
            writer.commit()
            path = store_root / writer.committed_files[0].path
        if host == 2:
            content = bytearray(path.read_bytes())
            content[50 : len(content) // 2] = b"\xff" * (len(content) // 2 - 50)
            path.write_bytes(content)
            spoilt = path
    report = compact(store_root, quiet_s=0)
    assert (report.files_before, report.files_after) == (4, 1)
    assert [file.path for file in report.damaged] == [spoilt]
    assert spoilt.exists()
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == 200
        assert [file.path for file in store.damaged] == [spoilt]


@pytest.mark.parametrize("where", ["room", "file", "manifest"])
def test_a_full_disk_changes_nothing(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for host in range(3):
        with _agent(store_root, host) as writer:
            writer.write("events", "r", 0, events(50, first=1 + 50 * host))
            writer.commit()
    before = {path: path.read_bytes() for path in store_root.rglob("*.parquet")}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "room":
            patch.setattr("megascope.collectors.upkeep.compaction.free_bytes", lambda root: 10)
        else:
            target = {
                "file": "upkeep.compaction_merge.open_parquet",
                "manifest": "writing.manifest_writer.write_manifest",
            }[where]
            patch.setattr(f"megascope.collectors.{target}", full)
        report = compact(store_root, quiet_s=0)
    assert len(report.problems) == 1
    assert {path: path.read_bytes() for path in store_root.rglob("*.parquet")} == before
    assert not list(store_root.rglob("*.tmp"))
    with Store(store_root) as store:
        assert store.read("events", store.attempt()).num_rows == 150
    assert compact(store_root, quiet_s=0).files_after == 1


def test_a_store_that_was_opened_long_ago_finds_what_was_merged_since(
    store_root: Path, events: Callable[..., Any]
) -> None:
    """Its files are gone from the disk: it looks again, instead of leaving them out."""
    for host in range(3):
        with _agent(store_root, host) as writer:
            writer.write("events", "r", 0, events(50, first=1 + 50 * host))
            writer.write("steps", "r", 0, {"rank": [host], "step": [0], "start_ns": [0]})
            writer.commit()
    with Store(store_root) as store, Store(store_root) as other:
        attempt = store.attempt()
        other.read("events", other.attempt())
        compact(store_root, quiet_s=0, grace_s=0)
        for _ in range(2):
            sweep(store_root, 0)
        assert len(list(store_root.rglob("*.parquet"))) == 2
        assert store.read("events", attempt).num_rows == 150
        assert other.read("events", attempt).num_rows == 150
        assert store.damaged == other.damaged == []


# -- the agent --------------------------------------------------------------------------------------------------


def test_the_type_of_a_file_system_is_that_of_the_deepest_mount() -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda rw", "2 1 0:9 / /data rw shared:3 master:1 - nfs4 server:/ rw",
        "3 2 0:9 / /data/fast\\040disk rw - xfs /dev/sdb rw", "no mount",
    ]  # fmt: skip
    found = [
        mount_type(Path(folder), lines) for folder in ("/home", "/data", "/data/a", "/data/fast disk/s", "/database")
    ]
    assert found == ["ext4", "nfs4", "nfs4", "xfs", "ext4"]
    assert mount_type(Path("/home"), []) is None


def test_an_agent_compacts_what_only_its_host_writes(
    store_root: Path, events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = socket.gethostname()
    for number in range(3):
        with TableWriter(store_root, f"agent-{host}-{number:016x}") as writer:
            writer.write("events", "r", 0, events(5, first=1 + 5 * number))
            writer.commit()
    monkeypatch.setattr("megascope.collectors.agent.compaction_idle.is_local", lambda root: False)
    report = compact_if_alone(store_root, min_files=3)
    assert report is not None
    assert report.files_before == 0, "another machine may have the name, and its locks may not be seen here"
    monkeypatch.setattr("megascope.collectors.agent.compaction_idle.is_local", lambda root: True)
    report = compact_if_alone(store_root, min_files=3)
    assert report is not None
    assert (report.files_before, report.files_after) == (3, 1)
    with TableWriter(store_root, f"agent-{host}2-{7:016x}") as writer:
        writer.write("events", "r", 0, events(5, first=16))
        writer.commit()
    assert compact_if_alone(store_root, min_files=1) is None, "another host's agent may live where no lock tells"


def test_an_agent_that_comes_back_during_a_merge_says_that_it_waits(
    store_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = tmp_path / "spool"
    (spool / "r").mkdir(parents=True)
    run = RunDrain.open(spool, store_root, "r")
    assert run is not None
    held = TableWriter(store_root, run.writer_name)  # as a merge does
    for _ in range(2):
        run.poll([], 1.0, heartbeat=False)
    assert [record.getMessage() for record in caplog.records] == [
        f"Run r waits: a compaction of {store_root} holds its writer for a moment. It keeps its boxes and tries again."
    ]
    held.close()
    run.poll([], 1.0, heartbeat=False)
    with pytest.raises(WriterHeldError):
        TableWriter(store_root, run.writer_name)
    run.close()
