"""Garbage collection that takes longer and longer on all ranks: one finding of the whole job, which blames nobody.

Ranks collect in steps of their own, so whoever happens to pause looks slow beside those that do not. What tells a
drift of the job from a slow rank is that nearly all ranks show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cells import SegmentCells
from .observations import Observations
from .peers import FloatArray, IntArray, has_values, row_median
from .thresholds import Thresholds
from .verdict import Abstention

DRIFTING_SHARE = 0.8
"""Of the ranks that collect at all: from so many on it is the job's, not a rank's."""

MIN_GROWTH = 1.3
"""Time of the last third of the steps over that of the first, on a rank that counts as drifting."""

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

    A step that a rank took part in without a span of the segment counts as no time: garbage was not collected.
    """
    spent = _spent_ms(cells, seen)
    rows = np.flatnonzero((cells.count.sum(axis=(0, 2)) > 0) & has_values(spent))
    third = spent.shape[1] // 3
    if len(rows) < 3 or third < 2 or spent.shape[1] < thresholds.healthy_steps:
        return None
    spent, collected = spent[rows], cells.count.sum(axis=0)[rows] > 0
    parts = (slice(0, third), slice(third, -third), slice(-third, None))
    early, middle, late = (_row_mean(spent[:, part]) for part in parts)
    often = [float(np.median(collected[:, part].sum(axis=1))) for part in (parts[0], parts[2])]
    grows = (late > MIN_GROWTH * early) & (late > middle) & (middle > early)
    typical = [float(np.median(one)) for one in (early, late)]
    usual_ms = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else 0.0
    is_heavy = usual_ms > 0 and typical[1] - typical[0] >= thresholds.min_excess_share * usual_ms
    share = float(np.mean(late > MIN_GROWTH * early))
    if min(often) < MIN_COLLECTIONS or share < DRIFTING_SHARE or not is_heavy or 2 * grows.sum() < len(rows):
        return None
    last = int(cells.steps[-1]) + cells.step_width - 1
    steps = int(cells.steps[0]), last if seen.last_step is None else min(last, seen.last_step)
    return JobDrift(
        segment=cells.name,
        kind=cells.kind,
        steps=steps,
        last_third=int(cells.steps[-third]),
        early_ms=max(typical[0], 1e-6),
        late_ms=typical[1],
        share=share,
        ranks=len(rows),
        lost_share=_lost_share(spent, seen.step_ms, third),
        apart=frozenset(int(cells.ranks[row]) for row in rows[_apart(_row_mean(spent))]),
        step_width=cells.step_width,
    )


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


def _lost_share(spent: FloatArray, step_ms: FloatArray, third: int) -> float:
    """The step waits for the longest pause in it: its excess over the first third's, over the time of all steps."""
    longest = np.where(np.isfinite(spent), spent, 0.0).max(axis=0)
    total = float(np.nansum(step_ms))
    excess = np.minimum(np.maximum(longest - np.median(longest[:third]), 0.0), np.nan_to_num(step_ms))
    return round(min(float(excess.sum()) / total, 1.0), 6) if total > 0 else 0.0


def _apart(totals: FloatArray) -> IntArray:
    """Positions of the ranks whose total stands out from the others'."""
    middle = float(row_median(totals[None, :])[0])
    spread = 1.4826 * float(row_median(np.abs(totals - middle)[None, :])[0])
    return np.flatnonzero(totals - middle > max(APART_SIGMAS * spread, 0.3 * middle))
