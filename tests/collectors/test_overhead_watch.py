"""The agent's own view of what recording costs: right for a known cost, bounded, and silent without news."""

from __future__ import annotations

from typing import Any

import pytest

from megascope.collectors.drains.overhead_watch import KEPT_RANKS, KEPT_STEPS, OverheadWatch
from megascope.profiler.cadence import Cadence

CADENCE = Cadence("run", 1, 20)


def _rows(first: int, count: int, cost: float = 0.01) -> list[dict[str, Any]]:
    shadows = {step: not CADENCE.is_timed(step) for step in range(first, first + count)}
    return [
        {"step": step, "duration_ns": round(1e9 if shadow else 1e9 * (1 + cost)), "shadow": shadow}
        for step, shadow in shadows.items()
    ]


def _values(watch: OverheadWatch, *, is_over: bool = True) -> dict[str, tuple[float | None, str | None]]:
    return {row["metric"]: (row["value"], row["flag"]) for row in watch.take(is_over=is_over)}


def test_a_known_cost_is_told_once_it_is_time() -> None:
    watch = OverheadWatch(every_s=0)
    for rank in range(3):
        watch.add(rank, _rows(0, 400))
    found = _values(watch, is_over=False)
    assert list(found) == [f"recording_overhead_percent{part}" for part in ("", "_low", "_high")]
    for value, flag in found.values():
        assert value == pytest.approx(1.0)
        assert flag is None
    assert _values(watch) == {}, "nothing has come since"
    watch.add(0, _rows(400, 1))
    assert len(_values(watch)) == 3
    late = OverheadWatch(every_s=1000)
    late.add(0, _rows(0, 400))
    assert _values(late, is_over=False) == {}
    assert len(_values(late)) == 3, "the end does not wait"


def test_too_few_steps_are_no_value_and_steps_without_a_sort_are_none() -> None:
    watch = OverheadWatch()
    assert _values(watch) == {}
    watch.add(0, [{"step": 1, "duration_ns": 5}, {"step": 2, "duration_ns": None, "shadow": True}])
    assert _values(watch) == {}
    watch.add(0, _rows(0, 30))
    assert set(_values(watch).values()) == {(None, "blank")}


def test_memory_is_bounded_and_the_newest_steps_count() -> None:
    watch = OverheadWatch()
    for rank in range(KEPT_RANKS + 8):
        watch.add(rank, _rows(0, KEPT_STEPS, cost=0.5))
    for first in range(KEPT_STEPS, 4 * KEPT_STEPS, 50):
        watch.add(3, _rows(first, 50, cost=0.02))
    kept = watch._durations
    assert sorted(kept) == list(range(3 * KEPT_STEPS, 4 * KEPT_STEPS))
    assert watch._shadows <= kept.keys()
    watch.add(0, _rows(4 * KEPT_STEPS, KEPT_STEPS))
    assert {rank for found in kept.values() for rank in found} <= set(range(KEPT_RANKS))
    (value, _), *_ = _values(watch).values()
    assert value == pytest.approx(1.0)


def test_the_newest_row_of_a_step_counts() -> None:
    watch = OverheadWatch()
    rows = _rows(0, 400)
    watch.add(0, [{**row, "duration_ns": 7} for row in rows])
    watch.add(0, rows)
    (value, _), *_ = _values(watch).values()
    assert value == pytest.approx(1.0)
