"""Every page on the demo's own store, in a browser: each drawn cell, span and rank is the one that was recorded."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from conftest import DEMO_STEPS, Demo
from megascope.collectors.reading.store import Attempt, Store
from megascope.dashboards.server import background_server
from megascope.viz3d.hang import Judged, diagnose_with_graph
from megascope.viz3d.snapshot import take_snapshot
from support.page_checks import (
    Visit,
    check_all_pages,
    check_heatmap,
    check_timeline,
    drawn_cells,
    drawn_spans,
    visit,
    wait_judged,
    wait_painted,
)
from support.page_visits import cell_centre, open_heatmap
from support.scene_checks import check_scene

pytestmark = pytest.mark.alone


def test_every_page_shows_what_the_demo_recorded(browser: Browser, demo: Demo) -> None:
    compared = check_all_pages(browser, demo.store)
    assert compared["cells"] == 8 * DEMO_STEPS
    with Store(demo.store) as store:
        last = store.query("select count(*) as n from events where rank in (5, 7) and step = ?", [DEMO_STEPS - 1])
        assert compared["spans"] == last.to_pylist()[0]["n"]


def test_from_the_hottest_cell_to_the_timeline_to_3d(browser: Browser, demo: Demo) -> None:
    walk_from_the_hottest_cell(browser, demo.store)


def walk_from_the_hottest_cell(browser: Browser, root: Path) -> None:
    """Click the way that an engineer goes, and compare each picture on it with the store."""
    with Store(root) as store, background_server(root) as server, visit(browser, server.url) as seen:
        attempt = store.attempt()
        page = open_heatmap(seen)
        check_heatmap(page, store, attempt)
        segment = page.evaluate("() => window.megascope.widget('heatmap').meta.segment")
        rank, step, value = _hottest(page)
        page.mouse.click(*cell_centre(page, rank, step))
        page.wait_for_url(f"**/timeline?*rank={rank}*steps={step}*")
        wait_painted(page, "timeline")
        assert check_timeline(page, store, attempt) > 0
        own = [
            span["self"]
            for span in drawn_spans(page)
            if (span["rank"], span["step"], span["segment"], span["status"]) == (rank, step, segment, "ok")
        ]
        assert sum(own) / len(own) / 1e6 == pytest.approx(value, rel=1e-5), "the cell is the mean of these spans"

        page.click("#nav-3d")
        page.wait_for_url(f"**/3d?*rank={rank}*")
        _check_scene(page, store, attempt, rank)
        page.go_back()
        wait_painted(page, "timeline")
        page.go_back()
        wait_painted(page, "heatmap")
        _at_the_cells_moment(seen, store, attempt, rank, step)
        seen.check_clean()


def _hottest(page: Page) -> tuple[int, int, float]:
    """Rank, step and value (ms) of the drawn cell that is furthest above its peers."""
    known = {place: cell for place, cell in drawn_cells(page).items() if cell["ratio"] is not None}
    (rank, step), cell = max(known.items(), key=lambda item: item[1]["ratio"] or 0.0)
    assert cell["value"] is not None
    return rank, step, cell["value"]


def _at_the_cells_moment(seen: Visit, store: Store, attempt: Attempt, rank: int, step: int) -> None:
    """Shift and a click lead to the ranks as they were in that step, in the middle of the run."""
    page = seen.page
    page.keyboard.down("Shift")
    page.mouse.click(*cell_centre(page, rank, step))
    page.keyboard.up("Shift")
    page.wait_for_url(f"**/3d?*rank={rank}&moment=*")
    moment = int(parse_qs(urlsplit(page.url).query)["moment"][0])
    began = store.query(
        "SELECT min(start_ns) AS first, max(start_ns + duration_ns) AS last FROM events WHERE step = ?", [step], attempt
    ).to_pylist()[0]
    assert began["first"] <= moment <= began["last"] + 10**9
    _check_scene(page, store, attempt, rank, moment)


def _check_scene(page: Page, store: Store, attempt: Attempt, rank: int, moment: int | None = None) -> None:
    wait_judged(page)
    page.wait_for_function("() => window.megascope.widget('scene')?.model?.verdict")
    wait_painted(page, "scene")
    judged = diagnose_with_graph(store, attempt, now_ns=moment)
    if judged.snapshot is None:  # the job has ended: nobody was looked at to judge that
        judged = Judged(judged.verdict, take_snapshot(store, attempt), None)
    assert check_scene(page, judged) == attempt.world_size
    assert page.inner_text(".side h2").startswith(f"Rank {rank}:")
    assert judged.verdict.sentence() in page.inner_text(".banner .sentence")
