"""A page that stays open follows the store to its end: newest verdict, marks, scene, and a restart in the selectors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dash import no_update
from playwright.sync_api import Browser

from megascope.collectors.reading.store import Store
from megascope.dashboards import workbench
from megascope.dashboards.app import render
from megascope.dashboards.pages import PAGES
from megascope.dashboards.server import background_server
from megascope.dashboards.shell import PENDING_TICK_MS, TICK_MS
from megascope.dashboards.workbench import Workbench
from support.page_checks import visit, wait_judged
from support.synthetic_store import START_NS, Slow, SyntheticJob, write_synthetic_store

NAMES = {page.path: page.name for page in PAGES.values()}
SLOW = Slow(5, 1.6)
FEW = SyntheticJob(steps=4, slow=SLOW)
MANY = SyntheticJob(steps=60, first_step=4, slow=SLOW)
STUCK = SyntheticJob(steps=4, stuck=5)
STUCK_ELSEWHERE = SyntheticJob(steps=8, first_step=4, stuck=3)


@dataclass(slots=True)
class Follower:
    """What a browser holds of one page, tick by tick."""

    bench: Workbench
    path: str
    search: str = ""
    shown: dict[str, Any] | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    ticks: int = 0

    def tick(self) -> None:
        """One turn of the page's interval; what it brings replaces what was there."""
        names = ("nav", "banner", "frame", "body", "mark", "age", "since", "newest", "interval")
        found = render(self.bench, NAMES, self.path, self.search, self.shown, self.ticks)
        self.parts |= {name: part for name, part in zip(names, found, strict=True) if part is not no_update}
        self.shown = self.parts["mark"]
        self.ticks += 1

    def tick_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Ticks until something holds; fails if it never does."""
        deadline = time.monotonic() + seconds
        while True:
            self.tick()
            if condition():
                return
            assert time.monotonic() < deadline, self.text("banner")
            time.sleep(0.05)

    def text(self, part: str) -> str:
        """A part as JSON, with all that it holds."""
        return json.dumps(self.parts[part], default=lambda component: component.to_plotly_json())

    def properties(self, part: str, name: str) -> dict[str, Any]:
        """The properties of the component with that id."""
        waiting: list[Any] = [json.loads(self.text(part))]
        for value in waiting:  # grows while it is walked
            if isinstance(value, dict) and value.get("id") == name:
                return value
            waiting += value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        raise AssertionError(f"no {name} in the {part}")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workbench, "REFRESH_S", 0.0)
    return tmp_path / "store"


@pytest.fixture
def follow(root: Path) -> Iterator[Callable[[SyntheticJob, str], Follower]]:
    """Writes a job's first part and opens a page on it."""
    opened: list[Workbench] = []

    def start(job: SyntheticJob, path: str) -> Follower:
        write_synthetic_store(root, job)
        opened.append(Workbench(Store(root)))
        return Follower(opened[-1], path)

    yield start
    for bench in opened:
        bench.close()
        bench.store.close()


@pytest.mark.parametrize("path", ["/", "/heatmap", "/timeline"])
def test_the_newest_straggler_verdict_is_shown_in_the_end(
    root: Path, follow: Callable[[SyntheticJob, str], Follower], path: str
) -> None:
    page = follow(FEW, path)
    page.tick_until(lambda: page.parts["mark"]["pending"] is False)
    assert "NOT JUDGED" in page.text("banner")
    write_synthetic_store(root, MANY)
    page.tick_until(lambda: page.parts["mark"]["pending"] is False)
    assert "Rank 5" in page.text("banner")
    if path == "/heatmap":
        marks = json.loads(page.properties("body", "widget-heatmap")["data-marks"])
        assert [mark["ranks"] for mark in marks] == [[5]]


def test_the_newest_hang_verdict_reaches_the_banner_and_the_scene(
    root: Path, follow: Callable[[SyntheticJob, str], Follower]
) -> None:
    page = follow(STUCK, "/3d")
    page.tick_until(lambda: page.parts["mark"]["pending"] is False)
    assert "Rank 5" in page.text("banner")
    before = page.properties("body", "widget-scene")["data-source"]
    write_synthetic_store(root, STUCK_ELSEWHERE)
    page.tick_until(lambda: page.parts["mark"]["pending"] is False)
    assert "Rank 3" in page.text("banner")
    assert "Rank 5" not in page.text("banner")
    after = page.properties("body", "widget-scene")["data-source"]
    assert after.split("&verdict=")[1] != before.split("&verdict=")[1]


def test_an_old_verdict_is_no_reason_to_hurry(root: Path, follow: Callable[[SyntheticJob, str], Follower]) -> None:
    page = follow(FEW, "/")
    page.bench.latest(("stragglers", "synthetic", 0), lambda: time.sleep(1))
    page.tick()
    assert page.parts["interval"] == PENDING_TICK_MS, "there is no verdict yet"
    page.tick_until(lambda: page.parts["mark"]["pending"] is False)
    assert page.parts["interval"] == TICK_MS
    write_synthetic_store(root, MANY)
    page.tick()
    assert page.parts["mark"]["pending"] is True
    assert page.parts["interval"] == TICK_MS


def test_the_selectors_follow_a_restart_and_an_end(root: Path, follow: Callable[[SyntheticJob, str], Follower]) -> None:
    page = follow(STUCK, "/")
    page.tick_until(lambda: page.parts["mark"]["pending"] is False)
    assert [option["props"]["value"] for option in page.properties("frame", "select-attempt")["children"]] == ["0"]
    write_synthetic_store(root, SyntheticJob(steps=6, stuck=5, attempt=1, first_ns=START_NS + 10**12))
    page.tick()
    newest, oldest = (option["props"] for option in page.properties("frame", "select-attempt")["children"])
    assert (newest["value"], newest["selected"], oldest["value"], oldest["selected"]) == ("1", True, "0", False)
    assert newest["children"].startswith("1: not ended")
    write_synthetic_store(root, SyntheticJob(steps=7, first_step=6, attempt=1, first_ns=START_NS + 10**12))
    page.tick()
    assert '"1: finished' in page.text("frame")
    before = page.parts["frame"]
    page.tick()
    assert page.parts["frame"] is before, "drawn again without a reason"


def test_the_browser_follows_the_marks_to_the_final_verdict(browser: Browser, tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", FEW)
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = seen.go("/heatmap?segment=forward")
        wait_judged(page)
        assert "NOT JUDGED" in page.inner_text("#banner")
        write_synthetic_store(tmp_path / "store", MANY)
        page.wait_for_function("() => document.getElementById('banner').innerText.includes('Rank 5')")
        page.wait_for_function("() => window.megascope.widget('heatmap').marks.some(mark => mark.ranks.includes(5))")
        seen.check_clean()


def test_the_browser_follows_the_scene_to_the_final_verdict(browser: Browser, tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", STUCK)
    culprits = "window.megascope.widget('scene')?.nodes?.filter(n => n.culprit).map(n => n.rank).join()"
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = seen.go("/3d")
        page.wait_for_function(f"() => {culprits} === '5'")
        write_synthetic_store(tmp_path / "store", STUCK_ELSEWHERE)
        page.wait_for_function("() => document.getElementById('banner').innerText.includes('Rank 3')")
        page.wait_for_function(f"() => {culprits} === '3'")
        seen.check_clean()
