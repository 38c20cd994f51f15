"""The Heatmap in a real browser: its colours, its cells, and where they lead."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from megascope.collectors.reading.store import Store
from megascope.dashboards.server import background_server
from support.page_checks import (
    Visit,
    check_heatmap,
    check_timeline,
    drawn_cells,
    drawn_pixels,
    drawn_spans,
    visit,
    wait_painted,
)
from support.page_visits import cell_centre, open_heatmap
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)


def test_heatmap_opens_on_the_accused_segment_and_marks_the_culprit(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit)
    assert page.evaluate("() => window.megascope.widget('heatmap').meta.segment") == "forward"
    marks = page.evaluate("() => window.megascope.widget('heatmap').marks")
    assert marks == [{"ranks": [5], "steps": [8, 29]}]
    first_row = page.locator("#worst-ranks tbody tr").first.inner_text().split()
    assert first_row[0] == "5"
    boxes = [
        page.locator(selector).bounding_box() for selector in ("#worst-ranks", "#worst-cells", "#by-segment", ".banner")
    ]
    assert all(box is not None and box["y"] + box["height"] <= 720 for box in boxes), "not above the fold"
    slow_visit.check_clean()


def test_heatmap_colours_tell_slow_normal_and_missing_apart(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit)
    pixels, cells = drawn_pixels(page), drawn_cells(page)
    slow = [pixels[5, step] for step in range(8, 30)]
    normal = [colour for place, colour in pixels.items() if place[0] != 5 and cells[place]["value"] is not None]
    assert min(red - blue for red, _, blue in slow) > 90
    assert max(red - blue for red, _, blue in normal) < 90
    missing = {tuple(pixels[3, 4]), tuple(pixels[2, 10])}
    hatch = page.evaluate("() => ['missing', 'missing-line'].map(name => window.megascope.colour(name))")
    # The hatch is antialiased: between its two greys, and grey.
    low, high = sorted(int(colour[1:3], 16) for colour in hatch)
    assert all(red == green == blue and low <= red <= high for red, green, blue in missing)


def test_no_hot_cell_is_lost_when_rows_exceed_pixels(browser: Browser, tmp_path: Path) -> None:
    mesh = {"pp": 8, "dp": 16, "tp": 8}
    job = SyntheticJob(layout=mesh, steps=12, microbatches=1, slow=Slow(777, 1.5, 11), noise=0.01)
    write_synthetic_store(tmp_path / "store", job)
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = open_heatmap(seen, "?segment=forward")
        found = page.evaluate(
            """() => {
                const { binned, shown, columns, rows, meta, window: w } = window.megascope.widget("heatmap");
                const drawn = [];
                for (let px = 0; px < binned.nx; px++) {
                    const winners = Array.from({ length: binned.ny }, (_, py) => binned.winner[py * binned.nx + px]);
                    const best = winners.reduce((one, other) => shown[other] > shown[one] ? other : one);
                    drawn.push([meta.ranks[Math.floor(best / columns)], shown[best]]);
                }
                return { drawn, nx: binned.nx, ny: binned.ny, rows, columns };
            }"""
        )
        assert found["rows"] == 1024 > found["ny"]
        stored = drawn_cells(page)
        for column, (rank, ratio) in enumerate(found["drawn"]):
            hottest = max(cell["ratio"] or 0 for (_, step), cell in stored.items() if step == column)
            assert ratio == pytest.approx(hottest), f"step {column}: rank {rank}"
        assert found["drawn"][11][0] == 777
        labels = page.evaluate(
            """() => {
                const widget = window.megascope.widget("heatmap");
                widget.mark([{ ranks: [779, 777, 780], steps: [0, 11] }, { ranks: [10], steps: [3, 4] }]);
                return widget.labels.map(({ rank, more }) => [rank, more]);
            }"""
        )
        assert labels == [[10, 0], [777, 2]], "labels never lie on each other"
        seen.check_clean()


def test_a_click_on_a_cell_opens_that_rank_its_peers_and_the_step(slow_visit: Visit, slow_store: Path) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.mouse.click(*cell_centre(page, 5, 12))
    page.wait_for_url("**/timeline?*")
    wait_painted(page, "timeline")
    for part in ("rank=5", "steps=12", "axis=dp", "run=synthetic"):
        assert part in page.url
    shown = {(span["rank"], span["step"]) for span in drawn_spans(page)}
    assert shown == {(5, 12), (7, 12)}
    store = Store(slow_store)
    check_timeline(page, store, store.attempt())
    store.close()
    page.go_back()
    page.wait_for_url("**/heatmap?segment=forward*")
    wait_painted(page, "heatmap")
    slow_visit.check_clean()


def test_hover_on_a_cell_shows_the_evidence(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.mouse.move(*cell_centre(page, 5, 12))
    tip = page.locator(".tooltip")
    tip.wait_for()
    text = tip.inner_text()
    for part in ("rank 5, step 12", "peers' median", "ratio", "z", "node0000", "pp1 dp0 tp1"):
        assert part in text
    page.mouse.move(*cell_centre(page, 3, 4))
    page.wait_for_function("() => document.querySelector('.tooltip').innerText.includes('not the same as zero')")
    slow_visit.check_clean()


def test_zoom_stands_in_the_address_and_a_copied_address_shows_the_same(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.mouse.move(*cell_centre(page, 5, 12))
    page.mouse.wheel(0, -300)
    page.wait_for_function("() => location.search.includes('zoom=')")
    before = page.evaluate("() => window.megascope.widget('heatmap').window")
    assert before["r1"] - before["r0"] < 8
    copied = page.url
    page.goto("about:blank")
    page.goto(copied)
    wait_painted(page, "heatmap")
    assert page.evaluate("() => window.megascope.widget('heatmap').window") == before
    slow_visit.check_clean()


def test_controls_change_the_view_and_back_restores_it(slow_visit: Visit, slow_store: Path) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.select_option("#select-segment", "backward")
    page.wait_for_function("() => window.megascope.widget('heatmap')?.meta?.segment === 'backward'")
    assert "segment=backward" in page.url
    store = Store(slow_store)
    check_heatmap(page, store, store.attempt())
    store.close()
    page.go_back()
    page.wait_for_function("() => window.megascope.widget('heatmap')?.meta?.segment === 'forward'")
    assert page.input_value("#select-segment") == "forward"
    page.fill("#field-steps", "5:9")
    page.press("#field-steps", "Enter")
    page.wait_for_function("() => window.megascope.widget('heatmap').meta.steps.length === 5")
    slow_visit.check_clean()


def test_the_data_of_an_address_are_asked_for_once_while_the_page_starts(slow_visit: Visit, slow_store: Path) -> None:
    asked: list[str] = []
    slow_visit.page.on("request", lambda request: asked.append(request.url) if "/data/heatmap" in request.url else None)
    page = open_heatmap(slow_visit, "?segment=backward&run=synthetic&attempt=0&order=worst&zoom=1:3:4:9")
    assert len(asked) == 1
    assert "/data/heatmap/early?" in asked[0]
    assert "zoom" not in asked[0]
    store = Store(slow_store)
    check_heatmap(page, store, store.attempt())
    store.close()
    page.select_option("#select-segment", "forward")
    page.wait_for_function("() => window.megascope.widget('heatmap')?.meta?.segment === 'forward'")
    assert [one.partition("?")[0].rpartition("/")[2] for one in asked] == ["early", "heatmap"]
    slow_visit.check_clean()


def test_an_early_answer_to_another_question_is_not_drawn(slow_visit: Visit) -> None:
    slow_visit.page.route(
        "**/data/heatmap/early*", lambda route: route.continue_(url=route.request.url.replace("backward", "forward"))
    )
    page = open_heatmap(slow_visit, "?segment=backward")
    assert page.evaluate("() => window.megascope.widget('heatmap').meta.segment") == "backward"
    slow_visit.check_clean()


def test_what_cannot_be_shown_is_said_by_the_page_alone(slow_visit: Visit) -> None:
    page = slow_visit.go("/heatmap?segment=nothing")
    page.wait_for_selector("text=no segment 'nothing'")
    slow_visit.check_clean()
