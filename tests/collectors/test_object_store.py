"""A store in an object store, against a real S3 server: the same rows as on a disk, whatever the server does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.agent import agent as agent_module
from megascope.collectors.agent.agent import Agent
from megascope.collectors.manifests.listing import Listing
from megascope.collectors.manifests.manifest import SupersededError, manifest_folder, snapshot_numbers
from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Store
from megascope.collectors.storage import lease, object_files
from megascope.collectors.storage import remote as remote_module
from megascope.collectors.storage.address import store_path
from megascope.collectors.storage.object_path import ObjectPath
from megascope.collectors.storage.remote import Remote, UnreachableError, remote_of
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.upkeep.retention_plan import Retention
from megascope.collectors.upkeep.upkeep import upkeep
from megascope.collectors.writing.writer import TableWriter, WriterHeldError
from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.recorder import Recorder
from support.collecting import drain_all, read_table
from support.commands import finished
from support.object_server import BUCKET, CREDENTIALS, Faults, object_server

Rows = Callable[..., dict[str, list[Any]]]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Faults]]:
    with object_server() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": found[0]}.items():
            patch.setenv(name, value)
        remote_of.cache_clear()
        object_files._caches.clear()
        yield found
        remote_of.cache_clear()
        object_files._caches.clear()


@pytest.fixture
def faults(server: tuple[str, Faults]) -> Iterator[Faults]:
    """What the server does to requests; whole again afterwards."""
    server[1].heal()
    yield server[1]
    server[1].heal()
    remote().__init__(remote().filesystem, remote().name, is_exact=True)  # type: ignore[misc]


@pytest.fixture
def store_root(faults: Faults, request: pytest.FixtureRequest) -> ObjectPath:
    """A prefix for this test, in place of the folder that the agent's fixtures write to."""
    path = store_path(f"s3://{BUCKET}/{request.node.name}/store")
    assert isinstance(path, ObjectPath)
    return path


def remote() -> Remote:
    return remote_of("s3")


def sequences(root: Path, table: str = "events") -> list[int]:
    with Store(root) as store:
        return [row["sequence"] for row in store.query(f"SELECT sequence FROM {table} ORDER BY ALL").to_pylist()]


def one_commit(root: Path, events: Rows, name: str = "writer", first: int = 1) -> None:
    with TableWriter(root, name) as writer:
        writer.write("events", "run", 0, events(3, first=first))
        writer.commit()


def commit_until_done(writer: TableWriter, write: Callable[[], None], seconds: float = 60.0) -> None:
    """As an agent does: stage and commit; whatever fails, roll back and do it all again."""
    until = time.monotonic() + seconds
    while True:
        try:
            write()
            writer.commit({})
        except SupersededError:
            raise
        except OSError:
            assert time.monotonic() < until
            writer.rollback()
            time.sleep(0.01)
        else:
            return


def test_the_same_rows_come_back_as_from_a_disk(store_root: ObjectPath, tmp_path: Path, events: Rows) -> None:
    contents = []
    for root in (tmp_path / "store", store_root):
        with TableWriter(root, "writer") as writer:
            writer.write("events", "run", 0, events(2, rank=600, first=100), block="b001")
            for step in range(18):  # more than are left small
                writer.write("events", "run", 0, events(3, step=step, first=3 * step + 1))
                writer.commit({"step": step})
        with Store(root) as store:
            contents.append(store.query("SELECT * EXCLUDE (run, attempt) FROM events ORDER BY ALL").to_pylist())
            entries = store.entries("events")
            assert sum((root / entry.path).stat().st_size for entry in entries) == sum(e.size_bytes for e in entries)
            assert (store.attempt().run, len(entries) < 10) == ("run", True)
    assert contents[0] == contents[1]
    assert len(contents[1]) == 56


def test_users_sql_reads_this_store_and_no_other(store_root: ObjectPath, events: Rows) -> None:
    one_commit(store_root, events)
    (store_root.parent / "other.parquet").write_bytes(next(store_root.rglob("*.parquet")).read_bytes())
    with Store(store_root) as store, pytest.raises(UsageError, match="outside of the store"):
        run_sql(store, f"SELECT * FROM read_parquet('{store_root.parent}/other.parquet')")


def test_half_of_all_requests_fail_and_many_answers_are_lost(
    store_root: ObjectPath, faults: Faults, events: Rows
) -> None:
    remote().patience_s = 0.2
    with TableWriter(store_root, "writer", grace_s=0.0) as writer:
        faults.failing, faults.losing = 0.35, 0.25
        for number in range(3):
            rows = events(4, step=number, first=4 * number + 1)

            def write(rows: dict[str, list[Any]] = rows) -> None:
                remote()._rests_until = 0.0  # as if the rest were over
                writer.write("events", "run", 0, rows)

            commit_until_done(writer, write)
        hurt = faults.hurt
        faults.heal()
        remote()._rests_until = 0.0
        writer.commit()
    assert hurt > 5
    assert sequences(store_root) == list(range(1, 13))
    with Store(store_root) as store:
        listed = {store_root / entry.path for entry in store.entries("events")}
    assert set(store_root.rglob("*.parquet")) == listed


def test_a_snapshot_whose_answer_was_lost_is_taken_back(store_root: ObjectPath, faults: Faults, events: Rows) -> None:
    with TableWriter(store_root, "writer") as writer:
        writer.write("events", "run", 0, events(2))
        writer.commit({"at": 1})
        writer.write("events", "run", 0, events(2, first=3))
        writer.write("events", "run", 0, events(2, first=5))
        path = store_root / "events"
        remote().patience_s, faults.losing = 0.0, 1.0
        with pytest.raises(OSError, match="does not answer"):
            writer.commit({"at": 2})
        faults.heal()
        remote()._rests_until = 0.0
        writer.rollback()
        assert sequences(store_root) == [1, 2, 3, 4, 5, 6]  # it is there
        writer.write("events", "run", 0, events(2, first=3))
        writer.write("events", "run", 0, events(3, first=5))
        assert writer.commit({"at": 3}) == 3
        assert sequences(store_root) == [1, 2, 3, 4, 5, 6, 7]
        assert len(list(path.rglob("*.parquet"))) == 5  # readers of the snapshot that was taken back can finish
        assert writer.state == {"at": 3}


def test_one_process_at_a_time_writes_under_a_name(
    store_root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    sleeper = TableWriter(store_root, "writer")
    sleeper.write("events", "run", 0, events(2))
    with pytest.raises(WriterHeldError):
        TableWriter(store_root, "writer")
    monkeypatch.setattr(lease, "LEASE_S", -1.0)  # it has slept for longer than a lease lasts
    with TableWriter(store_root, "writer") as writer:
        writer.write("events", "run", 0, events(3))
        writer.commit()
        with pytest.raises(SupersededError):
            sleeper.commit()
        for _ in range(8):  # until its number is free again
            writer.commit()
        assert min(snapshot_numbers(manifest_folder(store_root, "writer"))) > 1
        with pytest.raises(SupersededError):
            sleeper.commit()
        sleeper.close()
        assert sequences(store_root) == [1, 2, 3]
        writer.write("events", "run", 0, events(1, first=4))
        writer.commit()
    assert sequences(store_root) == [1, 2, 3, 4]


def test_many_writers_files_become_few(store_root: ObjectPath, faults: Faults, events: Rows) -> None:
    writers = [TableWriter(store_root, f"agent-{number}") for number in range(3)]
    for number, writer in enumerate(writers):
        writer.write("events", "run", 0, events(10, rank=number, first=1 + 10 * number))
        writer.commit({"number": number})
    writers[0].close()
    writers[1].close()
    with Store(store_root) as store:
        before = store.query("SELECT * FROM events ORDER BY ALL")
        faults.failing = 0.2
        report = compact(store_root, quiet_s=-60.0)
        faults.heal()
        assert (report.problems, report.files_before, report.files_after) == ([], 2, 1)
        store.refresh()
        assert store.query("SELECT * FROM events ORDER BY ALL").equals(before)
        assert len(store.entries("events")) == 2
    # What it took the files of goes on from a snapshot that it was given meanwhile.
    with TableWriter(store_root, "agent-0") as again:
        assert (again.snapshot, again.state) == (2, {"number": 0})
        again.write("events", "run", 0, events(1, first=900))
        again.commit()
    writers[2].close()
    assert upkeep(store_root, Retention(), grace_s=0.0, quiet_s=-60.0).problems == []
    assert sequences(store_root) == [*range(1, 31), 900]
    listing = Listing(store_root)
    listing.refresh()
    on_it = {path.relative_to(store_root).as_posix() for path in store_root.rglob("*.parquet")}
    assert on_it == {entry.path for entry in listing.all_entries()}


def test_a_merge_whose_answer_was_lost_counts(
    store_root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    for number in range(2):
        one_commit(store_root, events, f"agent-{number}", 1 + 3 * number)
    create = Remote.create

    def lost(self: Remote, key: str, content: bytes) -> bool:
        done = create(self, key, content)
        if "compactor" in key and key.endswith(".json"):
            raise UnreachableError("no answer")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "create", lost)
        assert len(compact(store_root, quiet_s=-60.0).problems) == 1
    assert sequences(store_root) == [1, 2, 3, 4, 5, 6]
    with Store(store_root) as store:
        assert len(store.entries("events")) == 1
    assert compact(store_root, quiet_s=-60.0).problems == []
    assert sequences(store_root) == [1, 2, 3, 4, 5, 6]


def test_a_writer_that_slept_while_its_files_were_merged_begins_anew(
    store_root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    sleeper = TableWriter(store_root, "agent")
    for step in range(2):
        sleeper.write("events", "run", 0, events(5, step=step, first=1 + 5 * step))
        sleeper.commit({"step": step})
    monkeypatch.setattr(lease, "LEASE_S", -1.0)
    assert compact(store_root, quiet_s=-60.0).files_after == 1
    sleeper.write("events", "run", 0, events(5, step=2, first=11))
    with pytest.raises(SupersededError):
        sleeper.commit({"step": 2})
    sleeper.close()
    with TableWriter(store_root, "agent") as writer:
        assert writer.state == {"step": 1}
        writer.write("events", "run", 0, events(5, step=2, first=11))
        writer.commit({"step": 2})
    assert sequences(store_root) == list(range(1, 16))


def test_nothing_is_merged_where_two_can_create_one_object(
    store_root: ObjectPath, faults: Faults, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    monkeypatch.setattr(lease, "_decides", {})
    faults.ignores_conditions = True
    for number in range(2):
        one_commit(store_root, events, f"agent-{number}", 1 + 3 * number)
    report = compact(store_root, quiet_s=-60.0)
    assert report.files_after == 0
    assert "If-None-Match" in " ".join(report.problems)
    assert sequences(store_root) == [1, 2, 3, 4, 5, 6]


def test_a_server_that_is_away_costs_a_sentence_and_no_rows(
    store_root: ObjectPath,
    faults: Faults,
    recorder: Callable[..., Recorder],
    agent: Callable[..., Agent],
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_module, "FLUSH_FROM_SPANS", 1)
    remote().patience_s = 0.1
    rank = recorder(rank=0, world_size=1)
    forward = rank.segment("forward")
    collecting = agent()
    step = 0

    def work(steps: int) -> None:
        nonlocal step
        for _ in range(steps):
            rank.step(step)
            with rank.span(forward):
                pass
            step += 1
            collecting.poll()

    work(3)
    faults.is_away = True
    begun = time.monotonic()
    work(5)
    assert time.monotonic() - begun < 5 * 2 * remote().patience_s + 5  # it goes on looking after its ranks
    with pytest.raises(MegascopeError, match="try again once it answers"):
        Store(store_root)
    faults.heal()
    faults.failing = 0.3
    remote()._rests_until = 0.0
    work(3)
    faults.heal()
    remote()._rests_until = 0.0
    rank.close("finished")
    drain_all(collecting)
    assert [row["step"] for row in read_table(store_root, "spans", where="segment_name = 'forward'")] == [*range(step)]
    assert not list(spool.rglob("*.box"))
    assert not Path("s3:").exists()


def test_an_agent_whose_files_were_merged_while_it_slept_goes_on(
    store_root: ObjectPath,
    recorder: Callable[..., Recorder],
    agent: Callable[..., Agent],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rank = recorder(rank=0, world_size=1)
    forward = rank.segment("forward")
    collecting = agent()
    for step in range(6):
        rank.step(step)
        with rank.span(forward):
            pass
        if step == 4:
            with monkeypatch.context() as patch:
                patch.setattr(lease, "LEASE_S", -1.0)
                report = compact(store_root, quiet_s=-60.0)
                assert (report.problems, report.files_after > 0) == ([], True)
        collecting.poll(flush=True)
    assert "is read again from where the store has it" in caplog.text
    rank.close("finished")
    drain_all(collecting)
    assert [row["step"] for row in read_table(store_root, "spans", where="segment_name = 'forward'")] == [*range(6)]
    (attempt,) = read_table(store_root, "runs")
    assert attempt["exit_reason"] == "finished"


def test_a_server_that_reads_nothing_and_says_nothing_is_not_waited_for(
    store_root: ObjectPath, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "CONNECT_S", 0.3)
    monkeypatch.setattr(remote_module, "READ_S", 0.3)
    (tmp_path / "file").write_bytes(b"x" * 1000)
    store_root.exists()  # has connected once
    remote().patience_s, faults.is_mute = 0.0, True
    raised: list[OSError] = []

    def write() -> None:
        for request in (
            lambda: store_root.write_bytes(b"x" * 1000),
            lambda: (store_root / "new").create(b"x"),
            lambda: store_root.put_file(tmp_path / "file"),
        ):
            remote()._rests_until = 0.0
            try:
                request()
            except UnreachableError as error:
                raised.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(30)
    assert (thread.is_alive(), len(raised)) == (False, 3)
    faults.heal()
    remote()._rests_until = 0.0
    assert store_root.write_bytes(b"y") == 1
    assert store_root.read_bytes() == b"y"


def test_a_reader_keeps_what_it_has_while_the_server_is_away(
    store_root: ObjectPath, faults: Faults, events: Rows
) -> None:
    one_commit(store_root, events)
    with Store(store_root) as store, Store(store_root) as other:
        assert store.query("SELECT count(*) AS n FROM events").to_pylist() == [{"n": 3}]
        faults.is_away = True
        remote().patience_s = 0.1
        store.refresh()
        assert store.query("SELECT count(*) AS n FROM events").to_pylist() == [{"n": 3}]
        object_files._caches["s3"]._blocks.clear()
        with pytest.raises(MegascopeError, match="try again once the store answers"):
            other.query("SELECT step FROM events")
        faults.heal()
        remote()._rests_until = 0.0
        assert other.query("SELECT count(*) AS n FROM events").to_pylist() == [{"n": 3}]
        assert other.damaged == []


def test_a_store_that_may_not_be_read_is_one_sentence(store_root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MegascopeError, match="There is no store at s3://"):
        Store(store_root)
    nobody = type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})

    def refuse(*_: object, **__: object) -> None:
        raise nobody("Unable to locate credentials")

    monkeypatch.setattr(remote().filesystem, "info", refuse)
    with pytest.raises(MegascopeError, match=r"Unable to locate credentials.*check the credentials"):
        Store(store_root)


def test_what_a_killed_writer_left_is_deleted(
    store_root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    killed = TableWriter(store_root, "writer")
    killed.write("events", "run", 0, events(2))
    killed.commit()
    killed.write("events", "run", 0, events(2, first=3))
    assert len(list(store_root.rglob("*.parquet"))) == 2
    monkeypatch.setattr(lease, "LEASE_S", -1.0)
    TableWriter(store_root, "writer").close()
    assert len(list(store_root.rglob("*.parquet"))) == 1
    assert sequences(store_root) == [1, 2]


def test_the_command_line_takes_the_url(store_root: ObjectPath, tmp_path: Path, events: Rows) -> None:
    one_commit(store_root, events)
    done = finished(tmp_path, "sql", str(store_root), "SELECT count(*) AS n FROM events", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == [[3]]
