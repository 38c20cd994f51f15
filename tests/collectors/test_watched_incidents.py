"""Incidents that a watch keeps: under the claim, by whichever watch has it, and with no write that changes nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.incidents import watched
from megascope.collectors.incidents.diagnosing import diagnosis_claim
from megascope.collectors.incidents.watched import Judgement, WatchedIncidents
from megascope.collectors.manifests.manifest import SupersededError
from megascope.collectors.reading.store import Store
from megascope.collectors.storage import lease
from megascope.collectors.storage.address import store_path
from megascope.collectors.storage.remote import remote_of
from megascope.collectors.storage.shared_claim import LEASE_S, SharedClaim
from megascope.collectors.writing.writer import TableWriter

KEY = "job", 0
HANG = Judgement("nothing is heard of the agents", "hang", "{}")
CRASH = Judgement("the attempt crashed", "crashed", '{"verdict": "crashed"}', is_over=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with TableWriter(tmp_path / "store", "agent") as writer:
        writer.write("runs", *KEY, {"world_size": [8]})
        writer.commit()
    return tmp_path / "store"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of all claims that watches take from now on; one second past its start."""
    now = [1.0]

    def claim(store: Path, run: str, attempt: int, holder: str) -> SharedClaim:
        other = diagnosis_claim(store, run, attempt, holder)
        return SharedClaim(other._folder, other._name, holder, clock=lambda: now[0])

    monkeypatch.setattr(watched, "diagnosis_claim", claim)
    return now


def rows(root: Path) -> list[dict[str, Any]]:
    with Store(root) as store:
        found = store.query("SELECT * FROM incidents ORDER BY opened_ns", attempt=store.attempt())
        return list(found.to_pylist())


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_what_is_over_already_writes_nothing(root: Path) -> None:
    kept = WatchedIncidents(root)
    kept.judged(KEY, HANG)
    assert kept.over(KEY, "it has ended", is_open=True)
    before = [name for name in files(root) if ".claim-" not in name]
    assert kept.over(KEY, "it has ended", is_open=True), "a reader may not have seen yet that it is closed"
    assert kept.over(KEY, "it has ended", is_open=False)
    assert [name for name in files(root) if ".claim-" not in name] == before
    kept.close()
    assert len(rows(root)) == 1


def test_a_crash_waits_for_the_claim_of_one_that_is_gone(root: Path, clock: list[float]) -> None:
    assert diagnosis_claim(root, *KEY, "an agent").take()
    kept = WatchedIncidents(root)
    kept.judged(KEY, CRASH)
    for _ in range(int(LEASE_S / 2) + 2):
        assert rows(root) == []
        kept.over(KEY, "it has ended", is_open=False)
        kept.poll()
        clock[0] += 2.0
        if rows(root):
            break
    assert kept.over(KEY, "it has ended", is_open=False)
    kept.close()
    [row] = rows(root)
    assert (row["verdict"], row["closed_ns"] is None) == (CRASH.text, False)
    assert clock[0] >= LEASE_S
    assert diagnosis_claim(root, *KEY, "an agent").take()


def test_a_crash_waits_for_a_store_that_can_be_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> TableWriter:
        raise PermissionError(13, "Permission denied")

    kept = WatchedIncidents(root)
    with monkeypatch.context() as broken:
        broken.setattr(watched, "TableWriter", refuse)
        kept.judged(KEY, CRASH)
        assert not kept.over(KEY, "it has ended", is_open=False)
    kept.poll()
    kept.close()
    assert [row["verdict"] for row in rows(root)] == [CRASH.text]


def test_the_crash_of_a_job_that_hung_closes_what_is_open(root: Path) -> None:
    kept = WatchedIncidents(root)
    kept.judged(KEY, HANG)
    kept.judged(KEY, CRASH)
    kept.close()
    [row] = rows(root)
    assert row["closed_ns"] is not None
    assert row["verdict"] == CRASH.text
    assert [one["verdict"] for one in json.loads(row["actions"])] == ["hang", "crashed"]


def test_of_two_watches_that_see_a_crash_one_keeps_it(root: Path) -> None:
    first, second = WatchedIncidents(root), WatchedIncidents(root)
    first.judged(KEY, HANG)
    second.judged(KEY, CRASH)
    first.judged(KEY, CRASH)
    second.poll()
    first.close()
    second.close()
    assert len(rows(root)) == 1


def test_what_a_killed_watch_left_open_is_closed_once_its_claim_is_too_old(root: Path, clock: list[float]) -> None:
    killed = WatchedIncidents(root)
    killed.judged(KEY, HANG)
    kept = WatchedIncidents(root)
    looks = 0
    while not kept.over(KEY, "agents are heard", is_open=True):
        looks += 1
        assert looks < 100
        assert rows(root)[0]["closed_ns"] is None
        clock[0] += 2.0
    assert clock[0] >= LEASE_S
    assert rows(root)[0]["closed_ns"] is not None
    kept.close()
    assert diagnosis_claim(root, *KEY, "an agent").take()


def test_any_watch_goes_on_with_what_another_left_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = WatchedIncidents(root)
    kept.judged(KEY, HANG)
    kept.close()
    monkeypatch.setattr(watched, "host_name", lambda: "elsewhere")
    other = WatchedIncidents(root)
    other.judged(KEY, HANG)
    assert [row["closed_ns"] for row in rows(root)] == [None]
    assert other.over(KEY, "agents are heard", is_open=False)
    other.close()
    [row] = rows(root)
    assert row["closed_ns"] is not None
    assert [one["action"] for one in json.loads(row["actions"])] == ["diagnosed", "diagnosed", "over"]


def test_a_write_in_between_by_another_process_is_no_end_of_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an object store, where a paused watch finds that another one has written meanwhile."""
    kept = WatchedIncidents(root)
    kept.judged(KEY, HANG)
    stale: list[TableWriter] = []

    def superseded(writer: TableWriter, *_: object) -> int:
        stale.append(writer)
        raise SupersededError("Another process has written")

    with monkeypatch.context() as broken:
        broken.setattr(TableWriter, "commit", superseded)
        assert not kept.over(KEY, "agents are heard", is_open=True)
    commit = TableWriter.commit

    def once_stale_always(writer: TableWriter, *given: Any) -> int:
        if any(writer is one for one in stale):
            raise SupersededError("Another process has written")
        return commit(writer, *given)

    monkeypatch.setattr(TableWriter, "commit", once_stale_always)
    assert kept.over(KEY, "agents are heard", is_open=True)
    kept.close()
    assert [row["closed_ns"] is None for row in rows(root)] == [False]


def test_in_an_object_store_two_watches_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_of("memory"), "is_exact", True)
    monkeypatch.setattr(lease, "_decides", {})
    root = store_path(f"memory://watched/{uuid.uuid4().hex}")
    with TableWriter(root, "agent") as writer:
        writer.write("runs", *KEY, {"world_size": [8]})
        writer.commit()
    first, second = WatchedIncidents(root), WatchedIncidents(root)
    first.judged(KEY, HANG)
    second.judged(KEY, HANG)
    assert not second.over(KEY, "agents are heard", is_open=True), "the first has the claim"
    assert first.over(KEY, "agents are heard", is_open=True)
    assert second.over(KEY, "agents are heard", is_open=True)
    second.judged(KEY, CRASH)
    assert first.problem is second.problem is None
    first.close()
    second.close()
    found = rows(root)
    assert [json.loads(row["actions"])[0]["verdict"] for row in found] == ["hang", "crashed"]
    assert all(row["closed_ns"] is not None for row in found)
