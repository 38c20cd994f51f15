"""The Timeline as it is moved back and forth, as the data grow under it, and under Perfetto: in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request

from megascope.collectors.reading.store import Store
from megascope.dashboards.server import RunningServer, background_server
from support.page_checks import Visit, check_timeline, drawn_spans, visit
from support.page_visits import WINDOW, asked_steps, open_timeline, the, wait_for
from support.synthetic_store import SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)


def look_at(page: Page, step: int) -> None:
    """Show one step, as a hand that pans there does, and wait for its spans."""
    page.evaluate(
        """(step) => {
            const w = window.megascope.widget("timeline");
            const column = w.outlined.columns.find((each) => each.first === step);
            w.setWindow(column.start, column.end);
        }""",
        step,
    )
    wait_for(page, "!w.coarse && !w.loader.loading && w.model.range[0] <= arg && arg <= w.model.range[1]", step)


def test_the_way_back_draws_the_same_spans_at_the_same_times(slow_visit: Visit, slow_store: Path) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=3")
    # Without a look at the whole run: rested there for a moment, all of it is loaded, and no way back is left to ask.
    page.evaluate("() => window.megascope.widget('timeline').loader.wake()")
    wait_for(page, "w.outlined")
    columns = "w.outlined.columns.map((each) => each.start)"
    begins = the(page, columns)
    with Store(slow_store) as store:
        for step in (10, 20):
            look_at(page, step)
            check_timeline(page, store, store.attempt())
        asked = asked_steps(page)
        assert len(asked) >= 3, "each place was asked for"
        for step in (10, 20, 10):
            look_at(page, step)
            check_timeline(page, store, store.attempt())
    assert asked_steps(page) == asked, "the way back asks for nothing"
    for step in (14, 24, 17, 27):
        look_at(page, step)
    assert the(page, "w.loader.asked.size") <= 4
    page.evaluate("() => window.megascope.widget('timeline').loader.wake()")
    wait_for(page, "!w.loader.waking")
    assert the(page, columns) == begins
    slow_visit.check_clean()


def test_a_rank_without_spans_keeps_its_lane_and_is_named(slow_visit: Visit, slow_store: Path) -> None:
    page = open_timeline(slow_visit, "?rank=3&axis=dp&steps=4")
    assert the(page, "w.model.lanes.filter((lane) => lane.empty).map((lane) => [lane.rank, lane.label])") == [
        [3, "no data"]
    ]
    assert {span["rank"] for span in drawn_spans(page)} == {1}
    with Store(slow_store) as store:
        check_timeline(page, store, store.attempt())
    wait_for(page, "w.model.links")
    assert "No raw spans of rank 3 in step 4." in page.inner_text("#timeline-note")
    colours = the(
        page,
        """(() => {
            const scale = window.devicePixelRatio, lane = w.model.lanes.find((each) => each.empty);
            const place = [w.x(w.origin) + 300, w.middle ? 34 + lane.top - w.scroll + 2 : 0, 20, w.row - 4];
            const { data } = w.context.getImageData(...place.map((value) => Math.round(value * scale)));
            return new Set(new Uint32Array(data.buffer)).size;
        })()""",
    )
    assert colours > 1, "hatched"
    slow_visit.check_clean()


def test_a_live_run_moves_nothing_under_who_looks_closer(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_synthetic_store(root, SyntheticJob(steps=4, stuck=5))
    with background_server(root) as server, visit(browser, server.url) as seen:
        page = open_timeline(seen, "?rank=5&axis=all")
        assert the(page, "w.model.range") == [3, 3]
        assert the(page, "w.scroll") > 0, "it opens at the chosen rank"
        page.evaluate("() => window.megascope.widget('timeline').scrollTo(0)")
        page.wait_for_function("() => location.search.includes('scroll=0')")
        write_synthetic_store(root, SyntheticJob(steps=6, first_step=4, stuck=5))
        wait_for(page, "w.model.range[0] === 5")
        assert the(page, "w.scroll") == 0
        page.keyboard.press("/")
        page.keyboard.type("forward rank:5")
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.search.includes('steps=5') && location.search.includes('t=')")
        page.wait_for_function(
            "() => document.getElementById('field-steps').value === '5' && document.activeElement.id === 'field-find'"
        )
        assert page.inner_text("#find-count").startswith("1 of ")
        page.keyboard.press("Enter")
        assert page.inner_text("#find-count").startswith("2 of ")
        window, source, version = page.evaluate(WINDOW), the(page, "w.element.dataset.source"), the(page, "w.version")
        span, asked = the(page, "w.selected"), asked_steps(page)
        write_synthetic_store(root, SyntheticJob(steps=8, first_step=6, stuck=5))
        wait_for(page, "w.version !== arg && w.element.dataset.painted === w.element.dataset.source", version)
        assert the(page, "[w.model.range, w.selected, w.matches[w.match]]") == [[5, 5], span, span]
        assert page.inner_text("#find-count").startswith("2 of ")
        assert page.evaluate(WINDOW) == pytest.approx(window, abs=2)
        assert (the(page, "w.element.dataset.source"), asked_steps(page)) == (source, asked), "a finished step stays"
        seen.check_clean()


def test_newer_data_keep_the_match_though_other_spans_come_before_it(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=12&find=forward")
    page.keyboard.press("n")
    page.keyboard.press("n")
    found = "(({ rank, segment, at }) => [rank, segment, String(at)])(w.model.identity(w.matches[w.match]))"
    before = the(page, found)
    page.keyboard.press("o")
    wait_for(page, "w.outlined")
    look_at(page, 12)
    page.keyboard.press("s")
    wait_for(page, "w.model.range[0] < 12 && w.match > 1")
    assert the(page, found) == before
    slow_visit.check_clean()


def test_perfetto_opens_once_with_the_trace_and_leaves_nothing(browser: Browser, slow_server: RunningServer) -> None:
    with visit(browser, slow_server.url) as seen:
        outside: list[str] = []

        def on_finished(request: Request) -> None:
            if not request.url.startswith((seen.base, "data:", "blob:")):
                outside.append(request.url)

        seen.page.on("requestfinished", on_finished)
        page = open_timeline(seen, "?rank=5&axis=dp&steps=3")
        window, address = page.evaluate(WINDOW), page.url
        page.dblclick("#open-perfetto")
        page.wait_for_selector("#perfetto[data-sent]")
        assert page.locator("#perfetto").count() == 1
        assert int(page.get_attribute("#perfetto", "data-bytes") or 0) > 1000
        page.frame_locator("#perfetto iframe").locator("text=/rank 5 pp1/").first.wait_for()
        assert page.evaluate("() => document.activeElement.title") == "Perfetto"
        page.evaluate("() => document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'w', bubbles: true }))")
        assert page.evaluate(WINDOW) == window, "keys of the page beneath are off"
        page.go_back()
        page.wait_for_selector("#perfetto", state="detached")
        page.wait_for_function("async () => !(await caches.keys()).includes('cached_traces')")
        assert page.url == address
        assert not page.locator("body.busy").count()
        for leave in ("Escape", "text=Back to the timeline"):
            page.click("#open-perfetto")
            page.wait_for_selector("#perfetto[data-sent]")
            page.keyboard.press(leave) if leave == "Escape" else page.click(leave)
            page.wait_for_selector("#perfetto", state="detached")
        assert page.url == address
        assert outside == []
