"""How fast the 3D page is at 12,288 ranks of which one is stuck: first paint, bytes over the wire, a turn, a moment.

First paint and bytes are those of the page as it opens: the stuck rank, who waits for it, and a coarse picture of the
rest. The cold visit opens with what each rank is in, and has the stuck one when it is judged. Part of
`benchmarks.pages`; alone, it can be given a store that it wrote before (`--store`).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request

from megascope.collectors.reading.store import Store
from megascope.dashboards.scene.page import page_html
from megascope.viz3d.hang import diagnose_with_graph

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.page_checks import visit, wait_judged, wait_painted

from .pages_server import measure_alone

STUCK = 5003
SIMULATE = ("--layout", "tp=8,pp=8,dp=192", "--steps", "12", "--spans", "none")

# Turns of the picture, each drawn and shown.
_TURN = """async () => {
    const scene = window.megascope.widget("scene"), begun = performance.now();
    for (let turn = 0; turn < 20; turn++) {
        scene.look(scene.yaw + 0.05, scene.pitch);
        await new Promise((next) => requestAnimationFrame(next));
    }
    return (performance.now() - begun) / 20;
}"""

# From the move of the slider until another moment's states are drawn: request, query, transfer, painting.
_SLIDE = """async (at) => {
    const element = document.getElementById("widget-scene"), slider = document.getElementById("scene-moment");
    const begun = performance.now(), before = element.dataset.look;
    slider.value = at;
    slider.dispatchEvent(new Event("input"));
    while (element.dataset.look === before) {
        if (performance.now() - begun > 60000) throw new Error("The moment was not drawn");
        await new Promise((done) => setTimeout(done, 5));
    }
    return performance.now() - begun;
}"""


def write_hang_store(root: Path) -> None:
    """The store of a job of which one rank is stuck in its forward pass."""
    fault = ("--fault", f"host-stuck:rank={STUCK}:step=10")
    command = [sys.executable, "-m", "megascope", "simulate", str(root), *SIMULATE, *fault, "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_hang(browser: Browser, url: str, store: Path, visits: int) -> dict[str, Any]:
    """The first visit to a server that has answered nothing yet, and medians of later ones in fresh browsers."""
    cold = _visit(browser, url)
    warm = [_visit(browser, url) for _ in range(visits)]
    medians = {key: round(statistics.median(one[key] for one in warm), 1) for key in warm[0]}
    with Store(store) as opened:
        html = page_html(diagnose_with_graph(opened, opened.attempt()), title="benchmark")
    return {
        "ranks": 12_288,
        **medians,
        "first_paint_cold_ms": round(cold["first_paint_ms"], 1),
        "culprit_cold_ms": round(cold["culprit_ms"], 1),
        "first_paint_worst_ms": round(max(one["first_paint_ms"] for one in warm), 1),
        "html_bytes": len(html.encode()),
    }


def _visit(browser: Browser, url: str) -> dict[str, float]:
    with visit(browser, url) as seen:
        requests: list[Request] = []
        seen.page.on("requestfinished", lambda request: requests.append(request))  # noqa: PLW0108 - needs a function
        begun = time.perf_counter()
        page = seen.go("/3d")
        _painted(page)
        first = time.perf_counter() - begun
        wait_judged(page)
        page.wait_for_function(f"() => window.megascope.widget('scene').model.culprits.has({STUCK})")
        named = time.perf_counter() - begun
        page.wait_for_timeout(200)
        sizes = [(request.url, request.sizes()["responseBodySize"]) for request in requests]
        turn, slide = page.evaluate(_TURN), page.evaluate(_SLIDE, 0)
        whole = _whole_fleet(page)
        seen.check_clean()
    return {
        "first_paint_ms": 1e3 * first,
        "culprit_ms": 1e3 * named,
        "payload_bytes": sum(size for url, size in sizes if "/data/" in url or "_dash-update-component" in url),
        "all_bytes": sum(size for _, size in sizes),
        "interaction_ms": turn,
        "moment_ms": slide,
        **whole,
    }


def _whole_fleet(page: Page) -> dict[str, float]:
    begun = time.perf_counter()
    page.keyboard.press("f")
    page.wait_for_function("() => window.megascope.widget('scene').nodes.length === 12288")
    _painted(page)
    return {"fleet_paint_ms": 1e3 * (time.perf_counter() - begun), "fleet_interaction_ms": page.evaluate(_TURN)}


def _painted(page: Page) -> None:
    wait_painted(page, "scene")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def main(arguments: list[str] | None = None) -> None:
    """Measure this page alone and print one JSON object."""
    measure_alone("pages_3d", "3d_fleet", write_hang_store, measure_hang, arguments, __doc__)


if __name__ == "__main__":
    main()
