"""Ways to a page in a real browser, and to a cell on it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page

from .page_checks import Visit, wait_judged, wait_painted

WINDOW = "() => { const w = window.megascope.widget('timeline'); return [w.from, w.to]; }"


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
    """The Heatmap, once it is judged and painted."""
    page = seen.go(f"/heatmap{query}")
    wait_painted(page, "heatmap")
    wait_judged(page)
    wait_painted(page, "heatmap")
    return page


def open_timeline(seen: Visit, query: str = "") -> Page:
    """The Timeline, once it is painted."""
    page = seen.go(f"/timeline{query}")
    wait_painted(page, "timeline")
    return page


def wait_for(page: Page, expression: str, arg: Any = None) -> None:
    """Wait until an expression about ``w``, the timeline, holds."""
    page.wait_for_function(
        f"(arg) => {{ const w = window.megascope.widget('timeline'); return {expression}; }}", arg=arg
    )


def the(page: Page, expression: str) -> Any:
    """What an expression about ``w``, the timeline, gives."""
    return page.evaluate(f"() => {{ const w = window.megascope.widget('timeline'); return {expression}; }}")


def asked_steps(page: Page) -> list[str]:
    """Steps of all answered requests for spans, in order."""
    names = page.evaluate("() => performance.getEntriesByType('resource').map((entry) => entry.name)")
    return [parse_qs(urlsplit(name).query)["steps"][0] for name in names if "/data/spans" in name]
