"""The Heatmap of a fleet, for `benchmarks.pages`: rollups of 12,288 ranks x 1,000 steps, 100 windows of 10.

Only one segment is stored, because the page reads no other. Three single windows of single ranks are slow: whether each
still stands out is read off the canvas.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Browser, Page

from megascope.collectors.rollups.rollup import window_rows
from megascope.collectors.tables.schemas import RANKS_PER_BLOCK, block_name
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import Topology, segment_id
from support.page_checks import visit, wait_judged, wait_painted

MESH = Topology.of(pp=8, dp=192, tp=8)
STEPS, WINDOW = 1000, 10
PLANTED = ((17, 3), (6001, 50), (12287, 99))
"""Ranks and windows that take 1.4 times as long."""

_SETTLED = """async (changes) => {
    const begun = performance.now(), before = document.querySelector("[data-widget]").dataset.source;
    window.megascope.change(changes);
    for (;;) {
        await new Promise((next) => requestAnimationFrame(next));
        const { source, painted } = document.querySelector("[data-widget]")?.dataset ?? {};
        if (source && source !== before && painted === source) return performance.now() - begun;
    }
}"""

_ZOOM = """async () => {
    const widget = window.megascope.widget("heatmap"), begun = performance.now();
    for (let turn = 0; turn < 20; turn++) {
        widget.scaleBy(turn % 2 ? 1.3 : 1 / 1.3, turn % 2 ? 1.3 : 1 / 1.3, 0.5, 0.5);
        await new Promise((next) => requestAnimationFrame(next));
    }
    widget.setZoom(null);
    return (performance.now() - begun) / 20;
}"""

_HOT = """(planted) => planted.filter(([rank, column]) => {
    const { look, plot, rows, columns, binned, context } = window.megascope.widget("heatmap");
    const x = plot.x + ((column + 0.5) * plot.width) / columns;
    const y = plot.y + ((Math.floor((look.rowOf(rank) * binned.ny) / rows) + 0.5) * plot.height) / binned.ny;
    const [red, , blue] = context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
    return red - blue > 90;
}).length"""


def write_fleet_store(root: Path) -> None:
    """One segment's rollups, each window as of one span, and the steps of one host."""
    random = np.random.default_rng(1)
    windows = STEPS // WINDOW
    times = 40e6 * np.exp(random.normal(0, 0.01, (MESH.world_size, windows)))
    for place in PLANTED:
        times[place] *= 1.4
    segment = segment_id("forward", "compute", None)
    ranks = range(MESH.world_size)
    places = [MESH.coordinates(rank) for rank in ranks]
    axes = {axis: [place[axis] for place in places] for axis in MESH.names}
    with TableWriter(root, "fleet") as writer:

        def write(table: str, rows: Any, **more: Any) -> None:
            writer.write(table, "fleet", 0, rows, **more)

        run = {"layout": [json.dumps(dict(MESH.axes))], "world_size": [MESH.world_size], "start_ns": [0]}
        write("runs", run | {"end_ns": [STEPS * 10**9], "exit_reason": ["finished"]})
        write("segments", {"segment": [segment], "name": ["forward"], "kind": ["compute"], "axis": [None]})
        hosts = {"host": [f"node{rank // 8:04}" for rank in ranks], "local_rank": [rank % 8 for rank in ranks]}
        write("ranks", {"rank": list(ranks), **hosts, **axes}, axes=MESH.names)
        for first in range(0, MESH.world_size, RANKS_PER_BLOCK):
            block = times[first : first + RANKS_PER_BLOCK]
            write("rank_windows", _rollups(block, first, segment), block=block_name(first))
        rank, step = np.repeat(np.arange(8), STEPS), np.tile(np.arange(STEPS), 8)
        write("steps", {"rank": rank, "step": step, "start_ns": step * 10**9, "duration_ns": np.full(len(step), 10**9)})
        writer.commit()


def _rollups(times: npt.NDArray[np.float64], first: int, segment: int) -> Any:
    rank = np.repeat(np.arange(first, first + len(times)), times.shape[1])
    step = np.tile(np.arange(times.shape[1]) * WINDOW, len(times))
    span = times.ravel().astype(np.int64)
    return window_rows(rank, np.full(len(rank), segment), step, span, span)


def measure_fleet(browser: Browser, url: str, visits: int) -> dict[str, float]:
    """Medians: first paint in a fresh browser, another order and the picture of hosts in an open one, and a zoom."""
    found = [_visit(browser, url) for _ in range(visits + 1)]
    medians = {key: round(float(np.median([one[key] for one in found[1:]])), 1) for key in found[0]}
    return {"ranks": MESH.world_size, "steps": STEPS, "columns": STEPS // WINDOW, "planted": len(PLANTED)} | medians


def _visit(browser: Browser, url: str) -> dict[str, float]:
    with visit(browser, url) as seen:
        begun = time.perf_counter()
        page = seen.go("/heatmap?segment=forward")
        _painted(page)
        first = time.perf_counter() - begun
        wait_judged(page)
        visible = page.evaluate(_HOT, [list(place) for place in PLANTED])
        zoom = page.evaluate(_ZOOM)
        page.wait_for_timeout(300)
        order = page.evaluate(_SETTLED, {"order": "worst"})
        hosts = page.evaluate(_SETTLED, {"shape": "hosts"})
        return {
            "first_paint_ms": 1e3 * first,
            "other_order_ms": order,
            "hosts_paint_ms": hosts,
            "interaction_ms": zoom,
            "planted_visible": visible,
        }


def _painted(page: Page) -> None:
    wait_painted(page, "heatmap")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
