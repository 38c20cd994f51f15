"""A run that never says which step it is in: the Heatmap shows its ranks over time, and who is slow stands out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.binary import unpack
from megascope.dashboards.heat.data import choose, matrix_of
from megascope.dashboards.heat.export import heat_sql
from megascope.dashboards.heat.payload import heat_payload
from megascope.dashboards.heat.times import PARTS
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.server import background_server
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import UsageError
from support.page_checks import visit
from support.page_visits import cell_centre, open_heatmap

RANKS, SPANS, START_NS, EACH_NS = 4, 600, 1_790_000_000 * 10**9, 10_000_000


@pytest.fixture(scope="module")
def stepless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks, a span of 6 ms every 10 ms; rank 2 takes 9 ms from the middle on."""
    root = tmp_path_factory.mktemp("stepless") / "store"
    rank, turn = np.repeat(np.arange(RANKS), SPANS), np.tile(np.arange(SPANS), RANKS)
    duration = np.where((rank == 2) & (turn >= SPANS // 2), 9_000_000, 6_000_000)
    rows: dict[str, Any] = {"rank": rank, "segment": np.full(len(rank), 1), "start_ns": START_NS + turn * EACH_NS}
    rows |= {"duration_ns": duration, "self_ns": duration, "status": ["ok"] * len(rank), "clock": ["host"] * len(rank)}
    with TableWriter(root, "test") as writer:
        writer.write("events", "run", 0, rows)
        writer.write("segments", "run", 0, {"segment": [1], "name": ["generate"], "kind": ["compute"]})
        writer.write("ranks", "run", 0, {"rank": list(range(RANKS)), "host": ["a", "a", "b", "b"]})
        writer.commit()
    return root


@pytest.fixture
def bench(stepless: Path) -> Iterator[Workbench]:
    with Store(stepless) as store:
        bench = Workbench(store)
        yield bench
        bench.close()


def test_parts_of_time_stand_in_the_place_of_steps(bench: Workbench) -> None:
    attempt = bench.attempt(View())
    choice = choose(View(), bench, attempt)
    matrix = matrix_of(bench, attempt, choice)
    assert matrix.values.shape == (RANKS, PARTS)
    assert np.nanmax(np.abs(matrix.ratio[:, : PARTS // 2] - 1)) < 1e-9
    np.testing.assert_allclose(matrix.ratio[2, PARTS // 2 :], 1.5)
    assert np.nansum(matrix_of(bench, attempt, choose(View(metric="count"), bench, attempt)).values) == RANKS * SPANS
    meta, _ = unpack(heat_payload(bench, attempt, View()))
    assert meta["part_s"] == pytest.approx(SPANS * EACH_NS / 1e9 / PARTS, rel=0.01)
    assert "call megascope.step" in str(PAGE.body(View(), bench).children).lower()
    found = run_sql(bench.store, heat_sql(bench, attempt, choice), attempt=attempt).table
    assert set(found["rank"].to_pylist()[: PARTS // 2]) == {2}
    with pytest.raises(UsageError, match="Without steps there is no p99"):
        heat_payload(bench, attempt, View(metric="p99"))


@pytest.mark.timeout(120)
def test_the_page_shows_seconds(browser: Browser, stepless: Path) -> None:
    with background_server(stepless) as server, visit(browser, server.url) as seen:
        page = open_heatmap(seen)
        page.mouse.move(*cell_centre(page, 2, 45))
        page.wait_for_function("() => document.querySelector('.tooltip').innerText.includes('rank 2, 4.49 to 4.59 s')")
        assert "1.5x" in page.inner_text(".tooltip")
        assert page.inner_text("#worst-ranks tbody tr:first-child td:first-child") == "2"
        seen.check_clean()
