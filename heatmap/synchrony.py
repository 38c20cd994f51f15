"""Waiting that nobody timed: segments that hide a synchronisation, and who arrives late in them.

A slow rank and those who wait for it take equally long, step by step. Where communication is timed, waiting is taken
out of self time. Where it is not (DDP's reducer inside `backward`), the victims' segment is the long one. Two facts
tell them apart: in a segment that contains waiting, who starts later shows it shorter by the same amount; and a
culprit leaves its segment late, while a victim entered early and leaves with all the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cells import NS_PER_MS, SegmentCells
from .peers import FloatArray, IntArray, peers_median

MIN_SLOPE = -0.5
MIN_EXPLAINED = 0.5


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than the median of its peers a rank enters and leaves a segment in a step, ms, [R, S].

    NaN where clocks of different hosts cannot be compared, or there are no peers.
    """

    entering: FloatArray
    leaving: FloatArray


def measure_lateness(cells: SegmentCells, roles: IntArray, offsets_ns: FloatArray) -> Lateness:
    """Lateness of each rank; ``offsets_ns`` [R] is what aligns its host's clock, NaN where that is not known."""
    first = (cells.first_ns + offsets_ns[:, None]) / NS_PER_MS
    last = (cells.last_ns + offsets_ns[:, None]) / NS_PER_MS
    return Lateness(first - peers_median(first, roles), last - peers_median(last, roles))


def hides_waiting(cells: SegmentCells, roles: IntArray, lateness: Lateness) -> bool:
    """Whether the segment's time contains waiting for others.

    Slope of a regression of (own time - peers' time) on lateness at entry over all cells: 0 for work, -1 for a
    segment at whose end all meet. True from -0.5 downwards, if lateness explains at least half of the variance.
    The cells furthest out are clipped, so that no single stall makes the slope.
    """
    times = cells.per_step_ms()
    excess = times - peers_median(times, roles)
    usable = np.isfinite(excess) & np.isfinite(lateness.entering)
    if usable.sum() < 20:
        return False
    late, more = _clipped(lateness.entering[usable]), _clipped(excess[usable])
    variance = float((late**2).mean())
    if variance == 0 or float((more**2).mean()) == 0:
        return False
    slope = float((late * more).mean()) / variance
    explained = float((late * more).mean()) ** 2 / (variance * float((more**2).mean()))
    return slope <= MIN_SLOPE and explained >= MIN_EXPLAINED


def _clipped(values: FloatArray) -> FloatArray:
    bound = np.quantile(np.abs(values), 0.98)
    return np.clip(values, -bound, bound)


def leaves_late(lateness: Lateness, row: int, columns: slice, excess_ms: float) -> bool | None:
    """Whether a rank that takes ``excess_ms`` longer per step carries the delay out of the segment.

    A culprit leaves late by its excess; a victim came early and leaves on time. None where lateness is not known.
    """
    entering, leaving = lateness.entering[row, columns], lateness.leaving[row, columns]
    usable = np.isfinite(entering) & np.isfinite(leaving)
    if not usable.any():
        return None
    came, left = float(np.median(entering[usable])), float(np.median(leaving[usable]))
    return left >= 0.5 * excess_ms and came >= -0.5 * excess_ms
