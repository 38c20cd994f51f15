"""Results are computed once for a version of the store, and slow analyses never pile up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.dashboards import workbench
from megascope.dashboards.verdicts import stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import MegascopeError, UsageError
from support.small_job import ALL, job_of, open_simulated
from support.synthetic_store import START_NS, SyntheticJob, write_synthetic_store

Counter = Callable[[], int]


def counter(delay_s: float = 0.0) -> tuple[Counter, list[float]]:
    """A function that counts its calls, and the list of them."""
    calls: list[float] = []

    def compute() -> int:
        time.sleep(delay_s)
        calls.append(time.monotonic())
        return len(calls)

    return compute, calls


def grow(root: Path, attempt: int) -> None:
    write_synthetic_store(root, SyntheticJob(steps=2, attempt=attempt, first_ns=START_NS + attempt * 10**12))


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workbench, "REFRESH_S", 0.0)
    grow(tmp_path / "store", 0)
    return tmp_path / "store"


def test_many_who_ask_at_once_share_one_computation(bench: Workbench) -> None:
    compute, calls = counter(0.05)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: bench.cached("key", compute), range(8)))
    assert found == [1] * 8
    assert len(calls) == 1


def test_an_error_reaches_everybody_and_is_not_kept(bench: Workbench) -> None:
    def fail() -> int:
        raise MegascopeError("no")

    for _ in range(2):
        with pytest.raises(MegascopeError, match="no"):
            bench.cached("fails", fail)
    assert bench.cached("fails", lambda: 3) == 3


def test_a_new_version_of_the_store_computes_again(growing: Path) -> None:
    with Store(growing) as store:
        bench = Workbench(store)
        compute, calls = counter()
        assert [bench.cached("key", compute) for _ in range(3)] == [1, 1, 1]
        stamp = bench.stamp()
        grow(growing, 1)
        assert bench.cached("key", compute) == 2
        assert bench.stamp() != stamp
        assert len(calls) == 2
        bench.close()


def test_what_if_reads_only_new_steps_for_the_next_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "REFRESH_S", 0.0)
    store, attempt = open_simulated(tmp_path / "store", job_of(), ALL)
    with store:
        bench = Workbench(store)
        first = stragglers_of(bench, attempt, wait_s=60)
        read = bench.replays.of(attempt).steps_read
        grow(tmp_path / "store", 1)
        bench.replays.of(attempt).steps_read = -1
        while (latest := stragglers_of(bench, attempt)).stale:
            time.sleep(0.02)
        bench.close()
    assert first.value is not None
    assert latest.value is not None
    assert read > 0
    assert bench.replays.of(attempt).steps_read == 0
    assert latest.value.whatif == first.value.whatif is not None


def test_a_slow_analysis_runs_once_at_a_time_and_its_last_result_stays(growing: Path) -> None:
    with Store(growing) as store:
        bench = Workbench(store)
        release = threading.Event()
        running: list[int] = []

        def slow() -> int:
            running.append(1)
            release.wait(5)
            return len(running)

        first = bench.latest("slow", slow)
        assert (first.value, first.stale, first.stamp) == (None, True, "")
        for attempt in range(1, 4):
            grow(growing, attempt)
            assert bench.latest("slow", slow).stale
        assert len(running) == 1
        release.set()
        assert bench.latest("slow", slow, wait_s=5).value == 1
        deadline = time.monotonic() + 30
        while bench.latest("slow", slow).value != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        later = bench.latest("slow", slow)
        assert later.value == 2, "the newer store was not analysed"
        assert later.age_s is not None
        assert not later.stale
        grow(growing, 4)
        older = bench.latest("slow", slow)
        assert (older.value, older.stale, older.stamp) == (2, True, later.stamp)
        bench.close()


def test_what_was_asked_for_last_runs_first_and_what_nobody_waits_for_never(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench, "ABANDONED_S", 0.2)
    release, ran = threading.Event(), []

    def analysis(name: str) -> Callable[[], str]:
        def compute() -> str:
            ran.append(name)
            release.wait(5)
            return name

        return compute

    bench.latest("first", analysis("first"))
    while not ran:
        time.sleep(0.01)
    bench.latest("abandoned", analysis("abandoned"))
    time.sleep(0.3)
    for name in ("older", "newer"):
        bench.latest(name, analysis(name))
    release.set()
    assert bench.latest("older", analysis("older again"), wait_s=0).value is None
    bench.latest("newer", analysis("newer"), wait_s=5)
    assert bench.latest("older", analysis("older"), wait_s=5).value == "older again"
    assert ran[:2] == ["first", "newer"]
    assert "abandoned" not in ran
    assert bench.latest("abandoned", analysis("abandoned"), wait_s=5).value == "abandoned", "asked for again, it runs"


def test_results_are_kept_by_their_bytes(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "CACHED_BYTES", 3_000_000)
    calls: list[str] = []

    def large(name: str) -> dict[str, np.ndarray]:
        calls.append(name)
        return {"values": np.zeros(125_000)}

    for name in ("a", "b", "a", "c", "a", "b"):
        bench.cached(name, partial(large, name))
    assert calls == ["a", "b", "c", "b"], "of three only two have room; the one that was used longest ago goes"
    for number in range(200):
        bench.cached(("small", number), lambda: 1)
    bench.cached("b", lambda: large("b"))
    assert calls.count("b") == 2, "small ones take no place"


def test_a_failed_analysis_keeps_the_last_value_and_says_why(growing: Path) -> None:
    with Store(growing) as store:
        bench = Workbench(store)
        answers = iter([7])

        def once() -> int:
            found = next(answers, None)
            if found is None:
                raise MegascopeError("The data are gone.")
            return found

        assert bench.latest("key", once, wait_s=5).value == 7
        grow(growing, 1)
        deadline = time.monotonic() + 30
        while bench.latest("key", once).error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        found = bench.latest("key", once)
        assert (found.value, found.error) == (7, "The data are gone.")
        bench.close()


def test_the_newest_attempt_is_taken_and_what_does_not_exist_is_named(bench: Workbench) -> None:
    assert bench.attempt(View()).run == "synthetic"
    assert bench.attempt(View(run="older run/ü")).run == "older run/ü"
    with pytest.raises(UsageError, match="has no run 'x'"):
        bench.attempt(View(run="x"))
