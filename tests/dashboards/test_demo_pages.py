"""Every page on the demo's own store, in a real browser: each drawn cell and span is the one that was recorded."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from conftest import DEMO_STEPS, Demo
from megascope.collectors.reading.store import Store
from support.page_checks import check_all_pages

pytestmark = pytest.mark.alone


def test_every_page_shows_what_the_demo_recorded(browser: Browser, demo: Demo) -> None:
    compared = check_all_pages(browser, demo.store)
    assert compared["cells"] == 8 * DEMO_STEPS
    with Store(demo.store) as store:
        last = store.query("select count(*) as n from events where rank in (5, 7) and step = ?", [DEMO_STEPS - 1])
        assert compared["spans"] == last.to_pylist()[0]["n"]
