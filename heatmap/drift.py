"""Garbage collection that takes longer and longer on all ranks: one finding of the whole job, which blames nobody.

Ranks collect in steps of their own, so whoever happens to pause looks slow beside those that do not. What tells a
drift of the job from a slow rank is that nearly all ranks show it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..profiler.vocabulary import SegmentKind
from .cells import SegmentCells
from .observations import Observations
from .peers import FloatArray, IntArray, has_values, row_median
from .thresholds import Thresholds
from .verdict import Abstention

DRIFTING_SHARE = 0.8
"""Of the ranks that collect at all: from so many on it is the job's, not a rank's."""

MIN_GROWTH = 1.3
"""Time of the last third of the steps over that of the first, on a rank that counts as drifting."""

SHORTEST_SHARE = 0.4
"""Of the steps, the shortest stretch in which a drift is looked for."""

MIN_COLLECTIONS = 3
"""Columns with a collection that the median rank needs in the first and in the last third."""

APART_SIGMAS = 5.0
"""A rank whose own total lies so far above the others' drifts by itself too, and keeps its finding."""


@dataclass(frozen=True, slots=True)
class JobDrift:
    """A segment that takes longer and longer on nearly all ranks.

    ``early_ms`` and ``late_ms`` are the median rank's time per step in the first and the last third of the steps,
    ``share`` the part of the ranks that drift, ``lost_share`` the part of the job's time by which the longest pause of
    each step exceeds what it was at first; ``apart`` are ranks that stand out beside that.
    """

    segment: str
    kind: str
    steps: tuple[int, int]
    last_third: int
    early_ms: float
    late_ms: float
    share: float
    ranks: int
    lost_share: float
    apart: frozenset[int]
    step_width: int = 1

    @property
    def ratio(self) -> float:
        """Growth of the median rank's time per step."""
        return self.late_ms / self.early_ms

    @property
    def note(self) -> Abstention:
        """Why no rank is accused in this segment."""
        reason = (
            f"it takes longer and longer on {self.share:.0%} of the ranks, each in steps of its own: ranks were not "
            f"accused of it one by one"
        )
        return Abstention(self.segment, reason)


def find_drift(cells: SegmentCells, seen: Observations, thresholds: Thresholds) -> JobDrift | None:
    """Whether a segment drifts on nearly all ranks; None too where there are too few steps or ranks to tell.

    A step that a rank took part in without a span of the segment counts as no time: garbage was not collected. A drift
    may have begun late or be over: of all stretches of `SHORTEST_SHARE` of the steps or more, the one with the largest
    growth is taken.
    """
    spent = _spent_ms(cells, seen)
    rows = np.flatnonzero((cells.count.sum(axis=(0, 2)) > 0) & has_values(spent))
    columns = spent.shape[1]
    if len(rows) < 3 or columns < thresholds.healthy_steps:
        return None
    spent, pauses = spent[rows], cells.count.sum(axis=0)[rows]
    usual_ms = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else 0.0
    found = [
        growth
        for first, last in _stretches(columns)
        if (growth := _growth(spent, pauses, first, last)) is not None
        and usual_ms > 0
        and growth.late_ms - growth.early_ms >= thresholds.min_excess_share * usual_ms
    ]
    if not found:
        return None
    best = max(found, key=lambda one: one.late_ms - one.early_ms)
    apart = _apart(_row_mean(spent))
    return JobDrift(
        segment=cells.name,
        kind=cells.kind,
        steps=(int(cells.steps[best.first]), seen.last_of(int(cells.steps[best.last]), cells.step_width)),
        last_third=int(cells.steps[best.last + 1 - best.third]),
        early_ms=max(best.early_ms, 1e-6),
        late_ms=best.late_ms,
        share=best.share,
        ranks=len(rows),
        lost_share=_lost_share(spent, seen.step_ms, slice(best.first, best.first + best.third)),
        apart=frozenset(int(cells.ranks[row]) for row in rows[apart]),
        step_width=cells.step_width,
    )


@dataclass(frozen=True, slots=True)
class _Growth:
    """A stretch of columns in which ``share`` of the ranks drift: median rank's time per step in its outer thirds."""

    first: int
    last: int
    third: int
    early_ms: float
    late_ms: float
    share: float


def _stretches(columns: int) -> list[tuple[int, int]]:
    """First and last column of the stretches that are looked at; all columns come first."""
    shift, least = max(columns // 10, 1), math.ceil(SHORTEST_SHARE * columns)
    pairs = [(first, last) for first in range(0, columns, shift) for last in range(columns - 1, -1, -shift)]
    return [(first, last) for first, last in pairs if last + 1 - first >= max(least, 3)]


def _growth(spent: FloatArray, pauses: FloatArray, first: int, last: int) -> _Growth | None:
    """Whether times [R, S] grow in a stretch on most rows; ``pauses`` [R, S] is how many there were.

    In a part of the steps each pause must have become longer too: a third of few steps holds one more by chance.
    """
    third = (last + 1 - first) // 3
    parts = [slice(first, first + third), slice(first + third, last + 1 - third), slice(last + 1 - third, last + 1)]
    early, middle, late = (_row_mean(spent[:, part]) for part in parts)
    often = [float(np.median((pauses[:, part] > 0).sum(axis=1))) for part in (parts[0], parts[2])]
    is_whole = last + 1 - first == spent.shape[1]
    if min(often) < (MIN_COLLECTIONS if is_whole and third > 2 else min(2, third)):
        return None
    drifts = late > MIN_GROWTH * early
    if not is_whole:
        longer = [_per_pause(spent[:, part], pauses[:, part]) for part in (parts[0], parts[2])]
        drifts &= longer[1] > MIN_GROWTH * longer[0]
    share = float(np.mean(drifts))
    if share < DRIFTING_SHARE or 2 * (drifts & (late > middle) & (middle > early)).sum() < len(spent):
        return None
    return _Growth(first, last, third, float(np.median(early)), float(np.median(late)), share)


def _per_pause(spent: FloatArray, pauses: FloatArray) -> FloatArray:
    """Mean time of a pause, [R, S] -> [R]; NaN where there was none."""
    counts = pauses.sum(axis=1)
    mean: FloatArray = np.divide(np.nansum(spent, axis=1), counts, out=np.full(len(spent), np.nan), where=counts > 0)
    return mean


def is_collecting(cells: SegmentCells) -> bool:
    """Whether a segment is one of garbage collection."""
    return cells.kind == SegmentKind.GC


def stands_apart(cells: SegmentCells, seen: Observations) -> frozenset[int]:
    """Ranks whose time in a segment stands out from the others', over all steps together.

    Each rank pauses in steps of its own: in any stretch of few steps one of them has spent the most.
    """
    spent = _spent_ms(cells, seen)
    return frozenset(int(cells.ranks[row]) for row in _apart(_row_mean(spent)))


def _spent_ms(cells: SegmentCells, seen: Observations) -> FloatArray:
    """Time per step, [R, S]; NaN only where a rank has no span of any work."""
    took_part = np.zeros(cells.count.shape[1:], bool)
    for one in seen.cells:
        took_part |= one.count.sum(axis=0) > 0
    spent: FloatArray = np.where(took_part, np.nansum(cells.total_ms, axis=0), np.nan)
    return spent


def _row_mean(values: FloatArray) -> FloatArray:
    """Mean over the last axis of what is known, [R, S] -> [R]; NaN where nothing is."""
    known = np.isfinite(values)
    counts = known.sum(axis=1)
    mean: FloatArray = np.divide(
        np.where(known, values, 0.0).sum(axis=1), counts, out=np.full(len(values), np.nan), where=counts > 0
    )
    return mean


def _lost_share(spent: FloatArray, step_ms: FloatArray, early: slice) -> float:
    """The step waits for the longest pause in it: its excess over the early ones', over the time of all steps."""
    longest = np.where(np.isfinite(spent), spent, 0.0).max(axis=0)
    total = float(np.nansum(step_ms))
    excess = np.minimum(np.maximum(longest - np.median(longest[early]), 0.0), np.nan_to_num(step_ms))
    return round(min(float(excess.sum()) / total, 1.0), 6) if total > 0 else 0.0


def _apart(totals: FloatArray) -> IntArray:
    """Positions of the ranks whose total stands out from the others'."""
    middle = float(row_median(totals[None, :])[0])
    spread = 1.4826 * float(row_median(np.abs(totals - middle)[None, :])[0])
    return np.flatnonzero(totals - middle > max(APART_SIGMAS * spread, 0.3 * middle))
