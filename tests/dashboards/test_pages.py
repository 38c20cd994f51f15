"""Every page in a real browser: what is drawn is what is stored, and what a person does leads where it should."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from megascope.dashboards.server import background_server
from support.demo_store import small_store
from support.page_checks import Visit, check_all_pages, visit, wait_judged, wait_painted
from support.page_visits import open_heatmap, open_timeline
from support.synthetic_store import START_NS, SyntheticJob, write_synthetic_store

pytestmark = pytest.mark.timeout(120)


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


def test_other_pages_say_that_the_job_hangs(stuck_visit: Visit) -> None:
    page = open_timeline(stuck_visit)
    page.wait_for_function("() => document.querySelector('.banner')?.innerText.includes('HANG')")


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
