"""Zooming a fleet's heatmap, 12,288 ranks by 100 steps, reaches single ranks in single steps; back shows them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page

from megascope.collectors.reading.store import Store
from megascope.collectors.tables.schemas import RANKS_PER_BLOCK, block_name
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.server import RunningServer, background_server
from megascope.heatmap.matrix import Matrix, segment_matrix
from megascope.profiler.topology import Topology, segment_id
from support.page_checks import Visit, visit
from support.page_visits import open_heatmap

pytestmark = pytest.mark.timeout(300)

MESH, STEPS, MS = Topology.of(pp=8, dp=192, tp=8), 100, 10**6
HOT = ((6001, 50), (6004, 50), (6004, 53), (12287, 99))
"""Cells that take 1.4 times as long; the first three fall into one bin or into neighbours."""

_ZOOM_TO = """([rank, step, rows, columns]) => {
    const widget = window.megascope.widget("heatmap"), row = widget.rowOf(rank);
    const column = widget.look.columnsIn(step, step)[0], r0 = row - (rows >> 1), c0 = column - (columns >> 1);
    widget.setZoom({ r0, r1: r0 + rows, c0, c1: c0 + columns });
}"""
_IS_SINGLE = "() => { const { layer } = window.megascope.widget('heatmap'); return !layer.bin.some((one) => one > 1); }"
_DRAWN = """() => {
    const widget = window.megascope.widget("heatmap"), { layer, meta, arrays, window: { r0, r1, c0, c1 } } = widget;
    const found = [];
    for (let row = r0; row < r1; row++) for (let column = c0; column < c1; column++) {
        const cell = (row - layer.row) * layer.columns + column - layer.column;
        const numbers = ["value", "peers", "ratio", "z"].map((name) => arrays[name][cell]);
        found.push([meta.ranks[row], meta.steps[column], ...numbers]);
    }
    return found;
}"""
_PLACE = """([rank, step]) => {
    const widget = window.megascope.widget("heatmap"), box = widget.canvas.getBoundingClientRect();
    const x = widget.xOf(widget.look.columnsIn(step, step)[0] + 0.5), y = widget.yOf(widget.rowOf(rank) + 0.5);
    return [box.left + x, box.top + y];
}"""
_HOT = """(places) => {
    const widget = window.megascope.widget("heatmap"), copy = document.createElement("canvas");
    Object.assign(copy, { width: widget.canvas.width, height: widget.canvas.height });
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(widget.canvas, 0, 0);
    return places.map(([rank, step]) => {
        const x = widget.xOf(widget.look.columnsIn(step, step)[0] + 0.5);
        const y = widget.yOf(widget.rowOf(rank) + 0.1); // beside the number in it
        const [red, , blue] = pen.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
        return red - blue > 90;
    });
}"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One span of forward in every step of every rank."""
    root = tmp_path_factory.mktemp("fleet") / "store"
    random, world = np.random.default_rng(5), MESH.world_size
    times = 40 * MS * np.exp(random.normal(0, 0.01, (world, STEPS)))
    for place in HOT:
        times[place] *= 1.4
    segment, ranks = segment_id("forward", "compute", None), np.arange(world)
    with TableWriter(root, "fleet") as writer:

        def write(table: str, rows: dict[str, Any], **more: Any) -> None:
            writer.write(table, "fleet", 0, rows, **more)

        ended = {"end_ns": [STEPS * 100 * MS], "exit_reason": ["finished"]}
        layout = '{"pp": 8, "dp": 192, "tp": 8}'
        write("runs", {"layout": [layout], "world_size": [world], "start_ns": [0], **ended})
        write("segments", {"segment": [segment], "name": ["forward"], "kind": ["compute"], "axis": [None]})
        places = [MESH.coordinates(int(rank)) for rank in ranks]
        axes = {axis: [place[axis] for place in places] for axis in MESH.names}
        hosts = {"host": [f"node{rank // 8:04}" for rank in ranks], "local_rank": ranks % 8}
        write("ranks", {"rank": ranks, **hosts, **axes}, axes=MESH.names)
        for first in range(0, world, RANKS_PER_BLOCK):
            block = ranks[first : first + RANKS_PER_BLOCK]
            rank, step = np.repeat(block, STEPS), np.tile(np.arange(STEPS), len(block))
            took = times[block].ravel().astype(np.int64)
            spans = {"rank": rank, "step": step, "segment": np.full(len(rank), segment), "start_ns": step * 100 * MS}
            spans |= {
                "duration_ns": took,
                "self_ns": took,
                "status": pa.repeat("ok", len(rank)),
                "clock": pa.repeat("host", len(rank)),
            }
            write("events", spans, block=block_name(first))
        writer.commit()
    return root


@pytest.fixture(scope="module")
def server(fleet: Path) -> Iterator[RunningServer]:
    with background_server(fleet) as running:
        yield running


@pytest.fixture
def seen(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    with visit(browser, server.url) as found:
        found.page.set_default_timeout(120_000)  # the first picture waits for 1.2 million spans
        yield found


@pytest.fixture(scope="module")
def matrix(fleet: Path) -> Matrix:
    with Store(fleet) as store:
        return segment_matrix(store, store.attempt(), "forward")


def zoom_to(page: Page, rank: int, step: int, rows: int, columns: int) -> None:
    """Zoom to a window around a cell, and wait until its single cells are there."""
    page.evaluate(_ZOOM_TO, [rank, step, rows, columns])
    page.wait_for_function(_IS_SINGLE)


def check_drawn(page: Page, matrix: Matrix, count: int) -> None:
    """Compare every cell in view with the store's."""
    drawn = page.evaluate(_DRAWN)
    assert len(drawn) == count
    for rank, step, *numbers in drawn:
        stored = [plane[rank, step] for plane in (matrix.values, matrix.peers_median, matrix.ratio, matrix.z)]
        assert numbers == pytest.approx(stored, rel=1e-5, abs=1e-6), (rank, step)


def test_a_hot_cell_zoomed_to_is_one_rank_in_one_step(seen: Visit, matrix: Matrix) -> None:
    page = open_heatmap(seen, "?segment=forward")
    assert page.evaluate("() => window.megascope.widget('heatmap').layer.bin[0]") > 8
    for rank, step in HOT:
        zoom_to(page, rank, step, 21, 11)
        check_drawn(page, matrix, 21 * 11)
        near = [(rank, step), (rank - 1, step), (rank, step - 1)]
        assert page.evaluate(_HOT, near) == [place in HOT for place in near]
        page.mouse.move(*page.evaluate(_PLACE, [rank, step]))
        page.wait_for_function(
            f"() => document.querySelector('.tooltip strong')?.textContent === 'rank {rank}, step {step}'"
        )
    seen.check_clean()


def test_the_wheel_leads_to_it_and_back_from_the_timeline_keeps_it(seen: Visit, matrix: Matrix) -> None:
    page = open_heatmap(seen, "?segment=forward")
    rank, step = HOT[0]
    for _ in range(40):
        page.mouse.move(*page.evaluate(_PLACE, [rank, step]))
        page.mouse.wheel(0, -300)
    page.wait_for_function(_IS_SINGLE)
    window = "() => window.megascope.widget('heatmap').window"
    shown = page.evaluate(window)
    assert (shown["r1"] - shown["r0"], shown["c1"] - shown["c0"]) == (1, 1)
    check_drawn(page, matrix, 1)
    page.keyboard.press("s")
    page.wait_for_function("() => /zoom=\\d/.test(location.search)")
    shown = page.evaluate(window)
    page.mouse.click(*page.evaluate(_PLACE, [rank, step]))
    page.wait_for_url(f"**/timeline?*rank={rank}*steps={step}*")
    page.go_back()
    page.wait_for_url("**/heatmap?*")
    page.wait_for_function("() => window.megascope.widget('heatmap')?.ready()")
    page.wait_for_function(_IS_SINGLE)
    assert page.evaluate(window) == shown
    seen.check_clean()


def test_what_was_fetched_is_moved_in_without_another_question(seen: Visit) -> None:
    page = open_heatmap(seen, "?segment=forward")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/data/heatmap" in request.url else None)
    zoom_to(page, 6001, 50, 40, 20)
    assert len(asked) == 1
    for key in ("w", "ArrowUp", "ArrowLeft", "s"):
        page.keyboard.press(key)
        page.wait_for_timeout(120)
    assert page.evaluate(_IS_SINGLE)
    assert len(asked) == 1
    page.keyboard.press("0")
    assert not page.evaluate(_IS_SINGLE), "the whole picture is drawn from its bins"
    zoom_to(page, 100, 20, 40, 20)
    assert len(asked) == 2
    seen.check_clean()
