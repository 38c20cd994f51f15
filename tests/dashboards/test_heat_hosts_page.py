"""Hosts by GPUs, brush, threshold and ways out in a real browser, on a job that the simulator wrote."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.dashboards.heat.payload import by_steps
from megascope.dashboards.server import RunningServer, background_server
from megascope.heatmap.matrix import segment_matrix
from support.page_checks import Visit, drawn_spans, visit, wait_judged, wait_painted
from support.page_visits import cell_centre, open_heatmap

pytestmark = pytest.mark.timeout(120)

SLOW_RANK = 11

_CELLS = """() => {
    const { meta, arrays, columns } = window.megascope.widget("heatmap"), found = [];
    arrays.at.forEach((place, cell) => {
        if (place < 0) return;
        const numbers = ["value", "ratio", "worst"].map((name) => arrays[name][cell]);
        const step = meta.steps[arrays.worst_column[cell]];
        found.push([meta.ranks[place], Math.floor(cell / columns), cell % columns, step, ...numbers]);
    });
    return found;
}"""

_MIDDLE = """([row, column]) => {
    const { canvas, plot, window: shown } = window.megascope.widget("heatmap"), box = canvas.getBoundingClientRect();
    return [box.left + plot.x + ((column - shown.c0 + 0.5) * plot.width) / (shown.c1 - shown.c0),
            box.top + plot.y + ((row - shown.r0 + 0.5) * plot.height) / (shown.r1 - shown.r0)];
}"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 ranks on 4 hosts; rank 11 computes 1.4 times as long from step 6 on."""
    store = tmp_path_factory.mktemp("simulated") / "store"
    fault = f"slow-gpu:rank={SLOW_RANK}:factor=1.4:steps=6-"
    asked = ["--layout", "tp=4,pp=2,dp=4", "--steps", "45", "--microbatches", "4", "--fault", fault]
    assert main(["simulate", str(store), *asked]) == 0
    return store


@pytest.fixture(scope="module")
def server(job: Path) -> Iterator[RunningServer]:
    with background_server(job) as running:
        yield running


@pytest.fixture
def seen(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    with visit(browser, server.url) as found:
        yield found


def hosts_cells(page: Page) -> dict[int, dict[str, Any]]:
    """Rank -> row, column, worst step, value, ratio and worst ratio of its cell."""
    names = ("row", "column", "worst_step", "value", "ratio", "worst")
    return {rank: dict(zip(names, rest, strict=True)) for rank, *rest in page.evaluate(_CELLS)}


def test_from_a_hot_cell_to_the_timeline_to_3d_and_back(seen: Visit, job: Path) -> None:
    page = open_heatmap(seen, "?shape=hosts&order=worst")
    segment = page.evaluate("() => window.megascope.widget('heatmap').meta.segment")
    cells = hosts_cells(page)
    with Store(job) as store:
        matrix = segment_matrix(store, store.attempt(), segment)
    assert cells.keys() == set(matrix.ranks.tolist())
    for rank, cell in cells.items():
        ratios = matrix.ratio[rank]
        assert cell["value"] == pytest.approx(np.nanmean(matrix.values[rank]), rel=1e-5)
        assert cell["ratio"] == pytest.approx(np.nanmean(ratios), rel=1e-5)
        assert (cell["worst_step"], cell["worst"]) == (
            matrix.steps[np.nanargmax(ratios)],
            pytest.approx(np.nanmax(ratios), rel=1e-5),
        )
    hot = max(cells, key=lambda rank: cells[rank]["ratio"])
    assert hot == SLOW_RANK
    assert cells[hot]["row"] == 0, "the worst host comes first"
    place = page.evaluate(_MIDDLE, [cells[hot]["row"], cells[hot]["column"]])
    page.mouse.move(*place)
    page.wait_for_function(
        f"() => document.querySelector('.tooltip').innerText.includes('rank {hot}, mean of 45 steps')"
    )
    page.mouse.click(*place)
    page.wait_for_url(f"**/timeline?*rank={hot}*steps={cells[hot]['worst_step']}*")
    wait_painted(page, "timeline")
    assert any(span["rank"] == hot and span["step"] == cells[hot]["worst_step"] for span in drawn_spans(page))
    page.click("#nav-3d")
    page.wait_for_url(f"**/3d?*rank={hot}*")
    wait_painted(page, "scene")
    assert page.inner_text(".side h2").startswith(f"Rank {hot}:")
    page.go_back()
    page.go_back()
    page.wait_for_url("**/heatmap?shape=hosts&order=worst*")
    wait_painted(page, "heatmap")
    assert hosts_cells(page) == cells
    page.keyboard.down("Shift")
    page.mouse.click(*place)
    page.keyboard.up("Shift")
    page.wait_for_url(f"**/3d?*rank={hot}&moment=*")
    wait_painted(page, "scene")
    seen.check_clean()


def test_a_brush_restricts_picture_verdict_tables_and_csv(seen: Visit, tmp_path: Path) -> None:
    page = open_heatmap(seen, "?segment=forward")
    (left, y), (right, _) = cell_centre(page, 3, 0), cell_centre(page, 3, 5)
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move((left + right) / 2, y + 3)
    page.mouse.move(right, y + 3)
    assert page.inner_text(".brush") == "steps 0 to 5"
    page.mouse.up()
    page.wait_for_url("**steps=0:5*")
    page.wait_for_function("() => window.megascope.widget('heatmap').meta.steps.join() === '0,1,2,3,4,5'")
    wait_judged(page)
    banner = page.inner_text(".banner .sentence")
    assert banner.startswith("In steps 0 to 5:")
    assert f"Rank {SLOW_RANK}" not in banner, "it was not slow then"
    assert page.input_value("#field-steps") == "0:5"
    with page.expect_download() as download:
        page.click("#heatmap-csv")
    download.value.save_as(tmp_path / "heatmap.csv")
    with (tmp_path / "heatmap.csv").open() as file:
        assert {row["step"] for row in csv.DictReader(file)} == {str(step) for step in range(6)}
    with page.expect_download() as download:
        page.click("#heatmap-png")
    download.value.save_as(tmp_path / "heatmap.png")
    assert (tmp_path / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    page.keyboard.press("Escape")
    page.wait_for_function("() => window.megascope.widget('heatmap').meta.steps.length === 45")
    page.click("#heatmap-sql")
    page.wait_for_selector("#sql-result")
    assert page.inner_text("#sql-result tbody tr:first-child td:first-child") == str(SLOW_RANK)
    seen.check_clean()


def test_a_threshold_greys_all_below_it(seen: Visit) -> None:
    page = open_heatmap(seen, "?segment=forward&steps=10:30")
    page.fill("#field-above", "1.2")
    page.press("#field-above", "Enter")
    page.wait_for_function("() => window.megascope.widget('heatmap').above === 1.2")
    wait_painted(page, "heatmap")
    colours, grey = page.evaluate(
        """() => {
            const { meta, plot, rows, columns, context } = window.megascope.widget("heatmap");
            const x = Math.floor(plot.x + (10.25 * plot.width) / columns);
            const strip = context.getImageData(x, plot.y, 1, plot.height).data;
            const places = meta.ranks.map((rank, row) => 4 * Math.floor(((row + 0.25) * plot.height) / rows));
            return [places.map((at) => [...strip.slice(at, at + 3)]), window.megascope.colour("below")];
        }"""
    )
    quiet = [int(grey[at : at + 2], 16) for at in (1, 3, 5)]
    assert [rank for rank, colour in enumerate(colours) if colour != quiet] == [SLOW_RANK]
    assert "21 cells of 1 ranks are at x1.2 or more" in page.inner_text("main")
    seen.check_clean()


def test_no_hot_cell_of_a_fleet_is_lost(seen: Visit) -> None:
    """12,288 ranks x 100 steps: three single hot cells reach the canvas, each where it belongs."""
    random = np.random.default_rng(3)
    ratio = np.exp(random.normal(0, 0.01, (12288, 100)))
    planted = {(17, 3): 1.5, (6001, 50): 1.3, (12287, 99): 1.4}
    for place, value in planted.items():
        ratio[place] = value
    peers = np.full_like(ratio, 40.0)
    planes = {"value": 40.0 * ratio, "peers": peers, "ratio": ratio, "z": np.log(ratio) / 0.01}
    meta = {
        "segment": "forward", "metric": "self time", "unit": "ms", "show": "ratio", "shape": "steps", "over": "mean",
        "ranks": list(range(12288)), "steps": list(range(100)), "step_width": 1, "part_s": None,
        "hosts": [f"node{rank // 8:04}" for rank in range(12288)], "places": [""] * 12288, "sections": [],
        "moments": [None] * 100, "link": "", "job": "run=fleet",
    }  # fmt: skip
    payload = by_steps(meta, planes, "ratio")
    seen.page.route(
        "**/data/heatmap**", lambda route: route.fulfill(body=payload, content_type="application/octet-stream")
    )
    page = open_heatmap(seen, "?segment=forward")
    for (rank, step), value in planted.items():
        place, colour = page.evaluate(
            """([rank, step]) => {
                const widget = window.megascope.widget("heatmap"), { canvas, context, layer } = widget;
                const { ny, r0, r1 } = widget.binned, [high] = layer.bin, bin = Math.floor(widget.rowOf(rank) / high);
                const element = Math.floor((bin * ny) / Math.round((r1 - r0) / high));
                const x = widget.xOf(widget.look.columnsIn(step, step)[0] + 0.5);
                const y = widget.yOf(r0 + ((element + 0.5) * (r1 - r0)) / ny);
                const box = canvas.getBoundingClientRect();
                const { data } = context.getImageData(Math.floor(x), Math.floor(y), 1, 1);
                return [[box.left + x, box.top + y], [...data]];
            }""",
            [rank, step],
        )
        assert colour[0] - colour[2] > 90, f"rank {rank} is not hot: {colour}"
        page.mouse.move(*place)
        page.wait_for_function(
            f"() => document.querySelector('.tooltip').innerText.includes('rank {rank}, step {step} ')"
        )
        shown = page.inner_text(".tooltip").split("ratio")[1].split()[0]
        assert math.isclose(float(shown.removesuffix("x")), value, rel_tol=1e-2)
