"""How fast the pages are: a store of 512 ranks x 100 steps (4.8 M spans), each page in a fresh headless browser.

First paint counts from the navigation's start, with an empty browser cache, until the page's canvas is drawn (for SQL:
until the table of a query over all spans stands there). The server runs in a process of its own, and has answered
nothing before the first, cold visit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, Request

from .machine import report

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.page_checks import chromium, visit, wait_judged, wait_painted
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store

from .pages_3d import measure_hang, write_hang_store
from .pages_fleet import measure_first_asked, measure_fleet, write_fleet_store
from .pages_server import server_process
from .pages_timeline import LARGE, measure_timeline

JOB = SyntheticJob(layout={"pp": 8, "dp": 8, "tp": 8}, steps=100, microbatches=12, slow=Slow(197, 1.3, 40))
QUERY = (
    "SELECT segment_name, count(*) AS spans, sum(self_ns) / 1e9 AS self_s FROM spans GROUP BY ALL ORDER BY self_s DESC"
)
ADDRESSES = {
    "overview": "/",
    "heatmap": "/heatmap?segment=forward",
    "timeline": "/timeline?rank=197",
    "3d": "/3d",
    "sql": f"/sql?q={quote(QUERY)}",
}
WIDGETS = {"overview": "curves", "heatmap": "heatmap", "timeline": "timeline", "3d": "scene"}

# Redraws after moving the view: what a hand on the mouse wheel feels.
_REDRAW = """async (kind) => {
    const widget = window.megascope.widget(kind), begun = performance.now();
    for (let turn = 0; turn < 20; turn++) {
        if (kind === "heatmap") widget.scaleBy(turn % 2 ? 1.3 : 1 / 1.3, turn % 2 ? 1.3 : 1 / 1.3, 0.5, 0.5);
        else if (kind === "timeline") widget.zoom(turn % 2 ? 1.25 : 0.8);
        else if (kind === "scene") widget.look(widget.yaw + 0.05, widget.pitch);
        else { widget.cursor = turn; widget.draw(); }
        await new Promise((next) => requestAnimationFrame(next));
    }
    return (performance.now() - begun) / 20;
}"""


def measure(browser: Browser, url: str, name: str) -> dict[str, float]:
    """One visit: first paint, bytes over the wire for data and in all, verdict, and a redraw."""
    with visit(browser, url) as seen:
        requests: list[Request] = []
        seen.page.on("requestfinished", lambda request: requests.append(request))  # noqa: PLW0108 - needs a function
        begun = time.perf_counter()
        page = seen.go(ADDRESSES[name])
        _wait(page, name)
        painted = time.perf_counter()
        wait_judged(page) if name in WIDGETS else None
        judged = time.perf_counter()
        page.wait_for_timeout(200)
        redraw = page.evaluate(_REDRAW, WIDGETS[name]) if name in WIDGETS else None
        if name == "sql":
            redraw = _rerun_query(page)
        sizes = [(request.url, request.sizes()["responseBodySize"]) for request in requests]
        seen.check_clean()
    data = sum(size for address, size in sizes if "/data/" in address or "_dash-update-component" in address)
    return {
        "first_paint_ms": 1e3 * (painted - begun),
        "verdict_ms": 1e3 * (judged - begun),
        "payload_bytes": data,
        "all_bytes": sum(size for _, size in sizes),
        "interaction_ms": redraw or 0.0,
    }


def _wait(page: Page, name: str) -> None:
    if name in WIDGETS:
        wait_painted(page, WIDGETS[name])
    else:
        page.wait_for_selector("#sql-result")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _rerun_query(page: Page) -> float:
    begun = time.perf_counter()
    page.evaluate("() => { document.getElementById('sql-result').dataset.old = '1'; }")
    page.click("#sql-run")
    page.wait_for_selector("#sql-result:not([data-old])")
    return 1e3 * (time.perf_counter() - begun)


def summary(cold: dict[str, float], warm: list[dict[str, float]]) -> dict[str, float]:
    """Medians of the warm visits, and what the first one took: a verdict is made in it, and kept for the others."""
    medians = {key: round(statistics.median(one[key] for one in warm), 1) for key in warm[0]}
    first = {f"{name}_cold_ms": round(cold[f"{name}_ms"], 1) for name in ("first_paint", "verdict")}
    return medians | first | {"first_paint_worst_ms": round(max(one["first_paint_ms"] for one in warm), 1)}


def main(arguments: list[str] | None = None) -> None:
    """Measure every page and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5, help="warm visits of each page")
    visits = parser.parse_args(arguments).visits
    pages: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write_synthetic_store(store, JOB)
        with chromium() as browser, server_process(store) as url:
            for name in ADDRESSES:
                cold = measure(browser, url, name)
                warm = [measure(browser, url, name) for _ in range(visits)]
                pages[name] = summary(cold, warm)
        write_fleet_store(Path(folder) / "fleet")
        with chromium() as browser, server_process(Path(folder) / "fleet") as url:
            pages["heatmap_fleet"] = measure_fleet(browser, url, visits)
        with chromium() as browser:
            pages["heatmap_fleet"] |= measure_first_asked(browser, Path(folder) / "fleet", visits)
        write_hang_store(Path(folder) / "hang")
        with chromium() as browser, server_process(Path(folder) / "hang") as url:
            pages["3d_fleet"] = measure_hang(browser, url, Path(folder) / "hang", visits)
        write_synthetic_store(Path(folder) / "large", LARGE)
        with chromium() as browser, server_process(Path(folder) / "large") as url:
            pages["timeline"] |= measure_timeline(browser, url, visits)
    report("pages", {"ranks": 512, "steps": JOB.steps, "visits": visits, **pages})


if __name__ == "__main__":
    main()
