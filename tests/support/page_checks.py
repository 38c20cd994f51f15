"""Looks at the pages with a real browser, and compares what is drawn there with what is in the store.

`check_all_pages` does everything for any store; the single checks are there for tests of their own.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

from megascope.collectors.reading.store import Attempt, Store
from megascope.dashboards.server import background_server
from megascope.heatmap.matrix import Matrix, segment_matrix

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATHS = {"overview": "/", "heatmap": "/heatmap", "timeline": "/timeline", "3d": "/3d", "sql": "/sql"}
WIDGETS = {"overview": "curves", "heatmap": "heatmap", "timeline": "timeline", "3d": "scene"}
TIMEOUT_MS = 30_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; raises RuntimeError where there is none."""
    path = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if path is None:
        raise RuntimeError("There is no Chromium on this machine: install one for the page tests (make chromium).")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Visit:
    """An open page, and everything that went wrong on it."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        """Open an address below the server's."""
        self.page.goto(self.base + path)
        return self.page

    def check_clean(self) -> None:
        """No console message, no exception, no failed request, and no request to another host."""
        assert not self.problems, self.problems


@contextmanager
def visit(browser: Browser, url: str, *, dark: bool = False, width: int = 1280, height: int = 720) -> Iterator[Visit]:
    """A fresh browser context (cold cache) on a server; whatever goes wrong in it is noted."""
    parts = urlsplit(url)
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    found = Visit(page, f"{parts.scheme}://{parts.netloc}")

    def on_console(message: ConsoleMessage) -> None:
        found.problems.append(f"console {message.type}: {message.text}")

    def on_request(request: Request) -> None:
        if urlsplit(request.url).scheme not in {"data", "blob"} and not request.url.startswith(found.base + "/"):
            found.problems.append(f"request to another host: {request.url}")

    def on_response(answer: Response) -> None:
        if answer.status >= 500:
            found.problems.append(f"answer {answer.status}: {answer.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.problems.append(f"exception: {error}"))
    page.on("request", on_request)
    page.on("response", on_response)
    try:
        yield found
    finally:
        context.close()


def wait_painted(page: Page, widget: str) -> None:
    """Wait until a widget has drawn the data of the source that it stands for now."""
    page.wait_for_function(
        """kind => {
            const element = document.querySelector(`[data-widget="${kind}"]`);
            return element && element.dataset.painted && element.dataset.painted === element.dataset.source;
        }""",
        arg=widget,
    )


def wait_judged(page: Page) -> None:
    """Wait until no analysis is on its way any more."""
    page.wait_for_function("() => !document.body.innerText.includes('ANALYSING') && document.querySelector('.banner')")


# -- what is drawn ------------------------------------------------------------------------------------------------


def drawn_cells(page: Page) -> dict[tuple[int, int], dict[str, float | None]]:
    """(rank, step) -> value, peers, ratio, z of every cell that the heatmap's canvas holds; None is missing."""
    cells = page.evaluate(
        """() => {
            const { meta, arrays, columns } = window.megascope.widget("heatmap"), found = [];
            const number = (value) => Number.isNaN(value) ? null : value;
            meta.ranks.forEach((rank, row) => meta.steps.forEach((step, column) => {
                const at = row * columns + column;
                found.push([rank, step, ...["value", "peers", "ratio", "z"].map((name) => number(arrays[name][at]))]);
            }));
            return found;
        }"""
    )
    names = ("value", "peers", "ratio", "z")
    return {(rank, step): dict(zip(names, numbers, strict=True)) for rank, step, *numbers in cells}


def drawn_pixels(page: Page) -> dict[tuple[int, int], list[int]]:
    """(rank, step) -> colour [red, green, blue] in the middle of each cell, as it stands on the canvas."""
    pixels = page.evaluate(
        """() => {
            const widget = window.megascope.widget("heatmap"), { meta, plot, window: shown, context } = widget;
            const scale = window.devicePixelRatio, found = [];
            for (let row = shown.r0; row < shown.r1; row++) for (let column = shown.c0; column < shown.c1; column++) {
                const x = plot.x + ((column - shown.c0 + 0.5) * plot.width) / (shown.c1 - shown.c0);
                const y = plot.y + ((row - shown.r0 + 0.5) * plot.height) / (shown.r1 - shown.r0);
                const at = [Math.floor(x * scale), Math.floor(y * scale)];
                const [red, green, blue] = context.getImageData(...at, 1, 1).data;
                found.push([meta.ranks[row], meta.steps[column], [red, green, blue]]);
            }
            return found;
        }"""
    )
    return {(rank, step): colour for rank, step, colour in pixels}


def drawn_spans(page: Page) -> list[dict[str, Any]]:
    """Every span that the timeline's canvas holds; times in ns from ``base_ns``, None is missing."""
    spans: list[dict[str, Any]] = page.evaluate(
        """() => {
            const { model } = window.megascope.widget("timeline");
            return model.rows().map((row) => ({ ...row, base_ns: String(model.base) }));
        }"""
    )
    return spans


# -- against the store --------------------------------------------------------------------------------------------

_CELLS = """
    SELECT rank, step, avg(self_ns) / 1e6 AS value FROM spans
    WHERE segment_name = ? AND step IS NOT NULL AND status = 'ok' AND self_ns IS NOT NULL
    GROUP BY rank, step
"""

_SPANS = """
    SELECT events.*, segments.name AS segment_name, segments.kind AS kind
    FROM events_aligned events JOIN segments USING (segment)
    WHERE list_contains(?, rank) AND step BETWEEN ? AND ?
"""


def check_heatmap(page: Page, store: Store, attempt: Attempt) -> int:
    """Compare every drawn cell of self time; return how many have a value.

    Its value is compared with the mean of its spans, and value, peers, ratio and z with the matrix.
    """
    segment = page.evaluate("() => window.megascope.widget('heatmap').meta.segment")
    stored = {(row["rank"], row["step"]): row["value"] for row in store.query(_CELLS, [segment], attempt).to_pylist()}
    drawn = drawn_cells(page)
    assert stored, f"no spans of {segment}"
    assert stored.keys() <= drawn.keys()
    for place, cell in drawn.items():
        assert _same(cell["value"], stored.get(place)), (place, cell["value"], stored.get(place))
    _check_matrix(drawn, segment_matrix(store, attempt, segment))
    return len(stored)


def _check_matrix(drawn: dict[tuple[int, int], dict[str, float | None]], matrix: Matrix) -> None:
    planes = {"value": matrix.values, "peers": matrix.peers_median, "ratio": matrix.ratio, "z": matrix.z}
    expected = {
        (int(rank), int(step)): {name: float(plane[row, column]) for name, plane in planes.items()}
        for row, rank in enumerate(matrix.ranks)
        for column, step in enumerate(matrix.steps)
    }
    assert expected.keys() <= drawn.keys()
    recorded = set(matrix.ranks.tolist())
    for place, cell in drawn.items():
        known = place in expected
        assert known or place[0] not in recorded, place  # ranks of which nothing came are drawn as missing
        for name, value in (expected[place] if known else dict.fromkeys(planes, math.nan)).items():
            assert _same(cell[name], value if math.isfinite(value) else None), (place, name, cell[name], value)


def _same(drawn: float | None, stored: float | None) -> bool:
    """Equal to what float32 holds, or both missing."""
    if drawn is None or stored is None:
        return drawn is stored
    return math.isclose(drawn, stored, rel_tol=1e-5, abs_tol=1e-6)


def check_timeline(page: Page, store: Store, attempt: Attempt) -> int:
    """Compare every drawn span with the row of the store, field by field; return how many there are."""
    shown = page.evaluate("() => { const { meta } = window.megascope.widget('timeline').model; return meta; }")
    first, _, last = shown["range"].partition(":")
    ranks = sorted({rank for rank, _ in shown["lanes"]})
    rows = store.query(_SPANS, [ranks, int(first), int(last)], attempt).to_pylist()
    stored = sorted(_span_key(row, 0) for row in rows)
    drawn = sorted(_drawn_key(span) for span in drawn_spans(page) if span["status"] != "in flight")
    assert drawn == stored
    _check_no_overlap(drawn_spans(page))
    return len(drawn)


_FIELDS = {
    "duration": "duration_ns",
    "self": "self_ns",
    "exposed": "exposed_ns",
    "step": "step",
    "microbatch": "microbatch",
    "chunk": "chunk",
    "peer": "peer",
    "sequence": "sequence",
    "size": "size_bytes",
}


def _span_key(row: dict[str, Any], base: int) -> tuple[Any, ...]:
    numbers = tuple(_sortable(row[column]) for column in _FIELDS.values())
    start = row["host_start_ns"] if row["start_ns"] is None else row["start_ns"]  # of a host that cannot be aligned
    return (row["rank"], start - base, row["segment_name"], row["status"], *numbers)


def _drawn_key(span: dict[str, Any]) -> tuple[Any, ...]:
    numbers = tuple(_sortable(span[name]) for name in _FIELDS)
    start = int(span["base_ns"]) + int(span["start"])
    return (span["rank"], start, span["segment"], span["status"], *numbers)


def _sortable(value: float | None) -> tuple[bool, float]:
    return (value is not None, 0 if value is None else value)


def _check_no_overlap(spans: list[dict[str, Any]]) -> None:
    """Spans of one row of one lane never lie on each other, but for the drift of clocks: none is hidden."""
    rows: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for span in spans:
        end = span["start"] + (span["duration"] or 0)
        rows.setdefault((span["rank"], span["lane"], span["row"]), []).append((span["start"], end))
    for place, intervals in rows.items():
        intervals.sort()
        for (begin, end), (start, _) in itertools.pairwise(intervals):
            assert end <= start + 1e-4 * (end - begin), f"two spans overlap in {place}"


def check_all_pages(browser: Browser, store_path: Path, *, dark: Sequence[bool] = (False, True)) -> dict[str, int]:
    """Serve a store, open every page in light and dark, and compare heatmap and timeline with the store.

    Returns how many cells and spans were compared.
    """
    compared: dict[str, int] = {}
    store = Store(store_path)
    attempt = store.attempt()
    with background_server(store_path) as server:
        for is_dark in dark:
            with visit(browser, server.url, dark=is_dark) as seen:
                for name, path in PATHS.items():
                    seen.go(path)
                    if name in WIDGETS:
                        wait_painted(seen.page, WIDGETS[name])
                        wait_judged(seen.page)
                    else:
                        seen.page.wait_for_selector("#sql-run")
                    assert not seen.page.locator("text=Cannot show this").count(), seen.page.inner_text("main")
                    if name == "heatmap":
                        wait_painted(seen.page, "heatmap")
                        compared["cells"] = check_heatmap(seen.page, store, attempt)
                    if name == "timeline":
                        compared["spans"] = check_timeline(seen.page, store, attempt)
                seen.check_clean()
    store.close()
    return compared
