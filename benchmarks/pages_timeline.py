"""How fast the Timeline is with many spans: a step of 64 ranks x 2,000 spans, painted, and moved under a hand."""

from __future__ import annotations

import statistics
from typing import Any

from playwright.sync_api import Browser, Page

from support.page_checks import visit, wait_judged, wait_painted
from support.synthetic_store import SyntheticJob

LARGE = SyntheticJob(layout={"pp": 4, "dp": 4, "tp": 4}, steps=6, microbatches=285, run="large")
"""A rank of a middle stage runs more spans than one of an outer stage: 2,000 on average."""

# From the moment at which other steps are asked for, until they are drawn: request, query, transfer, painting.
_OTHER_STEPS = """async (steps) => {
    const element = document.querySelector("[data-widget=timeline]"), begun = performance.now();
    const url = new URL(element.dataset.source, location);
    url.searchParams.set("steps", steps);
    element.dataset.source = url.pathname + url.search;
    while (element.dataset.painted !== element.dataset.source) {
        if (!element.isConnected || performance.now() - begun > 60000) throw new Error("The timeline was not drawn");
        await new Promise((done) => setTimeout(done, 5));
    }
    return performance.now() - begun;
}"""

# A frame is a move by a 200th of the window, drawn and shown.
_PAN = """async () => {
    const widget = window.megascope.widget("timeline"), frames = 60, draws = [];
    widget.draw();
    const begun = performance.now();
    for (let frame = 0; frame < frames; frame++) {
        const start = performance.now();
        widget.pan(frame % 20 < 10 ? 0.005 : -0.005);
        draws.push(performance.now() - start);
        await new Promise(requestAnimationFrame);
    }
    draws.sort((one, other) => one - other);
    return [(1000 * frames) / (performance.now() - begun), draws[frames / 2], widget.drawn];
}"""


def measure_timeline(browser: Browser, url: str, visits: int) -> dict[str, Any]:
    """Painting of other steps (median ms), frames a second when panning, and the time to draw a frame.

    ``fit`` is the same with all 64 ranks on one screen.
    """
    with visit(browser, url) as seen:
        page = seen.go(f"/timeline?run={LARGE.run}&axis=all&steps=0")
        wait_painted(page, "timeline")
        wait_judged(page)
        wait_painted(page, "timeline")
        paints = [page.evaluate(_OTHER_STEPS, f"{step}:{step}") for step in range(1, 1 + min(visits, LARGE.steps - 1))]
        spans = page.evaluate("() => window.megascope.widget('timeline').model.count")
        _wait_links(page)
        fps, frame_ms, drawn = page.evaluate(_PAN)
        page.keyboard.press("f")
        fit_fps, fit_frame_ms, _ = page.evaluate(_PAN)
        seen.check_clean()
    return {
        "large_spans": spans,
        "large_drawn": drawn,
        "large_paint_ms": round(statistics.median(paints), 1),
        "large_paint_worst_ms": round(max(paints), 1),
        "pan_fps": round(fps, 1),
        "pan_frame_ms": round(frame_ms, 1),
        "fit_pan_fps": round(fit_fps, 1),
        "fit_pan_frame_ms": round(fit_frame_ms, 1),
    }


def _wait_links(page: Page) -> None:
    page.wait_for_function("() => window.megascope.widget('timeline').model.links")
    page.wait_for_timeout(500)
