"""Stores, servers and a browser for the tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from megascope.collectors.reading.store import Attempt, Store
from megascope.dashboards.server import RunningServer, background_server
from megascope.dashboards.workbench import Workbench
from support.page_checks import Visit, chromium, visit
from support.synthetic_store import START_NS, Slow, SyntheticJob, write_synthetic_store

SLOW = SyntheticJob(steps=30, slow=Slow(5, 1.5, 8), missing=((3, 4), (2, 10)))
STUCK = SyntheticJob(steps=10, stuck=5)
OLDER = SyntheticJob(run="older run/ü", steps=5, microbatches=2, first_ns=START_NS - 10**13)


@pytest.fixture(scope="session")
def slow_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; in the newest, rank 5 is slow from step 8 on, and two cells are missing."""
    root = tmp_path_factory.mktemp("slow") / "store"
    write_synthetic_store(root, OLDER)
    write_synthetic_store(root, SLOW)
    return root


@pytest.fixture(scope="session")
def stuck_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 5 sits in data loading, all others wait."""
    root = tmp_path_factory.mktemp("stuck") / "store"
    write_synthetic_store(root, STUCK)
    return root


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def slow_server(slow_store: Path) -> Iterator[RunningServer]:
    with background_server(slow_store) as server:
        yield server


@pytest.fixture(scope="session")
def stuck_server(stuck_store: Path) -> Iterator[RunningServer]:
    with background_server(stuck_store) as server:
        yield server


@pytest.fixture
def slow_visit(browser: Browser, slow_server: RunningServer) -> Iterator[Visit]:
    with visit(browser, slow_server.url) as seen:
        yield seen


@pytest.fixture
def stuck_visit(browser: Browser, stuck_server: RunningServer) -> Iterator[Visit]:
    with visit(browser, stuck_server.url) as seen:
        yield seen


@pytest.fixture
def bench(slow_store: Path) -> Iterator[Workbench]:
    """A workbench over the slow store."""
    store = Store(slow_store)
    bench = Workbench(store)
    yield bench
    bench.close()
    store.close()


@pytest.fixture
def attempt(bench: Workbench) -> Attempt:
    return bench.store.attempt()
