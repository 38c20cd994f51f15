"""Two processes and one name in an object store: whoever slept loses no row, counts none twice and holds nobody up."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.manifests import manifest as manifests
from megascope.collectors.manifests.manifest import SupersededError, manifest_folder
from megascope.collectors.reading.store import Store
from megascope.collectors.storage import lease
from megascope.collectors.storage.address import store_path
from megascope.collectors.storage.durable import TEMPORARY
from megascope.collectors.storage.object_path import ObjectPath
from megascope.collectors.storage.remote import Remote, UnreachableError, remote_of
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.upkeep.keeper import BlockKeeper
from megascope.collectors.writing.writer import TableWriter
from megascope.collectors.writing.writer_files import LEFT_AFTER_S

Rows = Callable[..., dict[str, list[Any]]]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """A store in memory, whose server decides between two that create one object."""
    monkeypatch.setattr(remote_of("memory"), "is_exact", True)
    monkeypatch.setattr(lease, "_decides", {})
    path = store_path(f"memory://races/{uuid.uuid4().hex}")
    assert isinstance(path, ObjectPath)
    return path


@contextlib.contextmanager
def lapsed() -> Iterator[None]:
    """Within, every lease counts as one whose holder has slept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "LEASE_S", -1.0)
        yield


def sequences(root: Path) -> list[int]:
    with Store(root) as store:
        found = [row["sequence"] for row in store.query("SELECT sequence FROM events ORDER BY ALL").to_pylist()]
        assert store.damaged == []
    return found


def one_commit(root: Path, events: Rows, name: str, first: int, count: int = 3) -> None:
    with TableWriter(root, name) as writer:
        writer.write("events", "run", 0, events(count, first=first))
        writer.commit()


def test_files_that_a_sleeper_has_staged_go_only_once_it_can_commit_no_more(root: ObjectPath, events: Rows) -> None:
    sleeper = TableWriter(root, "agent")
    sleeper.write("events", "run", 0, events(2))
    sleeper.commit({"at": 2})
    sleeper.write("events", "run", 0, events(2, first=3))
    with lapsed():
        successor = TableWriter(root, "agent")
    assert len(list(root.rglob("*.parquet"))) == 1
    with pytest.raises(SupersededError):
        sleeper.commit({"at": 4})
    sleeper.close()
    assert successor.state == {"at": 2}
    successor.write("events", "run", 0, events(2, first=3))
    successor.commit({"at": 4})
    successor.close()
    assert sequences(root) == [1, 2, 3, 4]


def test_a_block_that_is_only_opened_costs_a_merge_under_way_no_rows(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    for number in range(2):
        one_commit(root, events, f"agent-{number}", 1 + 3 * number)
    assert compact(root, quiet_s=-60.0).files_after == 1
    for number in range(2, 4):
        one_commit(root, events, f"agent-{number}", 1 + 3 * number)
    commit = BlockKeeper.commit

    def late(self: BlockKeeper, listed: Any) -> int:
        with lapsed(), BlockKeeper(root, "run", 0, "b000"):
            return commit(self, listed)

    monkeypatch.setattr(BlockKeeper, "commit", late)
    compact(root, quiet_s=-60.0)
    assert sequences(root) == list(range(1, 13))


def test_a_snapshot_on_which_somebody_has_built_keeps_its_files(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    sleeper = TableWriter(root, "agent")
    sleeper.write("events", "run", 0, events(2))
    sleeper.commit({"at": 2})
    sleeper.write("events", "run", 0, events(2, first=3))
    numbers = manifests.snapshot_numbers
    successors: list[TableWriter] = []

    def late(folder: Path) -> list[int]:
        if not successors and sys._getframe(1).f_code.co_name == "_create_snapshot":  # between its PUT and its look
            with lapsed():
                successors.append(TableWriter(root, "agent"))
            assert successors[0].state == {"at": 4}
            successors[0].write("events", "run", 0, events(1, first=5))
            successors[0].commit({"at": 5})
        return numbers(folder)

    with monkeypatch.context() as patch:
        patch.setattr(manifests, "snapshot_numbers", late)
        with pytest.raises(SupersededError):
            sleeper.commit({"at": 4})
    sleeper.close()
    successors[0].close()
    assert sequences(root) == [1, 2, 3, 4, 5]


def test_a_writer_that_comes_back_while_a_compaction_sleeps_leaves_it_its_files(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    def work(steps: range) -> None:
        with TableWriter(root, "agent") as writer:
            for step in steps:
                writer.write("events", "run", 0, events(2, step=step, first=1 + 2 * step))
                writer.commit({"step": step})

    work(range(9))
    commit = BlockKeeper.commit

    def late(self: BlockKeeper, listed: Any) -> int:
        with lapsed():
            work(range(9, 30))  # so many that it merges what is small
        return commit(self, listed)

    monkeypatch.setattr(BlockKeeper, "commit", late)
    report = compact(root, quiet_s=-60.0)
    assert (report.problems, report.files_after) == ([], 1)
    assert sequences(root) == list(range(1, 61))


def test_no_two_snapshots_are_the_same_to_the_letter(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    """Else a sleeper without news would take the compaction's snapshot for its own, and merge what is merged."""
    sleeper = TableWriter(root, "agent")
    for step in range(9):
        sleeper.write("events", "run", 0, events(2, step=step, first=1 + 2 * step))
        sleeper.commit({"step": step})
    commit = BlockKeeper.commit

    def late(self: BlockKeeper, listed: Any) -> int:
        with pytest.raises(SupersededError):
            sleeper.commit()
        return commit(self, listed)

    monkeypatch.setattr(BlockKeeper, "commit", late)
    with lapsed():
        assert compact(root, quiet_s=-60.0).problems == []
    sleeper.close()
    assert sequences(root) == list(range(1, 19))
    texts = [path.read_text() for path in manifest_folder(root, "agent").glob("*.json")]
    assert len({json.loads(text)["token"] for text in texts}) == len(texts)


def test_who_comes_late_to_a_lease_does_not_hold_it(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    path, newest = root / "lock", lease._newest
    others: list[lease.Lease | None] = []

    def late(at: ObjectPath) -> ObjectPath | None:
        found = newest(at)
        with monkeypatch.context() as patch:
            patch.setattr(lease, "_newest", newest)
            for _ in range(2):
                taken = lease.Lease.acquire(path)
                assert taken is not None
                taken.release()
            others.append(lease.Lease.acquire(path))  # the number after ``found`` is free again
        return found

    with monkeypatch.context() as patch:
        patch.setattr(lease, "_newest", late)
        assert lease.Lease.acquire(path) is None
    (other,) = others
    assert other is not None
    assert [each.name for each in root.iterdir()] == ["lock.claim-000003"]
    other.release()
    again = lease.Lease.acquire(path)
    assert again is not None
    again.release()


@pytest.mark.parametrize("opening", ["writer", "keeper"])
def test_what_was_staged_by_a_process_killed_before_its_first_commit_is_deleted(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows, opening: str
) -> None:
    one_commit(root, events, "other", 1)
    if opening == "writer":
        killed = TableWriter(root, "agent")
        killed.write("events", "run", 0, events(2, first=100))
    else:
        one_commit(root, events, "another", 4)
        monkeypatch.setattr(BlockKeeper, "rollback", lambda _: None)
        monkeypatch.setattr(BlockKeeper, "commit", lambda *_: 1)
        compact(root, quiet_s=-60.0)
    known = len(list(root.rglob("*.parquet")))
    with lapsed():
        (TableWriter(root, "agent") if opening == "writer" else BlockKeeper(root, "run", 0, "b000")).close()
    assert len(list(root.rglob("*.parquet"))) == known - 1
    if opening == "writer":
        with pytest.raises(SupersededError):
            killed.commit()
        killed.close()


def test_what_a_killed_process_left_on_this_machine_goes_after_a_day(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    long_ago = time.time() - 2 * LEFT_AFTER_S
    for name, is_old in (("put-1", True), ("spill-1", True), ("spill-2", False)):
        folder = tmp_path / f"{TEMPORARY}{name}"
        folder.mkdir()
        (folder / "content").write_bytes(b"x")
        if is_old:
            os.utime(folder, (long_ago, long_ago))
    with BlockKeeper(root, "run", 0, "b000") as keeper:
        assert keeper.spill.name.startswith(TEMPORARY)
    assert [path.name for path in tmp_path.iterdir()] == [f"{TEMPORARY}spill-2"]


def test_who_looks_at_a_lease_and_is_killed_leaves_nothing_for_long(root: ObjectPath) -> None:
    (root / "lock.probe-0123").write_bytes(b"")
    taken = lease.Lease.acquire(root / "lock")
    assert taken is not None
    taken.release()
    assert [each.name for each in root.iterdir()] == ["lock.claim-000001"]


REQUESTS = ("read", "put", "create", "delete", "info", "entries")


@pytest.mark.parametrize("opening", ["writer", "keeper"])
def test_an_opening_that_fails_holds_nobody_up(
    root: ObjectPath, monkeypatch: pytest.MonkeyPatch, events: Rows, opening: str
) -> None:
    """One request of the opening after another gets no answer, until none is left to fail."""
    one_commit(root, events, "agent", 1)
    compact(root, quiet_s=-60.0)
    left = 0

    def failing(name: str) -> Callable[..., Any]:
        real = getattr(Remote, name)

        def request(self: Remote, *args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise UnreachableError("no answer")
            return real(self, *args, **more)

        return request

    def open_one() -> TableWriter | BlockKeeper:
        return TableWriter(root, "agent") if opening == "writer" else BlockKeeper(root, "run", 0, "b000")

    opened, failed = None, 0
    for at in range(1, 100):
        with monkeypatch.context() as patch:
            for name in REQUESTS:
                patch.setattr(Remote, name, failing(name))
            left = at
            try:
                opened = open_one()
            except UnreachableError:
                failed += 1
            is_done = left > 0
        if opened is not None:
            opened.close()
            opened = None
        if is_done:
            break
        open_one().close()
    assert failed > 5
    assert not [thread for thread in threading.enumerate() if thread.name == "megascope-lease"]


def test_a_lease_that_nobody_refers_to_is_renewed_no_more(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 0.01)
    taken = lease.Lease.acquire(root / "lock")
    assert taken is not None
    renewer = taken._renewer
    del taken
    gc.collect()
    renewer.join(timeout=30)
    assert not renewer.is_alive()
    assert lease.Lease.acquire(root / "lock") is None
