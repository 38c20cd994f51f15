"""Waiting that nobody timed: segments that hide a synchronisation, and who arrives late in them.

A slow rank and those who wait for it take equally long, step by step. Where communication is timed, waiting is taken
out of self time. Where it is not (DDP's reducer inside `backward`), the victims' segment is the long one. Three facts
tell them apart. In a segment that contains waiting, who starts later shows it shorter by the same amount. A culprit
leaves its segment late, while a victim entered early and leaves with all the others. And where all waiting is timed,
whoever takes longer at its work waits less by as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .cells import NS_PER_MS, SegmentCells, total_work
from .clocks import RankClocks
from .peers import FloatArray, IntArray, peers_median

MIN_SLOPE = -0.5
MIN_EXPLAINED = 0.5
MIN_CELLS = 20
"""Fewer cells of rank and step tell nothing about a slope."""

ERRORS = 2.0
"""A slope is told from another if it is so many standard errors away."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A regression through zero: the slope, its standard error, and the share of the variance that it explains."""

    value: float
    error: float
    explained: float

    @property
    def is_surely_above(self) -> bool:
        """Whether it is clearly less steep than -0.5."""
        return self.value - ERRORS * self.error > MIN_SLOPE


def fit_slope(x: FloatArray, y: FloatArray) -> Slope | None:
    """Slope of y on x over all cells that both have, [R, S] each; None where these are too few or x does not vary.

    The cells furthest out are clipped, so that no single stall makes the slope.
    """
    usable = np.isfinite(x) & np.isfinite(y)
    if usable.sum() < MIN_CELLS:
        return None
    across, along = _clipped(x[usable]), _clipped(y[usable])
    variance, total = float((across**2).mean()), float((along**2).mean())
    if variance == 0:
        return None
    value = float((across * along).mean()) / variance
    left = max(total - value**2 * variance, 0.0)
    explained = value**2 * variance / total if total > 0 else 0.0
    return Slope(value, math.sqrt(left / variance / int(usable.sum())), explained)


def _clipped(values: FloatArray) -> FloatArray:
    bound = np.quantile(np.abs(values), 0.98)
    return np.clip(values, -bound, bound)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than the median of its peers a rank enters and leaves a segment in a step, ms, [R, S].

    NaN where clocks of different hosts cannot be compared, or there are no peers. ``uncertainty_ms`` [R] is what the
    clocks may be wrong by.
    """

    entering: FloatArray
    leaving: FloatArray
    uncertainty_ms: FloatArray

    @property
    def is_known(self) -> bool:
        """Whether ranks can be ordered at all: finer than the differences that there are."""
        known = np.abs(self.entering[np.isfinite(self.entering)])
        if not len(known):
            return False
        worst = float(np.max(self.uncertainty_ms))  # NaN if any clock is not known
        return worst == 0 or worst < 0.5 * float(np.sqrt((_clipped(known) ** 2).mean()))


def measure_lateness(cells: SegmentCells, roles: IntArray, clocks: RankClocks) -> Lateness:
    """Lateness of each rank against its peers; clocks that are not known make their peers' lateness unknown too."""
    if cells.step_width > 1:  # a window has no one start
        return Lateness(cells.first_ns, cells.last_ns, clocks.uncertainty_ns / NS_PER_MS)
    first = clocks.aligned_ns(cells.first_ns, cells.base_ns) / NS_PER_MS
    last = clocks.aligned_ns(cells.last_ns, cells.base_ns) / NS_PER_MS
    return Lateness(
        first - peers_median(first, roles), last - peers_median(last, roles), clocks.uncertainty_ns / NS_PER_MS
    )


def slope_on_lateness(cells: SegmentCells, roles: IntArray, lateness: Lateness) -> Slope | None:
    """Slope of (own time - peers' time) on lateness at entry: 0 for work, -1 for a segment at whose end all meet."""
    times = cells.per_step_ms()
    return fit_slope(lateness.entering, times - peers_median(times, roles))


def hides_waiting(cells: SegmentCells, roles: IntArray, lateness: Lateness) -> bool | None:
    """Whether the segment's time contains waiting for others; None where clocks do not tell who enters late.

    True for a slope on lateness from -0.5 downwards that explains at least half of the variance.
    """
    if not lateness.is_known:
        return None
    slope = slope_on_lateness(cells, roles, lateness)
    return slope is not None and slope.value <= MIN_SLOPE and slope.explained >= MIN_EXPLAINED


def leaves_late(lateness: Lateness, row: int, columns: slice, excess_ms: float) -> bool | None:
    """Whether a rank that takes ``excess_ms`` longer per step carries the delay out of the segment.

    A culprit leaves late by its excess; a victim came early and leaves on time. None where lateness is not known, or
    the clocks may be wrong by half the excess.
    """
    entering, leaving = lateness.entering[row, columns], lateness.leaving[row, columns]
    usable = np.isfinite(entering) & np.isfinite(leaving)
    if not usable.any() or not lateness.uncertainty_ms[row] < 0.5 * excess_ms:
        return None
    came, left = float(np.median(entering[usable])), float(np.median(leaving[usable]))
    return left >= 0.5 * excess_ms and came >= -0.5 * excess_ms


@dataclass(frozen=True, slots=True)
class MeasuredWaiting:
    """The waiting that was timed, [R, S] in ms, and whether it accounts for the differences in the ranks' work."""

    waits_ms: FloatArray
    accounts: bool

    @classmethod
    def of(cls, waits_ms: FloatArray, cells: tuple[SegmentCells, ...], roles: IntArray) -> MeasuredWaiting:
        """It does if who works longer waits less, by half of it at least, and that explains half of the waiting."""
        work = total_work(cells, roles)
        slope = fit_slope(work - peers_median(work, roles), waits_ms - peers_median(waits_ms, roles))
        steep = slope is not None and slope.value <= MIN_SLOPE and slope.explained >= MIN_EXPLAINED
        return cls(waits_ms, steep)

    def covers(self, cells: SegmentCells, roles: IntArray) -> bool:
        """Whether a delay in a segment would show as waiting of the others.

        That needs no clocks. A segment that hides a synchronisation does not shorten its ranks' waiting elsewhere.
        """
        if not self.accounts:
            return False
        times = cells.per_step_ms()
        slope = fit_slope(times - peers_median(times, roles), self.waits_ms - peers_median(self.waits_ms, roles))
        return slope is not None and not slope.is_surely_above
