"""The heatmap's canvas when a load fails, when peers are missing, and under keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from megascope.collectors.importers.importing import import_run
from megascope.dashboards.server import background_server
from support.page_checks import Visit, visit, wait_painted
from support.page_visits import cell_centre, open_heatmap
from support.span_store import meeting, write_spans

pytestmark = pytest.mark.timeout(120)

_LOOK = """() => {
    const style = getComputedStyle(document.querySelector("[data-widget] canvas"));
    return { visibility: style.visibility, opacity: Number(style.opacity) };
}"""


def _ask(page: Page, old: str, new: str) -> None:
    page.evaluate(
        "([old, other]) => { const e = document.querySelector('[data-widget]'); "
        "e.dataset.source = e.dataset.source.replace(old, other); }",
        [old, new],
    )


def test_an_error_never_stands_on_a_readable_picture_and_a_failed_load_is_tried_again(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.click("#pause")
    failed: list[str] = []

    def refuse(route: Route) -> None:
        failed.append(route.request.url)
        route.fulfill(status=500, body='{"error": "The disk is full."}')

    page.route("**/data/heatmap*", refuse)
    _ask(page, "&v=", "&v=newer")
    page.wait_for_selector("[data-failed='newer']")
    assert page.inner_text(".widget-message") == "The disk is full."
    assert page.evaluate(_LOOK)["opacity"] < 0.3
    _ask(page, "segment=forward", "segment=backward")
    page.wait_for_selector("[data-failed='other']")
    assert page.evaluate(_LOOK)["visibility"] == "hidden", "that is another segment's picture"
    page.unroute("**/data/heatmap*")
    page.wait_for_function("() => window.megascope.widget('heatmap').meta.segment === 'backward'")
    assert page.evaluate(_LOOK) == {"visibility": "visible", "opacity": 1}
    assert not page.locator("[data-failed]").count()
    assert len(failed) >= 2


def test_what_has_no_peers_is_not_called_missing(browser: Browser, tmp_path: Path) -> None:
    spans = [span for span in meeting(4, 4, lambda rank, step: 20.0) if (span.rank, span.step) not in {(0, 1), (1, 2)}]
    write_spans(tmp_path / "store", spans, layout={"pp": 2, "dp": 2}).close()
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = open_heatmap(seen, "?segment=forward&show=ratio")
        drawn = page.evaluate(
            """() => {
                const widget = window.megascope.widget("heatmap"), { winner } = widget.binned;
                return { missing: [...winner].filter((cell) => cell < 0).length,
                         alone: [...winner].filter((cell) => cell >= 0 && widget.isAlone(cell)).length };
            }"""
        )
        assert drawn == {"missing": 2, "alone": 2}
        page.mouse.move(*cell_centre(page, 1, 1))
        page.wait_for_function("() => document.querySelector('.tooltip').innerText.includes('no peers')")
        seen.check_clean()


def test_keys_work_without_a_click_and_leave_browser_shortcuts_alone(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    window = "() => JSON.stringify(window.megascope.widget('heatmap').window)"
    whole = page.evaluate(window)
    page.keyboard.press("Alt+w")
    assert page.evaluate(window) == whole
    page.focus("#field-ranks")
    page.keyboard.type("w")
    assert page.evaluate(window) == whole
    page.fill("#field-ranks", "")
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("w")
    assert page.evaluate(window) != whole
    page.keyboard.press("0")
    assert page.evaluate(window) == whole


def test_a_tooltip_does_not_follow_to_the_next_page(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.mouse.move(*cell_centre(page, 5, 12))
    page.wait_for_selector(".tooltip:not([hidden])")
    page.focus("#nav-sql")
    page.keyboard.press("Enter")
    page.wait_for_selector("#sql-run")
    assert not page.locator(".tooltip:not([hidden])").count()
    slow_visit.check_clean()


def test_an_uneven_stage_is_framed_in_both_pictures(slow_visit: Visit) -> None:
    frames = """() => {
        const widget = window.megascope.widget("heatmap");
        widget.mark([{ ranks: [], steps: [10, 19], stage: "pp1" }]);
        return widget.look.frames().map(({ row, rows = 1, from, to }) => [row, rows, from, to]);
    }"""
    page = open_heatmap(slow_visit, "?segment=forward&show=value&group=pp")
    assert page.evaluate(frames) == [[4, 4, 10, 20]]
    page = open_heatmap(slow_visit, "?segment=forward&show=value&shape=hosts")
    assert page.evaluate(frames) == [[0, 1, 4, 8]]
    slow_visit.check_clean()


def test_long_names_of_an_import_stay_inside_the_page(browser: Browser, tmp_path: Path, traces: Path) -> None:
    import_run([traces / "kineto/dlrm_kineto.tar.gz"], tmp_path / "store")
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = open_heatmap(seen)
        page.wait_for_selector("#by-segment")
        wait_painted(page, "heatmap")
        side = page.locator(".side").bounding_box()
        assert side is not None
        for name in ("#worst-ranks", "#by-segment", "#worst-cells"):
            box = page.locator(name).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= side["x"] + side["width"] + 1 <= 1280, name
        long = page.locator("#by-segment a").all()
        assert [link.get_attribute("title") for link in long] == [link.inner_text() for link in long]
        seen.check_clean()
