"""Robust statistics: which rows of log-ratios to the peers are raised, since when, and how surely.

A row is one rank at one segment: log(own time / peers' median) per step, about 0 for a healthy rank. Everything is
built on medians, so that neither heavy tails nor a few slow ranks move the yardstick; the noise of an average over
steps is taken from blocks of steps, so that autocorrelated noise is not mistaken for evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .peers import FloatArray, IntArray, row_median
from .verdict import Pattern

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


END_SLACK = 2
"""A stretch that ends so few steps before the last is taken to go on: the noise of so few cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What it takes to be accused. All must hold at once."""

    min_ratio: float = 1.10
    pair_ratio: float = 1.20
    """Instead of ``min_ratio`` where a rank has a single peer: which of the two is slow rests on one comparison."""
    min_z: float = 3.0
    """Effect over its standard error along the steps, before `needed_z` adds what the search has tried."""
    min_between: float = 3.5
    """Effect over the spread between the other ranks: machines are never quite alike."""
    min_share_beyond: float = 0.6
    """Share of the steps from the first to the last that lie beyond half the effect."""
    min_length: int = 15
    """Steps of a stretch that still goes on: shorter ones come and go on any shared machine."""
    ended_length: int = 20
    ended_excess_share: float = 0.03
    """Of a stretch that has ended: its steps, and its excess as a share of the time of all steps looked at."""
    min_excess_share: float = 0.01
    """Excess over the peers, as a share of the step's time."""
    min_steps: int = 10
    healthy_steps: int = 30
    """Before anybody is called healthy: twice the shortest stretch, or what began late would go unseen."""
    stall_steps: float = 10.0
    """A single stall is named from this many steps' time on."""

    def for_width(self, steps: int) -> Thresholds:
        """The same where a column is an average over so many steps; a few columns are needed whatever they average."""
        if steps == 1:
            return self
        return replace(
            self,
            min_length=max(-(-self.min_length // steps), 3),
            ended_length=max(-(-self.ended_length // steps), 4),
            min_steps=max(-(-self.min_steps // steps), 4),
            healthy_steps=max(-(-self.healthy_steps // steps), 8),
            stall_steps=self.stall_steps / steps,
        )

    def needed_z(self, rows: int, steps: int, length: int, to_the_end: bool) -> float:
        """z that a stretch must reach, given how many others might have come up by chance.

        The largest of n independent deviations is about sqrt(2 ln n); a stretch of a part of the steps is one of
        many, the more the shorter it is; and what has ended is held to more than what still goes on.
        """
        tried = math.sqrt(2 * math.log(max(rows, 2)))
        return self.min_z + tried + 1.5 * math.log(max(steps / max(length, 1), 1.0)) + (0.0 if to_the_end else 1.0)


@dataclass(frozen=True, slots=True)
class Noise:
    """How far rows stray without cause: of one step (``step``), of the median of a block of ``block`` steps
    (``of_block``), both as log-ratios, pooled over all rows."""

    step: float
    of_block: float
    block: int

    def standard_error(self, steps: int) -> float:
        """Of the median log-ratio over that many steps."""
        return self.of_block * math.sqrt(self.block / max(steps, 1))


@dataclass(frozen=True, slots=True)
class Raised:
    """A stretch of steps in which a row is raised: positions ``first`` to ``last``, ``effect`` as a log-ratio."""

    row: int
    first: int
    last: int
    effect: float
    z: float
    share_beyond: float
    pattern: Pattern
    to_the_end: bool = False


def measure_noise(logs: FloatArray) -> Noise | None:
    """Noise of rows of log-ratios, [R, S]; None where too little is finite to tell.

    The spread of block medians about their row's own median carries the autocorrelation within a block: with
    blocks long against it, se(L steps) = spread x sqrt(block / L) holds for any stationary noise.
    """
    finite = np.isfinite(logs)
    if finite.sum() < 8 or logs.shape[1] < 4:
        return None
    center = row_median(logs)[:, None]
    step = _spread((logs - center)[finite])
    block = max(4, logs.shape[1] // 8)
    medians = [row_median(logs[:, at : at + block]) for at in range(0, logs.shape[1] - block + 1, block)]
    strays = np.stack(medians, axis=1) - center
    own = strays[np.isfinite(strays)]
    white = 1.2533 * step / math.sqrt(block)
    return Noise(step, max(_spread(own) if len(own) else white, white, 1e-4), block)


def _spread(values: FloatArray) -> float:
    """Robust standard deviation about zero."""
    return MAD_TO_SIGMA * float(np.median(np.abs(values))) if len(values) else 0.0


def spread_of_others(levels: FloatArray, row: int, roles: IntArray, floor: float = 0.01) -> float:
    """Robust spread between the levels of all other rows, [R]; at least ``floor``.

    The peer of a rank that has only one is left out: its level is the mirror image of the rank's own.
    """
    mirrored = (roles == roles[row]) & np.isfinite(levels)
    taken = mirrored if mirrored.sum() <= 2 else np.arange(len(levels)) == row
    others = levels[~taken & np.isfinite(levels)]
    return max(_spread(others), floor)


def peak_levels(logs: FloatArray) -> FloatArray:
    """Highest running median of each row, [R, S] -> [R]: whether a search of the row is worth while. NaN if empty."""
    steps = logs.shape[1]
    window = min(max(8, steps // 8), steps)
    windows = sliding_window_view(logs, window, axis=1)[:, :: max(1, window // 4)]
    peaks = np.full(logs.shape[0], -np.inf)
    for place in range(windows.shape[1]):
        own = windows[:, place]
        filled = np.isfinite(own).sum(axis=1) * 2 >= window
        peaks = np.where(filled, np.maximum(peaks, row_median(own)), peaks)
    return np.where(np.isfinite(peaks), peaks, np.nan)


def find_raised(row: int, logs: FloatArray, noise: Noise, start_effect: float, z: float = 5.0) -> Raised | None:
    """The stretch in which one row [S] is raised most surely, or None if its best is not raised at all.

    For a shift of known size e the most likely stretch maximises the sum of (y - e/2): found in one pass, then
    again with the e that it shows. Values are clipped at 2e, so that one stall is not taken for a level.
    """
    known = np.flatnonzero(np.isfinite(logs))
    values = logs[known]
    effect, first, last = start_effect, 0, len(values) - 1
    for _ in range(3):
        if effect <= 0 or not len(values):
            return None
        first, last = _best_stretch(np.clip(values, -2 * effect, 2 * effect) - effect / 2)
        effect = float(np.median(values[first : last + 1]))
    if effect <= 0:
        return None
    if len(values) - 1 - last <= END_SLACK:
        last = len(values) - 1
    inside = values[first : last + 1]
    score = effect / noise.standard_error(len(inside))
    beyond = float((inside > effect / 2).mean())
    to_the_end = last + 1 >= 0.9 * len(values)
    pattern = _pattern(inside, to_the_end, effect, noise)
    found = Raised(row, int(known[first]), int(known[last]), effect, score, beyond, pattern, to_the_end)
    return found if score >= z else None


def _best_stretch(gains: FloatArray) -> tuple[int, int]:
    """First and last position of the stretch with the largest sum."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums[:-1])
    last = int(np.argmax(sums[1:] - lowest))
    return int(np.argmin(sums[: last + 1])), last


def _pattern(inside: FloatArray, to_the_end: bool, effect: float, noise: Noise) -> Pattern:
    third = len(inside) // 3
    if third >= 8:
        growth = float(np.median(inside[-third:]) - np.median(inside[:third]))
        if growth > max(0.75 * effect, 4 * noise.standard_error(third)):
            return Pattern.DRIFTING
    return Pattern.CHRONIC if to_the_end else Pattern.ONE_OFF


def find_bursts(logs: FloatArray, noise: Noise, min_ratio: float = 1.3) -> list[Raised]:
    """Rows that are raised again and again, far more often than the rows beside them, [R, S].

    Runs of raised steps are counted, not steps: one bad stretch is no pattern. The yardstick is the median row's
    share of runs in its steps; the binomial deviation is widened by sqrt(3), for stalls attract each other.
    """
    finite = np.isfinite(logs)
    counts = finite.sum(axis=1)
    bar = max(math.log(min_ratio), 3 * noise.step)
    hits = finite & (logs > bar)
    begins = hits & ~np.pad(hits, ((0, 0), (1, 0)))[:, :-1]
    runs = begins.sum(axis=1)
    share = np.divide(runs, counts, out=np.zeros(len(counts)), where=counts > 0)
    result = []
    for row in np.flatnonzero((share >= 0.1) & (counts >= 20) & (runs >= 5)):
        usual = max(float(np.median(np.delete(share, row))), 0.02)
        z = (share[row] - usual) / math.sqrt(3 * usual * (1 - usual) / counts[row])
        if z >= 5:
            at = np.flatnonzero(hits[row])
            effect = float(np.median(logs[row][at]))
            result.append(
                Raised(int(row), int(at[0]), int(at[-1]), effect, float(z), float(share[row]), Pattern.INTERMITTENT)
            )
    return result


def find_stalls(own_ms: FloatArray, peers_ms: FloatArray, step_ms: FloatArray, min_steps: float) -> list[Raised]:
    """Single cells that cost the job many steps' time: own and peers' time per step [R, S], step times [S]."""
    usual = float(np.nanmedian(step_ms)) if np.isfinite(step_ms).any() else math.nan
    if not usual > 0:
        return []
    excess = own_ms - peers_ms
    result = []
    for row, column in np.argwhere(np.isfinite(excess) & (excess >= min_steps * usual) & (own_ms >= 5 * peers_ms)):
        effect = math.log(own_ms[row, column] / max(peers_ms[row, column], 1e-6))
        result.append(Raised(int(row), int(column), int(column), effect, math.inf, 1.0, Pattern.ONE_OFF))
    return result


def smallest_visible_ratio(noise: Noise, levels: FloatArray, steps: int, thresholds: Thresholds) -> float:
    """Ratio from which on a chronic slow-down over all steps would have been named, given the noise.

    ``levels`` [R] are the ranks' median log-ratios: their spread hides what is smaller.
    """
    between = _spread(levels[np.isfinite(levels)])
    effect = max(
        math.log(thresholds.min_ratio),
        thresholds.needed_z(len(levels), steps, steps, True) * noise.standard_error(steps),
        thresholds.min_between * between,
    )
    return math.exp(effect)


def usable_rows(logs: FloatArray, min_steps: int) -> IntArray:
    """Rows with at least that many finite steps."""
    return np.flatnonzero(np.isfinite(logs).sum(axis=1) >= min_steps)
