"""Readers of a store in an object store, and its quota, while the server answers one request and not the next."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.manifests import listing
from megascope.collectors.manifests.manifest import newest_snapshots
from megascope.collectors.reading.store import Store
from megascope.collectors.storage import object_files, quota
from megascope.collectors.storage.address import store_path
from megascope.collectors.storage.quota import Quota
from megascope.collectors.storage.remote import UnreachableError, remote_of
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError

Rows = Callable[..., dict[str, list[Any]]]


@pytest.fixture
def root() -> Path:
    """A store in memory."""
    return store_path(f"memory://readers/{uuid.uuid4().hex}")


def one_commit(root: Path, events: Rows, name: str, first: int) -> None:
    with TableWriter(root, name) as writer:
        writer.write("events", "run", 0, events(3, first=first))
        writer.commit()


def count(store: Store) -> int:
    return int(store.query("SELECT count(*) AS n FROM events").to_pylist()[0]["n"])


def test_what_was_read_before_a_listing_failed_is_shown_after_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch, events: Rows
) -> None:
    one_commit(root, events, "agent-0", 1)
    with Store(root) as store:
        assert count(store) == 3
        one_commit(root, events, "agent-1", 4)

        def half(root: Path, *, of_compactors: bool) -> dict[Path, int]:
            if of_compactors:
                raise UnreachableError("no answer")
            return newest_snapshots(root, of_compactors=of_compactors)

        with monkeypatch.context() as patch:
            patch.setattr(listing, "newest_snapshots", half)
            store.refresh()
        store.refresh()
        assert count(store) == 6


def test_refused_credentials_are_no_damage(root: Path, monkeypatch: pytest.MonkeyPatch, events: Rows) -> None:
    one_commit(root, events, "agent", 1)
    with Store(root) as store:

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError("The provided token has expired.")

        object_files.block_cache("memory")._blocks.clear()
        with monkeypatch.context() as patch:
            patch.setattr(remote_of("memory").filesystem, "cat_file", refuse)
            with pytest.raises(MegascopeError, match=r"token has expired\.\): check the credentials"):
                store.query("SELECT step FROM events")
            patch.setattr(remote_of("memory").filesystem, "find", refuse)
            store.refresh()
        assert count(store) == 3
        assert store.damaged == []
        with monkeypatch.context() as patch:
            patch.setattr(remote_of("memory").filesystem, "find", refuse)
            with pytest.raises(MegascopeError, match=r"may not be read .*check the credentials"):
                Store(root)


@pytest.mark.parametrize("error", [UnreachableError("no answer"), PermissionError("expired")])
def test_a_store_that_cannot_be_measured_is_measured_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, events: Rows, error: OSError
) -> None:
    one_commit(root, events, "agent", 1)
    asked = []

    def fail(*_: object, **__: object) -> None:
        asked.append(1)
        raise error

    watched = Quota(root, 10)
    with monkeypatch.context() as patch:
        patch.setattr(quota, "folder_bytes", fail)
        for written in (0, 5):
            assert not watched.is_exceeded(written)
        assert watched.is_exceeded(11), "what this agent has written counts in any case"
        assert len(asked) == 1, "not once a turn"
        assert [watched.measured_bytes] == [None]
    monkeypatch.setattr(quota, "MEASURE_EVERY_S", -1.0)
    assert watched.is_exceeded(0)
    assert watched.measured_bytes
    monkeypatch.setattr(quota, "folder_bytes", fail)
    assert watched.is_exceeded(0), "the last figure stays"
