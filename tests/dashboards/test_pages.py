"""Every page in a real browser: what is drawn is what is stored, and what a person does leads where it should."""

from __future__ import annotations

from pathlib import Path

import pytest
from megascope.collectors.store import Store
from megascope.dashboards.server import background_server
from playwright.sync_api import Browser, Page
from support.demo_store import small_store
from support.page_checks import (
    Visit,
    check_all_pages,
    check_heatmap,
    check_timeline,
    drawn_cells,
    drawn_pixels,
    drawn_spans,
    visit,
    wait_judged,
    wait_painted,
)
from support.synthetic_store import START_NS, Slow, SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)


def cell_centre(page: Page, rank: int, step: int) -> tuple[float, float]:
    """Where a cell is on the screen."""
    x, y = page.evaluate(
        """([rank, step]) => {
            const widget = window.megascope.widget("heatmap"), { meta, plot, window: shown } = widget;
            const box = widget.canvas.getBoundingClientRect();
            const row = meta.ranks.indexOf(rank) - shown.r0, column = meta.steps.indexOf(step) - shown.c0;
            return [box.left + plot.x + ((column + 0.5) * plot.width) / (shown.c1 - shown.c0),
                    box.top + plot.y + ((row + 0.5) * plot.height) / (shown.r1 - shown.r0)];
        }""",
        [rank, step],
    )
    return x, y


def open_heatmap(seen: Visit, query: str = "") -> Page:
    page = seen.go(f"/heatmap{query}")
    wait_painted(page, "heatmap")
    wait_judged(page)
    wait_painted(page, "heatmap")
    return page


def open_timeline(seen: Visit, query: str = "") -> Page:
    page = seen.go(f"/timeline{query}")
    wait_painted(page, "timeline")
    return page


def test_all_pages_show_what_is_stored(browser: Browser, slow_store: Path) -> None:
    compared = check_all_pages(browser, slow_store)
    # A rank of a stage: 4 micro-batches of 4 spans and 2 messages, data, optimizer and 2 collectives over dp.
    assert compared == {"cells": 8 * 30 - 2, "spans": 2 * (4 * (4 + 2) + 4)}


def test_all_pages_open_on_a_stuck_job(browser: Browser, stuck_store: Path) -> None:
    check_all_pages(browser, stuck_store)


def test_all_pages_open_on_what_the_real_recorder_and_agent_wrote(browser: Browser, tmp_path: Path) -> None:
    compared = check_all_pages(browser, small_store(tmp_path / "store", ranks=3, steps=4))
    assert compared["cells"] == 3 * 4
    assert compared["spans"] == 3 * 2


def test_overview_says_who_is_slow(slow_visit: Visit) -> None:
    page = slow_visit.go("/")
    wait_painted(page, "curves")
    wait_judged(page)
    banner = page.locator(".banner").first
    assert "SLOW" in banner.inner_text()
    assert "Rank 5" in banner.inner_text()
    assert page.inner_text("#fact-step") == "29"
    assert page.inner_text("#fact-mfu") == "41.0%"
    assert "x1.5" in page.inner_text("#faults")
    titles = page.evaluate("() => window.megascope.widget('curves').data.panels.map(panel => panel.title)")
    assert titles == ["Loss", "Throughput", "Step time", "Gradient norm", "MFU"]
    slow_visit.check_clean()


def test_heatmap_opens_on_the_accused_segment_and_marks_the_culprit(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit)
    assert page.evaluate("() => window.megascope.widget('heatmap').meta.segment") == "forward"
    marks = page.evaluate("() => window.megascope.widget('heatmap').marks")
    assert marks == [{"ranks": [5], "steps": [8, 29]}]
    first_row = page.locator("#worst-ranks tbody tr").first.inner_text().split()
    assert first_row[0] == "5"
    boxes = [page.locator(selector).bounding_box() for selector in ("#worst-ranks", "#worst-cells", ".banner")]
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


def test_another_run_is_chosen(slow_visit: Visit) -> None:
    page = slow_visit.go("/")
    wait_painted(page, "curves")
    page.select_option("#select-run", "older run/ü")
    page.wait_for_function("() => document.querySelector('#fact-step')?.innerText === '4'")
    wait_painted(page, "curves")
    page.click("#nav-timeline")
    wait_painted(page, "timeline")
    assert "run=older" in page.url
    slow_visit.check_clean()


@pytest.mark.parametrize("axis", ["pp", "dp", "tp", "rank"])
def test_timeline_shows_the_group_of_a_rank(slow_visit: Visit, slow_store: Path, axis: str) -> None:
    page = open_timeline(slow_visit, f"?rank=5&axis={axis}&steps=3")
    store = Store(slow_store)
    attempt = store.attempt()
    check_timeline(page, store, attempt)
    group = {"pp": {1, 5}, "dp": {5, 7}, "tp": {4, 5}, "rank": {5}}[axis]
    assert {span["rank"] for span in drawn_spans(page)} == group
    arrows = page.evaluate("() => window.megascope.widget('timeline').model.arrays.arrow_from.length")
    assert arrows == (8 if axis == "pp" else 0)
    store.close()
    slow_visit.check_clean()


def test_arrows_lead_from_send_to_receive(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=pp&steps=3")
    pairs = page.evaluate(
        """() => {
            const { model } = window.megascope.widget("timeline"), rows = model.rows();
            const { arrow_from, arrow_to } = model.arrays;
            return Array.from(arrow_from, (from, at) => [rows[from], rows[arrow_to[at]]]);
        }"""
    )
    for send, receive in pairs:
        assert send["segment"].replace("send", "recv") == receive["segment"]
        assert (send["peer"], send["sequence"]) == (receive["rank"], receive["sequence"])
        assert (receive["peer"], receive["microbatch"]) == (send["rank"], send["microbatch"])
        assert send["start"] < receive["start"] + receive["duration"]


def test_timeline_zooms_by_wheel_keys_and_search(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=3")
    window = "() => { const w = window.megascope.widget('timeline'); return [w.from, w.to]; }"
    whole = page.evaluate(window)
    box = page.locator("[data-widget=timeline] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 200)
    page.mouse.wheel(0, -200)
    zoomed = page.evaluate(window)
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    assert "t=" in page.url
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 200, steps=4)
    page.mouse.up()
    assert page.evaluate(window)[0] < zoomed[0]
    page.keyboard.press("0")
    assert page.evaluate(window) == whole
    for key, wider in (("w", False), ("s", True)):
        before = page.evaluate(window)
        page.keyboard.press(key)
        after = page.evaluate(window)
        assert (after[1] - after[0] > before[1] - before[0]) == wider
    page.keyboard.press("/")
    page.keyboard.type("dp_all")
    assert page.inner_text("#find-count") == "2 found"
    page.keyboard.press("Enter")
    span = page.evaluate("() => window.megascope.widget('timeline').selected")
    title = page.evaluate("(span) => window.megascope.widget('timeline').model.title(span)", span)
    assert title == "dp_all_gather"
    assert "find=dp_all" in page.url
    slow_visit.check_clean()


def test_hover_on_a_span_shows_its_numbers(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=rank&steps=3")
    place = page.evaluate(
        """() => {
            const widget = window.megascope.widget("timeline"), { model } = widget;
            const span = model.rows().findIndex((row) => row.segment === "backward");
            const box = widget.canvas.getBoundingClientRect(), { start, duration } = model.arrays;
            return [box.left + widget.x(start[span] + duration[span] / 2), box.top + widget.middle(span)];
        }"""
    )
    page.mouse.move(*place)
    page.locator(".tooltip").wait_for()
    text = page.inner_text(".tooltip")
    for part in ("backward, rank 5", "duration", "self time", "UTC", "micro-batch", "node0000"):
        assert part in text


def test_the_3d_page_names_the_root_and_a_click_tells_about_a_rank(stuck_visit: Visit) -> None:
    page = stuck_visit.go("/3d")
    wait_judged(page)
    wait_painted(page, "scene")
    assert "Rank 5" in page.locator(".banner").first.inner_text()
    page.wait_for_function("() => window.megascope.widget('scene').nodes.some(node => node.state === 'culprit')")
    states = page.evaluate(
        "() => Object.fromEntries(window.megascope.widget('scene').nodes.map(n => [n.rank, n.state]))"
    )
    assert states == {str(rank): "culprit" if rank == 5 else "waiting" for rank in range(8)}
    place = page.evaluate(
        """() => {
            const widget = window.megascope.widget("scene"), box = widget.canvas.getBoundingClientRect();
            const [x, y] = widget.places[widget.index.get(4)];
            return [box.left + x, box.top + y];
        }"""
    )
    page.mouse.click(*place)
    page.wait_for_url("**rank=4**")
    page.wait_for_selector("#chosen-flight")
    assert "tp_all_gather" in page.inner_text("#chosen-flight")
    assert "It waits for rank 5." in page.inner_text(".side")
    page.click("text=rank 4 in the timeline")
    page.wait_for_url("**/timeline?*rank=4*")
    wait_painted(page, "timeline")
    open_spans = [span["segment"] for span in drawn_spans(page) if span["status"] == "in flight" and span["rank"] == 4]
    assert open_spans == ["forward", "tp_all_gather"]
    stuck_visit.check_clean()


def test_other_pages_say_that_the_job_hangs(stuck_visit: Visit) -> None:
    page = open_timeline(stuck_visit)
    wait_judged(page)
    assert "HANG" in page.locator(".banner").first.inner_text()


def test_sql_page_runs_a_query_and_refuses_what_it_must(slow_visit: Visit) -> None:
    page = slow_visit.go("/sql")
    page.fill("#field-q", "SELECT rank, count(*) AS spans, NULL AS nothing FROM spans GROUP BY rank ORDER BY rank")
    page.click("#sql-run")
    page.wait_for_selector("#sql-result")
    rows = [line.split() for line in page.inner_text("#sql-result tbody").splitlines() if line.strip()]
    assert len(rows) == 8
    assert rows[0][0] == "0"
    assert rows[0][2] == "NULL"
    with page.expect_download() as download:
        page.click("text=download as CSV")
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "rank,spans,nothing"
    assert len(lines) == 9
    page.fill("#field-q", "SELECT * FROM read_csv('/etc/passwd')")
    page.click("#sql-run")
    page.wait_for_selector(".banner.bad")
    assert "outside of the store" in page.inner_text(".banner.bad")
    assert "root:" not in page.inner_text("body")
    page.fill("#field-q", "SELECT nonsense FROM spans")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("() => document.querySelector('.banner.bad')?.innerText.includes('nonsense')")
    slow_visit.check_clean()


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("/heatmap?steps=abc", "steps='abc'"),
        ("/heatmap?segment=nothing", "no segment 'nothing'"),
        ("/timeline?rank=99", "no data of rank 99"),
        ("/timeline?steps=900", "no data of step 900"),
        ("/timeline?axis=zz", "no axis 'zz'"),
        ("/?run=other", "no run 'other'"),
        ("/?attempt=7", "no attempt 7"),
        ("/3d?rank=12345", "no rank 12345"),
        ("/heatmap?colour=red", "parameter 'colour'"),
        ("/nowhere", "no page /nowhere"),
    ],
)
def test_a_bad_address_gives_one_sentence_and_a_way_back(slow_visit: Visit, address: str, part: str) -> None:
    page = slow_visit.go(address)
    page.wait_for_selector(".banner.bad")
    text = page.inner_text("main")
    assert part in text
    assert "Traceback" not in text
    page.click("text=Open this page without parameters")
    page.wait_for_function("() => !document.querySelector('.banner.bad .more')?.innerText.includes('without')")
    slow_visit.check_clean()


def test_dark_and_light_can_be_switched(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit)
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("text=Light / dark")
    assert page.evaluate(background) != light
    page.reload()
    wait_painted(page, "heatmap")
    assert page.evaluate(background) != light, "the choice is kept"


def test_a_growing_store_is_followed_until_paused(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_synthetic_store(root, SyntheticJob(steps=3, stuck=5))
    with background_server(root) as server, visit(browser, server.url) as seen:
        page = seen.go("/")
        step = "(step) => document.querySelector('#fact-step')?.innerText === step"
        page.wait_for_function(step, arg="2")
        age = "document.getElementById('age').innerText"
        page.wait_for_function(f"() => /^data .* old [(]newest .* UTC[)]$/.test({age})")
        write_synthetic_store(root, SyntheticJob(steps=5, stuck=5, attempt=1, first_ns=START_NS + 10**12))
        page.wait_for_function(step, arg="4")
        page.click("#pause")
        page.wait_for_function(f"() => {age}.endsWith('paused')")
        write_synthetic_store(root, SyntheticJob(steps=7, stuck=5, attempt=2, first_ns=START_NS + 10**13))
        page.wait_for_timeout(3000)
        assert page.inner_text("#fact-step") == "4"
        page.click("#pause")
        page.wait_for_function(step, arg="6")
        seen.check_clean()


def test_a_server_that_ends_is_said_so(browser: Browser, slow_store: Path) -> None:
    with background_server(slow_store) as server, visit(browser, server.url) as seen:
        page = open_heatmap(seen)
        url = page.evaluate("() => document.querySelector('[data-widget]').dataset.source")
        server.close()
        page.evaluate("(url) => { document.querySelector('[data-widget]').dataset.source = url + '&v=2'; }", url)
        page.wait_for_function("() => document.querySelector('.widget-message').innerText.includes('does not answer')")
