"""The Heatmap of a fleet: `megascope simulate`'s rollups of 12,288 ranks x 1,000 steps, 100 windows of 10.

All segments of the job, steps and heartbeats of all ranks, and spans of one pipeline are stored, as of a real fleet.
Three single ranks are slow for a single window: whether each still stands out is read off the canvas. First paint
counts from the navigation's start in a fresh browser; cold is the first visit of a server that has answered nothing.
What a click changes is counted from it until it is drawn: another order and the hosts from what the server has read,
another segment, the 99th percentile and a brush of steps each on a server that has read nothing of them.
Part of `benchmarks.pages`; alone, it can be given a store that it wrote before (`--store`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page

from megascope.trainer.simulator.config import SimulationConfig, costs_of
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.writing import Recording, simulate

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.page_checks import Visit, visit, wait_judged, wait_painted

from .pages_server import measure_alone, server_process

LAYOUT = {"pp": 8, "dp": 192, "tp": 8}
STEPS, WINDOW = 1000, 10
PLANTED = ((17, 30), (6001, 500), (12287, 990))
"""Ranks and the first steps of the windows in which they take 1.4 times as long."""

FIRST_ASKED: dict[str, tuple[dict[str, str | None], dict[str, str | None]]] = {
    "other_segment_ms": ({"segment": "backward"}, {"segment": "forward"}),
    "p99_ms": ({"metric": "p99"}, {"metric": None}),
    "other_steps_ms": ({"steps": "300:599"}, {}),
}
"""Clicks that ask for what no click before them has read, and the way back. A brush starts another verdict: it is the
last."""

_SETTLED = """async (changes) => {
    const begun = performance.now(), before = document.querySelector("[data-widget]").dataset.source;
    window.megascope.change(changes);
    for (;;) {
        await new Promise((next) => requestAnimationFrame(next));
        const { source, painted } = document.querySelector("[data-widget]")?.dataset ?? {};
        if (source && source !== before && painted === source) return performance.now() - begun;
        if (performance.now() - begun > 60000) throw new Error(`Not drawn: ${JSON.stringify(changes)}`);
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

# From a zoom to 40 ranks by 20 columns around each place until their single cells are drawn; ms each.
_TO_CELLS = """async (planted) => {
    const widget = window.megascope.widget("heatmap"), took = [];
    const frame = () => new Promise((next) => requestAnimationFrame(next));
    for (const [rank, step] of planted) {
        widget.setZoom(null);
        await frame();
        const begun = performance.now(), row = widget.rowOf(rank), column = widget.look.columnsIn(step, step)[0];
        widget.setZoom({ r0: row - 20, r1: row + 20, c0: column - 10, c1: column + 10 });
        while (widget.layer.bin.some((size) => size > 1)) {
            if (performance.now() - begun > 60000) throw new Error("The single cells did not come");
            await frame();
        }
        await frame();
        took.push(performance.now() - begun);
    }
    widget.setZoom(null);
    return took;
}"""

_HOT = """(planted) => planted.filter(([rank, step]) => {
    const widget = window.megascope.widget("heatmap"), { ny, r0, r1 } = widget.binned, [high] = widget.layer.bin;
    const bins = Math.round((r1 - r0) / high), bin = Math.floor(widget.rowOf(rank) / high);
    const x = widget.xOf(widget.look.columnsIn(step, step)[0] + 0.5);
    const y = widget.yOf(r0 + ((Math.floor((bin * ny) / bins) + 0.5) * (r1 - r0)) / ny);
    const [red, , blue] = widget.context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
    return red - blue > 90;
}).length"""


def write_fleet_store(root: Path) -> None:
    """Simulate the job with the slow ranks; some two minutes."""
    costs = costs_of(SimulationConfig(), LAYOUT, microbatches=8)
    job = SimulatedJob(layout=LAYOUT, steps=STEPS, microbatches=8, costs=costs, noise=load_noise("builtin"))
    faults = [
        parse_fault(f"slow-gpu:rank={rank}:factor=1.4:steps={step}-{step + WINDOW - 1}") for rank, step in PLANTED
    ]
    pipeline = tuple(int(rank) for rank in job.grid.rank[:, 0, 0])
    simulate(job, root, Recording(span_ranks=pipeline, span_steps=(STEPS - 10, STEPS - 1)), faults=faults)


def measure_fleet(browser: Browser, url: str, visits: int) -> dict[str, float]:
    """Medians: first paint in a fresh browser, another order and the picture of hosts in an open one, and zooms."""
    found = [_visit(browser, url) for _ in range(visits + 1)]
    medians = {key: round(float(np.median([one[key] for one in found[1:]])), 1) for key in found[0]}
    ranks = int(np.prod(list(LAYOUT.values())))
    shape = {"ranks": ranks, "steps": STEPS, "columns": STEPS // WINDOW, "planted": len(PLANTED)}
    cold = {f"{name}_cold_ms": round(found[0][f"{name}_ms"], 1) for name in ("first_paint", "verdict")}
    return shape | medians | cold


def measure_first_asked(browser: Browser, store: Path, visits: int) -> dict[str, float]:
    """Medians and worst of the clicks of `FIRST_ASKED`; a server keeps what it has read, so each visit has its own."""
    found = []
    for _ in range(visits):
        with server_process(store) as url, visit(browser, url) as seen:
            found.append(_ask_first(_opened(seen)[0]))
            seen.check_clean()
    result: dict[str, float] = {}
    for key in FIRST_ASKED:
        took = [one[key] for one in found]
        result |= {key: round(float(np.median(took)), 1), key.replace("_ms", "_worst_ms"): round(max(took), 1)}
    return result


def _ask_first(page: Page) -> dict[str, float]:
    took = {}
    for key, (there, back) in FIRST_ASKED.items():
        took[key] = float(page.evaluate(_SETTLED, there))
        page.wait_for_timeout(300)
        if back:
            page.evaluate(_SETTLED, back)
            page.wait_for_timeout(300)
    return took


def _opened(seen: Visit) -> tuple[Page, float, float]:
    """The page with its verdict, drawn; and after how many ms it was first drawn, and judged."""
    seen.page.set_default_timeout(120_000)
    begun = time.perf_counter()
    page = seen.go("/heatmap?segment=forward")
    _painted(page)
    first = time.perf_counter() - begun
    wait_judged(page)
    judged = time.perf_counter() - begun
    _painted(page)
    return page, 1e3 * first, 1e3 * judged


def _visit(browser: Browser, url: str) -> dict[str, float]:
    with visit(browser, url) as seen:
        page, first_ms, judged_ms = _opened(seen)
        visible = page.evaluate(_HOT, [list(place) for place in PLANTED])
        zoom = page.evaluate(_ZOOM)
        page.wait_for_timeout(300)
        cells = page.evaluate(_TO_CELLS, [list(place) for place in PLANTED])
        page.wait_for_timeout(300)
        order = page.evaluate(_SETTLED, {"order": "worst"})
        hosts = page.evaluate(_SETTLED, {"shape": "hosts"})
        return {
            "first_paint_ms": first_ms,
            "verdict_ms": judged_ms,
            "other_order_ms": order,
            "hosts_paint_ms": hosts,
            "interaction_ms": zoom,
            "zoom_to_cells_ms": float(np.median(cells)),
            "zoom_to_cells_worst_ms": max(cells),
            "planted_visible": visible,
        }


def _painted(page: Page) -> None:
    wait_painted(page, "heatmap")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def main(arguments: list[str] | None = None) -> None:
    """Measure the fleet's heatmap alone and print one JSON object."""
    measure_alone(
        "pages_fleet",
        "heatmap_fleet",
        write_fleet_store,
        lambda browser, url, store, visits: (
            measure_fleet(browser, url, visits) | measure_first_asked(browser, store, visits)
        ),
        arguments,
        __doc__,
    )


if __name__ == "__main__":
    main()
