"""Answers about an open store that are worked out once for each of its versions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from megascope.collectors.reading.kept import kept
from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap import source
from megascope.heatmap.source import choose_source
from megascope.profiler.errors import MegascopeError
from support.rollup_store import with_rollups
from support.synthetic_store import SyntheticJob, write_synthetic_store

JOB = SyntheticJob(steps=3, microbatches=2)


def test_once_a_version_and_key(tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", JOB)
    asked: list[str] = []

    def answer(name: str) -> str:
        asked.append(name)
        return name

    with Store(tmp_path / "store") as store, Store(tmp_path / "store") as other:
        for _ in range(2):
            assert kept(store, "a", lambda: answer("one")) == "one"
            assert kept(store, "b", lambda: answer("two")) == "two"
        assert kept(other, "a", lambda: answer("three")) == "three"
        assert asked == ["one", "two", "three"]
        write_synthetic_store(tmp_path / "store", SyntheticJob(run="later", steps=1))
        assert kept(store, "a", lambda: answer("four")) == "one", "nobody has looked yet"
        store.refresh()
        assert kept(store, "a", lambda: answer("five")) == "five"


def test_an_error_is_raised_and_not_kept(tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", JOB)

    def failing() -> int:
        raise MegascopeError("Not now.")

    with Store(tmp_path / "store") as store:
        with pytest.raises(MegascopeError, match="Not now"):
            kept(store, "a", failing)
        assert kept(store, "a", lambda: 1) == 1


def test_who_asks_meanwhile_waits(tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", JOB)
    begun, may_end = threading.Event(), threading.Event()
    found: list[int] = []

    def slow() -> int:
        begun.set()
        assert may_end.wait(30)
        return 1

    with Store(tmp_path / "store") as store:
        first = threading.Thread(target=lambda: found.append(kept(store, "a", slow)))
        first.start()
        assert begun.wait(30)
        second = threading.Thread(target=lambda: found.append(kept(store, "a", lambda: 2)))
        second.start()
        may_end.set()
        first.join(30)
        second.join(30)
    assert found == [1, 1]


def test_the_source_of_a_store_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_synthetic_store(tmp_path / "spans", JOB)
    count, counted = source._rolled_up, []

    def counting(store: Store, attempt: Attempt) -> tuple[int, int]:
        counted.append(attempt.attempt)
        return count(store, attempt)

    monkeypatch.setattr(source, "_rolled_up", counting)
    with Store(tmp_path / "spans") as spans, with_rollups(spans, tmp_path / "store", span_ranks=()) as store:
        attempt = store.attempt()
        whole, part = choose_source(store, attempt), choose_source(store, attempt, (1, 2))
        assert whole == choose_source(store, attempt)
        assert whole.source == part.source == source.Source.ROLLUPS
        assert counted == [attempt.attempt]
