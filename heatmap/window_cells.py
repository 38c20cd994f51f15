"""What the straggler analysis looks at, from rollups alone: a column is a window of steps, averaged per step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..collectors.reading.kept import kept
from ..collectors.reading.store import Attempt, Store
from ..profiler.vocabulary import WAITING_KINDS
from .cells import NS_PER_MS, SegmentCells
from .peers import FloatArray, IntArray, Placement, column_median
from .windows import COARSEST, FINEST, WindowGrid, load_grid, segment_ids

_RANKS_SAMPLED = 512
"""Ranks whose step times are read, in one block: a step of a job that meets in every step is nearly as long for all."""


@dataclass(frozen=True, slots=True)
class WindowCells:
    """Cells of segments over ranks and windows; ``waits_ms`` [R, W] is None where no communication was waited for."""

    cells: tuple[SegmentCells, ...]
    first_steps: IntArray
    step_ms: FloatArray
    waits_ms: FloatArray | None
    last_step: int | None = None
    """Last step that was recorded; None where no step times are stored."""


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """Steps in every window [W]: how many were timed (the last one of a job that runs is not complete), and their mean
    time in ms, NaN where no step times are stored."""

    timed: FloatArray
    mean_ms: FloatArray
    last_step: int | None


def ranks_of(store: Store, attempt: Attempt, placement: Placement) -> IntArray:
    """Ranks of the attempt, ascending: those that have a place, and those that have rollups without one."""
    if attempt.world_size and len(placement.ranks) >= attempt.world_size:
        return placement.ranks
    sql = f"SELECT DISTINCT rank FROM rank_windows WHERE window_steps = {COARSEST}"
    found = store.query(sql, attempt=attempt)["rank"].to_numpy().astype(np.int64)
    return np.union1d(placement.ranks, found)


def segment_cells(
    store: Store,
    attempt: Attempt,
    ranks: IntArray,
    first_steps: IntArray,
    *,
    metric: str = "self",
    names: Collection[str] = (),
    kinds: Collection[str] = (),
    width: int = FINEST,
) -> list[SegmentCells]:
    """One `SegmentCells` a segment that was measured, by name and kind; totals and counts are per step of the window.

    Chunks are not told apart, and when spans began is not known: ``first_ns`` and ``last_ns`` are NaN.
    ``metric`` is self, duration, exposed or count; ``width`` is the length of the windows.
    """
    known = segment_ids(store, attempt, names, kinds)
    by_key: dict[tuple[str, str], list[int]] = {}
    for row in known.to_pylist():
        by_key.setdefault((row["name"], row["kind"]), []).append(row["segment"])
    timed = load_steps(store, attempt, first_steps, int(ranks[0]) if len(ranks) else 0, width).timed
    of = "duration" if metric == "count" else metric
    unknown = np.broadcast_to(np.nan, (len(ranks), len(first_steps)))
    result = []
    for (name, kind), segments in sorted(by_key.items(), key=str):
        grid = load_grid(store, attempt, segments, ranks, first_steps, metric=of, window_steps=width)
        if grid.count.any():
            total, count = _per_step(grid, timed)
            result.append(SegmentCells(name, kind, ranks, first_steps, total, count, unknown, unknown, 0, width))
    return result


def _per_step(grid: WindowGrid, timed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Total in ms, NaN where nothing was measured, and count, both [1, R, W], for each of the ``timed`` steps [W]."""
    total = np.where(grid.count > 0, grid.sum_ns / (NS_PER_MS * timed), np.nan)
    return total[None], grid.count[None] / timed


def observe_windows(
    store: Store, attempt: Attempt, ranks: IntArray, first_steps: IntArray, kinds: Sequence[str], width: int
) -> WindowCells:
    """Cells of the given kinds of work, with the waiting and the step times that belong to them."""
    cells = tuple(segment_cells(store, attempt, ranks, first_steps, kinds=kinds, width=width))
    steps = load_steps(store, attempt, first_steps, int(ranks[0]) if len(ranks) else 0, width)
    waits, step_ms = _waits(store, attempt, ranks, first_steps, width, steps.timed), steps.mean_ms
    if cells and not np.isfinite(step_ms).all():
        busy = np.nansum(np.stack([one.per_step_ms() for one in cells]), axis=0)
        whole = busy if waits is None else busy + np.nan_to_num(waits)
        step_ms = np.where(np.isfinite(step_ms), step_ms, column_median(np.where(whole > 0, whole, np.nan)))
    return WindowCells(cells, first_steps, step_ms, waits, steps.last_step)


def _waits(
    store: Store, attempt: Attempt, ranks: IntArray, first_steps: IntArray, width: int, timed: FloatArray
) -> FloatArray | None:
    """Exposed time in communication per step, [R, W]; None where none was recorded."""
    communication = segment_ids(store, attempt, kinds=[str(kind) for kind in WAITING_KINDS])
    total, count = np.zeros((len(ranks), len(first_steps))), np.zeros((len(ranks), len(first_steps)))
    for segment in communication["segment"].to_pylist():  # one by one: memory for a matrix, not for all
        grid = load_grid(store, attempt, [segment], ranks, first_steps, metric="exposed", window_steps=width)
        total += grid.sum_ns
        count += grid.count
    waits: FloatArray = np.where(count > 0, total / (NS_PER_MS * timed), np.nan)
    return waits if count.any() else None


def load_steps(store: Store, attempt: Attempt, first_steps: IntArray, first: int, width: int) -> WindowSteps:
    """Steps of the windows, from the ranks from ``first`` on: the mean over them of the median rank's step time, and
    how many had their spans timed: all of the window where no steps are stored."""
    mean_ms, timed = np.full(len(first_steps), np.nan), np.full(len(first_steps), float(width))
    key = ("window steps", attempt.run, attempt.attempt, first, width)
    rows: list[dict[str, Any]] = kept(store, key, lambda: _step_windows(store, attempt, first, width).to_pylist())
    place = {int(step): at for at, step in enumerate(first_steps)}
    for row in rows:
        at = place.get(row["first_step"])
        if at is not None:
            mean_ms[at] = np.nan if row["ms"] is None else row["ms"]
            timed[at] = row["timed"] if row["timed"] > 0 else width
    return WindowSteps(timed, mean_ms, max((int(row["last"]) for row in rows), default=None))


def _step_windows(store: Store, attempt: Attempt, first: int, width: int) -> pa.Table:
    """Windows that have steps of the sampled ranks: columns first_step, ms, last, timed."""
    return store.query(
        f"""SELECT step // {width} * {width} AS first_step, avg(ms) AS ms, max(step) AS last,
                   sum(timed)::DOUBLE AS timed FROM (
                SELECT step, median(duration_ns) / 1e6 AS ms, avg((NOT coalesce(shadow, false))::INT) AS timed
                FROM steps WHERE rank BETWEEN {first} AND {first + _RANKS_SAMPLED - 1} GROUP BY step
            ) GROUP BY 1""",
        attempt=attempt,
    )
