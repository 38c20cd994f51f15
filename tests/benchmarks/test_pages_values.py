"""What the page benchmarks report: clicks that nothing before them has answered, cold visits apart from warm ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser

from benchmarks import pages_fleet, pages_timeline
from benchmarks.pages import summary
from megascope.dashboards.heat.percentiles import PERCENTILES
from megascope.trainer.simulator.spans import SEGMENTS

BROWSER = cast("Browser", None)


class PageOfServer:
    """A page whose server has read the first picture; a click takes the longer, the more pages there were before."""

    def __init__(self, url: str) -> None:
        self.url, self.shown = url, {"segment": "forward", "metric": None, "steps": None}
        self.read: list[dict[str, Any]] = [self.shown]
        self.asked: list[tuple[dict[str, Any], bool]] = []

    def evaluate(self, _script: str, changes: dict[str, Any]) -> float:
        self.shown = self.shown | changes
        self.asked.append((self.shown, self.shown not in self.read))
        self.read.append(self.shown)
        return 100.0 * int(self.url) + len(self.asked)

    def wait_for_timeout(self, _ms: int) -> None:
        """Nothing goes on behind it."""

    def check_clean(self) -> None:
        """Nothing went wrong."""


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[PageOfServer]:
    found: list[PageOfServer] = []

    @contextlib.contextmanager
    def server(_store: Path) -> Iterator[str]:
        yield str(len(found))

    @contextlib.contextmanager
    def visit(_browser: Browser, url: str) -> Iterator[PageOfServer]:
        found.append(PageOfServer(url))
        yield found[-1]

    monkeypatch.setattr(pages_fleet, "server_process", server)
    monkeypatch.setattr(pages_fleet, "visit", visit)
    monkeypatch.setattr(pages_fleet, "_opened", lambda seen: (seen, 0.0, 0.0))
    return found


def test_each_measured_click_asks_for_what_its_server_has_not_read(pages: list[PageOfServer], tmp_path: Path) -> None:
    values = pages_fleet.measure_first_asked(BROWSER, tmp_path, 3)
    assert [page.url for page in pages] == ["0", "1", "2"]
    for page in pages:
        new = [shown for shown, is_new in page.asked if is_new]
        assert [(one["segment"], one["metric"], one["steps"]) for one in new] == [
            ("backward", None, None),
            ("forward", "p99", None),
            ("forward", None, "300:599"),
        ]
    assert values == {
        "other_segment_ms": 101.0, "other_segment_worst_ms": 201.0,
        "p99_ms": 103.0, "p99_worst_ms": 203.0,
        "other_steps_ms": 105.0, "other_steps_worst_ms": 205.0,
    }  # fmt: skip


def test_the_clicks_are_ones_that_the_fleet_has() -> None:
    changes = [there for there, _ in pages_fleet.FIRST_ASKED.values()]
    assert all(one["segment"] in SEGMENTS for one in changes if "segment" in one)
    assert all(one["metric"] in PERCENTILES for one in changes if "metric" in one)
    brushed = [[int(part) for part in str(one["steps"]).split(":")] for one in changes if "steps" in one]
    assert all(first < last < pages_fleet.STEPS for first, last in brushed)


def test_the_first_visit_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = {"first_paint_ms": 900.0, "verdict_ms": 4000.0}
    warm = [{"first_paint_ms": 500.0 + turn, "verdict_ms": 510.0 + turn} for turn in range(3)]
    expected = {
        "first_paint_ms": 501.0, "verdict_ms": 511.0, "first_paint_cold_ms": 900.0, "verdict_cold_ms": 4000.0,
    }  # fmt: skip
    assert summary(cold, warm) == expected | {"first_paint_worst_ms": 502.0}
    visits = iter([cold, *warm])
    monkeypatch.setattr(pages_fleet, "_visit", lambda _browser, _url: next(visits) | {"zoom_to_cells_ms": 30.0})
    assert pages_fleet.measure_fleet(BROWSER, "", 3).items() >= (expected | {"zoom_to_cells_ms": 30.0}).items()


class MovedPage:
    """The timeline's page, on which all ranks are drawn at once after the key for that."""

    def __init__(self) -> None:
        self.keyboard, self.fitted = self, False

    def press(self, key: str) -> None:
        self.fitted |= key == "f"

    def evaluate(self, script: str, _steps: str = "") -> Any:
        if "pan(" in script:
            return (20.0, 30.0, 64) if self.fitted else (60.0, 3.0, 12)
        return 190.0 if "searchParams" in script else 128_000

    def go(self, _path: str) -> MovedPage:
        return self

    def check_clean(self) -> None:
        """Nothing went wrong."""


def test_moving_all_ranks_on_one_screen_is_a_value_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def visit(_browser: Browser, _url: str) -> Iterator[MovedPage]:
        yield MovedPage()

    monkeypatch.setattr(pages_timeline, "visit", visit)
    for name in ("wait_painted", "wait_judged", "_wait_links"):
        monkeypatch.setattr(pages_timeline, name, lambda *_: None)
    values = pages_timeline.measure_timeline(BROWSER, "", 2)
    assert (values["pan_fps"], values["fit_pan_fps"], values["fit_pan_frame_ms"]) == (60.0, 20.0, 30.0)
