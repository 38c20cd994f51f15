"""What is drawn on the Timeline of how far the hosts' clocks may be off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from megascope.dashboards.server import background_server
from support.meeting_job import MeetingJob
from support.page_checks import visit
from support.page_visits import open_timeline, the

pytestmark = pytest.mark.timeout(120)

# Of the line on top of each rank's first lane: first and last place in the colour of uncertainty, right of the labels.
_BANDS = """() => {
    const w = window.megascope.widget("timeline"), { LEFT, AXIS } = window.megascope.TimelinePainter.SIZES;
    const copy = document.createElement("canvas");
    Object.assign(copy, { width: w.canvas.width, height: w.canvas.height });
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(w.canvas, 0, 0);
    const quiet = [1, 3, 5].map((at) => parseInt(window.megascope.colour("quiet").slice(at, at + 2), 16));
    return w.model.lanes.filter((lane) => lane.first).map((lane) => {
        const { data } = pen.getImageData(LEFT, AXIS + lane.top - w.scroll - 3, w.plotWidth, 1), inside = [];
        for (let x = 0; x < w.plotWidth; x++) {
            if (quiet.every((part, at) => Math.abs(data[4 * x + at] - part) <= 2)) inside.push(x + LEFT);
        }
        return [lane.rank, inside[0] ?? null, inside[inside.length - 1] ?? null, inside.length];
    });
}"""

_TEXTS = """() => {
    const w = window.megascope.widget("timeline"), texts = [], { prototype } = CanvasRenderingContext2D;
    const original = prototype.fillText;
    prototype.fillText = function (text, ...more) { texts.push(text); return original.call(this, text, ...more); };
    w.draw();
    prototype.fillText = original;
    return texts;
}"""


def bands(page: Page) -> dict[int, list[Any]]:
    """Rank to [first place, last place, how many] in pixels; None and 0 where nothing is drawn."""
    return {rank: found for rank, *found in page.evaluate(_BANDS)}


def job() -> MeetingJob:
    """Three ranks on two hosts work for 20 ms and meet."""
    found = MeetingJob(3, hosts=("a", "a", "b"))
    for rank in range(3):
        found.add("forward", rank, 0, 20)
    found.meet([20, 20, 20], 22)
    return found


@pytest.mark.parametrize(("uncertainty_ms", "label"), [(0.5, "±500 us"), (3.0, "±3 ms")])
def test_the_uncertainty_is_drawn_to_scale(browser: Browser, tmp_path: Path, uncertainty_ms: float, label: str) -> None:
    job().write(tmp_path / "store", uncertainty_ms).close()
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = open_timeline(seen, "?axis=all&t=-0.005:0.025")
        width, start = the(page, "[w.plotWidth, w.x(0)]")
        spread = uncertainty_ms * width / 30
        found = bands(page)
        assert found.keys() == {0, 1, 2}
        for rank, (first, last, count) in found.items():
            assert first == pytest.approx(start - spread, abs=2), rank
            assert last == pytest.approx(start + spread, abs=2), rank
            assert count == pytest.approx(2 * spread, abs=3), f"rank {rank}: the band has holes"
        texts = page.evaluate(_TEXTS)
        assert sum(text.startswith(label) for text in texts) == 3, texts
        seen.check_clean()


def test_a_clock_that_is_not_known_has_no_band_and_says_so(browser: Browser, tmp_path: Path) -> None:
    job().write(tmp_path / "store").close()
    with background_server(tmp_path / "store") as server, visit(browser, server.url) as seen:
        page = open_timeline(seen, "?axis=all&t=-0.005:0.025")
        assert max(count for _, _, count in bands(page).values()) <= 1, "more than the line where the step begins"
        texts = " ".join(page.evaluate(_TEXTS))
        assert "own clock" in texts
        assert "±" not in texts
        seen.check_clean()
