"""While a run trains: a slow question is asked once, whatever comes meanwhile, and the newest data are shown."""

from __future__ import annotations

import pytest

from support.page_checks import Visit
from support.page_visits import open_heatmap

pytestmark = pytest.mark.timeout(120)

_SLOW_ANSWERS = """() => {
    const fetched = window.fetch, seen = (window.seen = { asked: [], active: 0, most: 0 });
    window.fetch = async (url, options) => {
        if (!String(url).includes("/data/heatmap")) return fetched(url, options);
        seen.asked.push(String(url).split("&v=")[1]);
        seen.most = Math.max(seen.most, ++seen.active);
        try {
            await new Promise((done) => setTimeout(done, 600));
            return await fetched(url, options);
        } finally {
            seen.active--;
        }
    };
}"""

_NEWER = """async () => {
    const element = document.querySelector("[data-widget]"), source = element.dataset.source.split("&v=")[0];
    for (const version of ["one", "two", "three"]) {
        element.dataset.source = `${source}&v=${version}`;
        await new Promise((done) => setTimeout(done, 100));
    }
    return source;
}"""


def test_newer_data_wait_for_the_answer_that_is_on_its_way(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.click("#pause")
    page.evaluate(_SLOW_ANSWERS)
    source = page.evaluate(_NEWER)
    page.wait_for_function(
        "(source) => document.querySelector('[data-widget]').dataset.painted === source", arg=f"{source}&v=three"
    )
    seen = page.evaluate("() => window.seen")
    assert seen == {"asked": ["one", "three"], "active": 0, "most": 1}
    slow_visit.check_clean()


def test_another_question_does_not_wait(slow_visit: Visit) -> None:
    page = open_heatmap(slow_visit, "?segment=forward")
    page.click("#pause")
    page.evaluate(_SLOW_ANSWERS)
    page.evaluate(
        """async () => {
            const element = document.querySelector("[data-widget]"), source = element.dataset.source;
            element.dataset.source = source.split("&v=")[0] + "&v=one";
            await new Promise((done) => setTimeout(done, 100));
            element.dataset.source = source.replace("segment=forward", "segment=backward");
        }"""
    )
    page.wait_for_function("() => window.megascope.widget('heatmap').meta.segment === 'backward'")
    assert page.evaluate("() => window.seen.asked.length") == 2
    slow_visit.check_clean()
