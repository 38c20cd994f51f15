"""Helpers of the MFU tests: stores that hold step times alone, reports as text, and whether a report adds up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.heatmap.mfu.report import render
from megascope.heatmap.mfu.result import MfuReport

START_NS = 1_790_000_000 * 10**9


def log_store(
    root: Path, took_ms: dict[int, float], *, tokens: int | None = None, attempt: int = 0, start_ns: int = START_NS
) -> Store:
    """Step times alone, as a log has them."""
    steps = sorted(took_ms)
    starts = start_ns + attempt * 3600 * 10**9 + np.cumsum([0, *(took_ms[step] for step in steps[:-1])]) * 1e6
    with TableWriter(root, f"log{attempt}") as writer:
        rows = {
            "rank": [0] * len(steps),
            "step": steps,
            "start_ns": starts.astype(np.int64).tolist(),
            "duration_ns": [round(took_ms[step] * 1e6) for step in steps],
        }
        writer.write("steps", "log", attempt, rows | ({"tokens": [tokens] * len(steps)} if tokens else {}))
        writer.commit()
    return Store(root)


def printed(report: MfuReport, folder: Path) -> str:
    with (folder / "out").open("w", encoding="utf-8") as file:
        Console(width=140, file=file).print(render(report))
    return (folder / "out").read_text(encoding="utf-8")


def assert_adds_up(report: MfuReport) -> None:
    assert sum(row.growth_ms for row in report.growth) == pytest.approx(report.growth_ms, rel=1e-3, abs=1e-3)
    for one in report.bins:
        if one.growth:
            best = next(each.step_ms for each in report.bins if each.is_reference)
            listed = sum(row.growth_ms for row in one.growth)
            assert listed == pytest.approx(one.step_ms - best, rel=0.15, abs=0.2)
