"""The Timeline in a real browser: its groups, arrows, zoom, search and scroll."""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from support.page_checks import Visit, check_timeline, drawn_spans, wait_painted
from support.page_visits import open_timeline

pytestmark = pytest.mark.timeout(120)


def test_the_scroll_of_the_timeline_stands_in_the_address(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?ranks=0-7&steps=3")
    scroll = "() => window.megascope.widget('timeline').scroll"
    box = page.locator("[data-widget=timeline] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 200)
    page.keyboard.down("Shift")
    for _ in range(3):
        page.mouse.wheel(0, 40)
    page.keyboard.up("Shift")
    page.wait_for_function("() => location.search.includes('scroll=120')")
    copied = page.url
    page.goto("about:blank")
    page.goto(copied)
    wait_painted(page, "timeline")
    assert page.evaluate(scroll) == 120
    page.keyboard.press("0")
    page.wait_for_function("() => !location.search.includes('scroll=')")
    slow_visit.check_clean()


def test_moving_for_a_long_time_does_not_flood_the_history(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=3")
    page.evaluate("() => { for (let n = 0; n < 400; n++) window.megascope.widget('timeline').zoom(0.99); }")
    page.wait_for_function("() => location.search.includes('t=')")
    shown = page.evaluate("() => window.megascope.widget('timeline').from / 1e9")
    assert float(page.evaluate("() => window.megascope.parameter('t')").split(":")[0]) == pytest.approx(shown)
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
    page.wait_for_function("() => location.search.includes('t=')")
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
    page.wait_for_function("() => location.search.includes('find=dp_all')")
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
