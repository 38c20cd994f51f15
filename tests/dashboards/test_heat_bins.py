"""Large heatmaps are binned by their hottest cells: bounded, and no hot cell is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from megascope.dashboards.binary import unpack
from megascope.dashboards.heat import bins as heat_bins
from megascope.dashboards.heat.bins import MOST_CELLS, bin_size, hottest
from megascope.dashboards.heat.data import choose, matrix_of
from megascope.dashboards.heat.payload import heat_payload
from megascope.dashboards.server import background_server
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import UsageError
from support.page_checks import visit
from support.page_visits import open_heatmap


@settings(deadline=None)
@given(st.integers(1, 110_000), st.integers(1, 110_000))
def test_what_is_sent_is_bounded(rows: int, columns: int) -> None:
    high, wide = bin_size(rows, columns)
    assert -(-rows // high) * -(-columns // wide) <= MOST_CELLS
    assert (high, wide) == (1, 1) or rows * columns > MOST_CELLS
    assert high == 1 or -(-rows // high) >= 220
    assert wide == 1 or -(-columns // wide) >= 128


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_every_bin_keeps_its_hottest_cell(rows: int, columns: int, high: int, wide: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    shown = np.where(random.random((rows, columns)) < 0.4, np.nan, random.random((rows, columns)))
    row, column = hottest(shown, (high, wide))
    assert row.shape == column.shape == (-(-rows // high), -(-columns // wide))
    for (y, x), at in np.ndenumerate(row):
        block = shown[y * high : (y + 1) * high, x * wide : (x + 1) * wide]
        if np.isnan(block).all():
            assert at == column[y, x] == -1
        else:
            assert shown[at, column[y, x]] == np.nanmax(block)
            assert (at // high, column[y, x] // wide) == (y, x)


@pytest.fixture
def small_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_CELLS": 100, "BIN_ROWS": 4, "BIN_COLUMNS": 5}.items():
        monkeypatch.setattr(heat_bins, name, value)


@pytest.mark.usefixtures("small_bins")
def test_the_payload_of_a_large_matrix_names_the_cell_of_each_bin(bench: Workbench) -> None:
    attempt = bench.attempt(View())
    view = View(segment="forward")
    matrix = matrix_of(bench, attempt, choose(view, bench, attempt))
    meta, arrays = unpack(heat_payload(bench, attempt, view))
    assert (meta["bin"], len(meta["ranks"]), len(meta["steps"])) == ([2, 6], 8, 30)
    assert arrays["ratio"].shape == (4 * 5,)
    np.testing.assert_allclose(arrays["ratio"], matrix.ratio[arrays["row"], arrays["column"]], rtol=1e-5)
    assert set(arrays["row"].reshape(4, 5)[2, 2:]) == {5}
    assert np.nanmax(arrays["ratio"]) == pytest.approx(np.nanmax(matrix.ratio))


@pytest.mark.usefixtures("small_bins")
def test_a_zoom_has_its_single_cells(bench: Workbench) -> None:
    attempt, view = bench.attempt(View()), View(segment="forward", order="worst")
    whole, _ = unpack(heat_payload(bench, attempt, view))
    matrix = matrix_of(bench, attempt, choose(view, bench, attempt))
    meta, arrays = unpack(heat_payload(bench, attempt, replace(view, zoom=(1, 3, 10, 14))))
    assert "bin" not in meta
    assert (meta["ranks"], meta["steps"]) == (whole["ranks"][1:4], [10, 11, 12, 13, 14])
    assert (len(meta["hosts"]), len(meta["places"]), len(meta["moments"])) == (3, 3, 5)
    rows, columns = np.searchsorted(matrix.ranks, meta["ranks"]), np.searchsorted(matrix.steps, meta["steps"])
    for name, plane in {"value": matrix.values, "ratio": matrix.ratio, "z": matrix.z}.items():
        np.testing.assert_allclose(arrays[name].reshape(3, 5), plane[np.ix_(rows, columns)], rtol=1e-5)
    # What reaches over the edge is cut, and what lies beyond it is refused.
    meta, _ = unpack(heat_payload(bench, attempt, replace(view, zoom=(6, 900, 28, 900))))
    assert (len(meta["ranks"]), meta["steps"]) == (2, [28, 29])
    for beyond in ((8, 9, 0, 5), (0, 1, 30, 40)):
        with pytest.raises(UsageError, match="no such rows and steps"):
            heat_payload(bench, attempt, replace(view, zoom=beyond))


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("small_bins")
def test_a_binned_page_marks_the_culprit_and_a_click_leads_to_it(browser: Browser, slow_store: Path) -> None:
    with background_server(slow_store) as server, visit(browser, server.url) as seen:
        page = open_heatmap(seen)
        place, rank, step = page.evaluate(
            """() => {
                const widget = window.megascope.widget("heatmap"), { layer, arrays, meta } = widget;
                const box = widget.canvas.getBoundingClientRect();
                const cell = Math.floor(widget.rowOf(5) / layer.bin[0]) * layer.columns + layer.columns - 1;
                return [[box.left + widget.xOf(widget.columns - 0.5 * layer.bin[1]),
                         box.top + widget.yOf(widget.rowOf(5) + 0.5)],
                        meta.ranks[arrays.row[cell]], meta.steps[arrays.column[cell]]];
            }"""
        )
        assert rank == 5
        assert 24 <= step <= 29
        assert "the hottest of 2 ranks x 6 columns" in page.inner_text("main")
        page.mouse.move(*place)
        page.wait_for_function(f"() => document.body.innerText.includes('rank 5, step {step} (the hottest here)')")
        page.keyboard.press("w")
        page.keyboard.press("0")
        page.mouse.click(*place)
        page.wait_for_url(f"**/timeline?*rank=5*steps={step}**")
        seen.check_clean()
