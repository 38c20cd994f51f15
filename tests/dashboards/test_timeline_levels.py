"""The Timeline from a whole run to a step, two steps side by side, its marks, and Perfetto: in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from megascope.collectors.reading.store import Store
from megascope.dashboards.server import RunningServer, background_server
from megascope.dashboards.view import moment_text
from support.page_checks import Visit, check_timeline, drawn_spans, visit, wait_painted
from support.page_visits import WINDOW, asked_steps, open_timeline, the, wait_for
from support.rollup_store import with_rollups

pytestmark = pytest.mark.timeout(120)


DRAWN_ZERO = """(() => {
    const context = w.canvas.getContext("2d"), drawn = [], fillText = context.fillText;
    context.fillText = (text, x) => drawn.push([text, x]);
    w.draw();
    context.fillText = fillText;
    return [drawn.find(([text]) => text === "0")[1], w.x(w.outlined.first)];
})()"""
"""Where the axis of time says 0, and where the run starts."""


@pytest.fixture(scope="module")
def rolled_server(slow_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The slow job with rollups, and with the raw spans of none of its ranks."""
    root = tmp_path_factory.mktemp("rolled") / "store"
    with Store(slow_store) as source:
        with_rollups(source, root, span_ranks=()).close()
    with background_server(root) as server:
        yield server


def test_moving_on_loads_the_steps_that_come_into_view_and_no_others(slow_visit: Visit, slow_store: Path) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=3")
    assert asked_steps(page) == ["3:3"]
    for _ in range(6):
        page.keyboard.press("d")
    wait_for(page, "w.model.range[0] <= 4 && w.model.range[1] >= 4 && w.model.count")
    with Store(slow_store) as store:
        check_timeline(page, store, store.attempt())
    assert the(page, "w.model.range")[1] < 12
    assert len(asked_steps(page)) == len(set(asked_steps(page)))
    starts = the(page, "w.model.steps.filter(([rank, step]) => rank === 5 && step === 3).map((row) => row[2])")
    assert starts == [the(page, "w.origin")], "times still count from the first step"
    page.keyboard.press("Home")
    wait_for(page, "w.from <= w.home[0] && w.to >= w.home[1]")
    slow_visit.check_clean()


def test_the_whole_run_is_one_key_away_and_a_step_a_double_click(browser: Browser, slow_server: RunningServer) -> None:
    with visit(browser, slow_server.url, width=500) as seen:  # so narrow that steps cannot be told apart
        page = open_timeline(seen, "?rank=5&axis=dp&steps=3")
        page.keyboard.press("o")
        wait_for(page, "w.coarse")
        assert the(page, "[w.outlined.columns.length, w.outlined.rows.length, w.drawn]") == [30, 2, 60]
        x, y = the(
            page,
            """(() => {
                const box = w.canvas.getBoundingClientRect(), { start, end } = w.outlined.arrays;
                const at = w.outlined.rows[1][12];
                return [box.left + w.x((start[at] + end[at]) / 2), box.top + w.coarseTop(1) + 5];
            })()""",
        )
        page.mouse.dblclick(x, y)
        wait_for(page, "!w.coarse && w.model.range[0] <= 12 && w.model.range[1] >= 12")
        wait_for(page, "w.drawn > 20")
        assert "12" in the(page, "String(w.stepLabels)")
        seen.check_clean()


def test_a_store_of_rollups_alone_shows_what_ranks_spent_their_time_on(
    browser: Browser, rolled_server: RunningServer
) -> None:
    with visit(browser, rolled_server.url) as seen:
        page = open_timeline(seen, "?rank=5&axis=dp")
        wait_for(page, "w.coarse && w.drawn === 6")
        note = page.inner_text("#timeline-note")
        assert "No raw spans of these ranks" in note
        assert "how the time of its steps was shared out, not in what order" in note
        assert not page.locator("#open-perfetto, [href*='export/timeline']").count(), "nothing to export"
        zero, start = the(page, DRAWN_ZERO)
        assert zero == pytest.approx(start, abs=1), "time counts from the start of the run"
        page.keyboard.press("w")
        page.wait_for_function("() => /steps=.*t=|t=.*steps=/.test(location.search)")
        begin = "Number((w.model.base + BigInt(Math.round(w.from))) / 1000n)"
        before = the(page, begin)
        page.reload()
        wait_for(page, "w && w.coarse && w.drawn")
        assert abs(the(page, begin) - before) < 2, "the address leads to the same moment"
        page.keyboard.press("o")
        left, top = the(page, "(({ left, top }) => [left, top])(w.canvas.getBoundingClientRect())")
        page.mouse.move(left + 400, top + the(page, "w.coarseTop(0)") + 5)
        page.locator(".tooltip").wait_for()
        assert "forward and other compute" in page.inner_text(".tooltip")
        assert "steps" in page.inner_text(".tooltip")
        seen.check_clean()


def test_waiting_arrows_and_path_are_what_the_store_says_and_can_be_hidden(slow_visit: Visit, slow_store: Path) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=tp&steps=3")
    wait_for(page, "w.model.links")
    waiting = the(page, "Array.from(w.model.links.waiting, (ns) => Number.isNaN(ns) ? null : ns)")
    with Store(slow_store) as store:
        sql = """
            SELECT e.rank, e."sequence", s.name, least(max(e.start_ns) OVER meeting - e.start_ns, e.duration_ns) AS ns
            FROM events e JOIN segments s USING (segment) WHERE step = 3 AND s.kind = 'collective'
            WINDOW meeting AS (PARTITION BY "group", "sequence", segment)"""
        rows = store.query(sql, attempt=store.attempt()).to_pylist()
    stored = {(row["rank"], row["sequence"], row["name"]): row["ns"] for row in rows}
    keys = [(row["rank"], row["sequence"], row["segment"]) for row in drawn_spans(page)]
    meetings = {key: ns for key, ns in zip(keys, waiting, strict=True) if key in stored}
    assert len(meetings) == 2 * (4 * 2 + 2)
    assert meetings == {key: stored[key] for key in meetings}
    assert max(meetings.values()) > 0
    page = open_timeline(slow_visit, "?rank=5&axis=all&steps=3")
    wait_for(page, "w.model.path && w.lit > 0")
    lit, pieces, end, last = the(page, "[w.lit, w.model.path.span.length, w.model.path.end.at(-1), w.model.last]")
    assert lit == pieces
    assert end == last, "it ends with the last span"
    for key, name in (("h", "waiting"), ("x", "arrows"), ("c", "path")):
        before = the(page, "w.canvas.toDataURL()")
        page.keyboard.press(key)
        page.wait_for_function("(name) => location.search.includes(name)", arg=name)
        assert the(page, "w.canvas.toDataURL()") != before, name
    page.reload()
    wait_painted(page, "timeline")
    assert the(page, "[...w.hidden].sort()") == ["arrows", "path", "waiting"]
    slow_visit.check_clean()


def test_two_steps_stand_one_below_the_other_at_the_same_scale(slow_visit: Visit, slow_store: Path) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=3&beside=20")
    wait_painted(page, "timeline-beside")
    both = """() => ["timeline", "timeline-beside"].map((kind) => {
        const w = window.megascope.widget(kind);
        return [w.x(w.origin), (w.to - w.from) / w.plotWidth, w.model.range[0], w.model.count];
    })"""
    first, second = page.evaluate(both)
    assert first[:2] == pytest.approx(second[:2])
    assert (first[2], second[2]) == (3, 20)
    assert first[3] == second[3] > 50
    page.keyboard.press("w")
    page.keyboard.press("d")
    zoomed = page.evaluate(both)
    assert zoomed[0][:2] == pytest.approx(zoomed[1][:2])
    assert zoomed[0][1] < first[1]
    page.fill("#field-beside", "0:9:no such run")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.body.innerText.includes('Nothing can be shown beside it')")
    slow_visit.check_clean()


def test_two_runs_stand_one_below_the_other(slow_visit: Visit, slow_store: Path) -> None:
    other = "older run/ü"
    page = open_timeline(slow_visit, f"?rank=5&axis=dp&steps=3&beside={quote(f'0:2:{other}')}")
    wait_painted(page, "timeline-beside")
    with Store(slow_store) as store:
        count = check_timeline(page, store, store.attempt())
        stored = store.query(
            "SELECT rank, segment_name, duration_ns FROM spans WHERE rank IN (4, 5, 6, 7) AND step = 2",
            attempt=store.attempt(other),
        )
    rows = page.evaluate(
        """() => window.megascope.widget("timeline-beside").model.rows()
            .filter((row) => row.step === 2).map((row) => [row.rank, row.segment, row.duration])"""
    )  # at the first one's scale more of its steps may be in view
    ranks = {rank for rank, *_ in rows}
    assert 5 in ranks
    expected = [list(row.values()) for row in stored.to_pylist() if row["rank"] in ranks]
    assert sorted(rows) == sorted(expected)
    assert 0 < len(rows) < count, "it has fewer micro-batches"
    slow_visit.check_clean()


def test_search_tells_where_it_is_and_goes_both_ways(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=dp&steps=3")
    page.keyboard.press("/")
    page.keyboard.type("forward rank:5")
    found = the(page, "w.matches.map((span) => w.model.rows()[span].rank + ' ' + w.model.rows()[span].segment)")
    assert len(found) == 8
    assert {one.split()[0] for one in found} == {"5"}
    page.keyboard.press("Enter")
    assert page.inner_text("#find-count") == "1 of 8"
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    assert page.inner_text("#find-count") == "2 of 8"
    page.keyboard.press("Shift+N")
    page.keyboard.press("Shift+N")
    assert page.inner_text("#find-count") == "8 of 8"
    assert the(page, "w.found[w.selected]") == 1


def test_keys_change_steps_fit_lanes_and_show_help_and_back_keeps_the_state(slow_visit: Visit) -> None:
    page = open_timeline(slow_visit, "?rank=5&axis=all&steps=3")
    tall = the(page, "w.contentHeight")
    page.keyboard.press("f")
    assert the(page, "w.contentHeight") < tall
    page.keyboard.press("?")
    page.locator("#keys ul").wait_for(state="visible")
    page.keyboard.press("Escape")
    page.locator("#keys ul").wait_for(state="hidden")
    page.keyboard.press("]")
    page.wait_for_function("() => location.search.includes('steps=4')")
    wait_for(page, "w.model.range[0] === 4")
    page.keyboard.press("w")
    page.wait_for_function("() => location.search.includes('t=')")
    window = page.evaluate(WINDOW)
    page.click("#nav-sql")
    page.wait_for_selector("#sql-run")
    page.go_back()
    wait_painted(page, "timeline")
    assert page.evaluate(WINDOW) == pytest.approx(window, abs=2)
    assert the(page, "w.fit")
    slow_visit.check_clean()


def test_times_in_utc_choose_the_steps(slow_visit: Visit, slow_store: Path) -> None:
    with Store(slow_store) as store:
        sql = "SELECT min(start_ns) AS ns FROM steps WHERE step = {}"
        begins = [store.query(sql.format(step), attempt=store.attempt())["ns"][0].as_py() for step in (5, 7)]
    since, until = (moment_text(begin).replace(" ", "T") for begin in begins)
    page = open_timeline(slow_visit, f"?rank=5&axis=dp&since={since}&until={until}")
    assert the(page, "w.model.range") == [5, 6]
    assert f"steps 5:6, from {moment_text(begins[0])}" in page.inner_text("main")
    slow_visit.check_clean()
