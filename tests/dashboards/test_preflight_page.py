"""The page Preflight: the newest result and older ones, who is named, and what is missing or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from megascope.collectors.reading.store import Store
from megascope.collectors.result_files import PREFLIGHT, write_result
from megascope.dashboards.pages import PAGES
from megascope.dashboards.preflight_data import dots
from megascope.dashboards.result_list import kept_results
from megascope.dashboards.server import background_server
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import MegascopeError
from support.page_checks import visit
from support.synthetic_store import SyntheticJob, write_synthetic_store

FIRST_NS, SECOND_NS = 1_790_000_000 * 10**9, 1_790_003_600 * 10**9
PAIRS = [[0, 1], [1, 2], [2, 3], [0, 3]]


def a_result(started_ns: int, slow: list[int] | None = None, verdict: str | None = None) -> dict[str, Any]:
    """As `megascope preflight --json` prints it: four ranks in a ring of pairs, one of which may be slow."""
    measurements = [
        {
            "check": "pairs", "metric": "bandwidth", "unit": "GB/s", "ranks": pair, "hosts": ["a", "b"],
            "peers": "between hosts", "value": 5.0 if pair == slow else 40.0, "uncertainty": 0.0,
        }
        for pair in PAIRS
    ]  # fmt: skip
    culprit = {
        "kind": "link", "reason": "outlier", "check": "pairs", "metric": "bandwidth", "ranks": slow,
        "hosts": ["a", "b"], "value": 5.0, "peers": 40.0, "unit": "GB/s",
        "statement": "The pair of ranks 1 and 2 (a and b): pairs bandwidth 5 GB/s.",
    }  # fmt: skip
    return {
        "schema": 1, "verdict": verdict or ("findings" if slow else "healthy"), "started_ns": started_ns,
        "seconds": 12.0, "quick": True, "world_size": 4, "hosts": ["a", "b"], "layout": {"dp": 4}, "device": "cpu",
        "culprits": [culprit] if slow else [], "notes": ["Host a: rx_dropped grew."],
        "abstained": [{"signal": "all_to_all.bandwidth", "reason": "1 value of its kind"}],
        "skipped": [{"signal": "copies", "reason": "the ranks run on CPUs"}], "measurements": measurements,
        "summaries": [
            {
                "check": "pairs", "metric": "bandwidth", "unit": "GB/s", "peers": "between hosts", "count": 4,
                "median": 40.0, "lowest": 5.0 if slow else 40.0, "highest": 40.0,
            }
        ],
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write_synthetic_store(root, SyntheticJob(steps=2))
    return root


@pytest.fixture
def bench(store: Path) -> Iterator[Workbench]:
    opened = Store(store)
    bench = Workbench(opened)
    yield bench
    bench.close()
    opened.close()


def test_only_the_accused_pair_is_marked() -> None:
    result = a_result(FIRST_NS, [1, 2])
    found = dots(result, result["summaries"][0])
    assert [(dot.at, dot.is_accused) for dot in found] == [(0.125, True), (1.0, False), (1.0, False), (1.0, False)]
    assert found[0].text == "ranks 1, 2: 5 GB/s"


def test_without_a_result_the_page_says_what_to_run(bench: Workbench) -> None:
    body = PAGES["/preflight"].body(View(), bench)
    assert "megascope preflight CONFIG --store" in str(body.children)


def test_a_damaged_file_is_said_and_the_others_are_shown(store: Path, bench: Workbench) -> None:
    path = write_result(store, PREFLIGHT, a_result(FIRST_NS))
    write_result(store, PREFLIGHT, a_result(SECOND_NS))
    path.write_text("{")
    kept = kept_results(store, PREFLIGHT)
    assert [one["started_ns"] for one in kept.results] == [SECOND_NS]
    assert "cannot be read" in kept.damaged[0]
    assert "cannot be read" in str(PAGES["/preflight"].body(View(), bench).children)
    with pytest.raises(MegascopeError, match="No result of megascope preflight began at"):
        kept.chosen(FIRST_NS)


@pytest.mark.timeout(120)
def test_the_newest_result_is_shown_and_an_older_one_can_be_chosen(browser: Browser, store: Path) -> None:
    write_result(store, PREFLIGHT, a_result(FIRST_NS, [1, 2]))
    write_result(store, PREFLIGHT, a_result(SECOND_NS))
    with background_server(store) as server, visit(browser, server.url) as seen:
        page = seen.go("/preflight")
        page.wait_for_selector(".banner.good")
        assert "HEALTHY" in page.inner_text(".banner")
        assert page.locator("#checks .accused").count() == 0
        page.select_option("#select-moment", str(FIRST_NS))
        page.wait_for_selector(".banner.bad")
        assert "The pair of ranks 1 and 2" in page.inner_text(".banner")
        assert page.locator("#checks .accused").count() == 1
        assert page.locator("#checks .value").count() == 3
        assert "link" in page.inner_text("#findings")
        text = page.inner_text("main")
        assert "Not judged: all_to_all.bandwidth" in text
        assert "Not run: copies" in text
        assert "rx_dropped grew" in text
        page.reload()
        page.wait_for_selector(".banner.bad")
        seen.check_clean()
