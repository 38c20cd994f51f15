"""Robust statistics: which rows of log-ratios to the peers are raised, since when, and how surely.

A row is one rank at one segment: log(own time / peers' median) per step, about 0 for a healthy rank. Everything is
built on medians, so that neither heavy tails nor a few slow ranks move the yardstick; the noise of an average over
steps is taken from blocks of steps, so that autocorrelated noise is not mistaken for evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from .peers import FloatArray, IntArray, row_median
from .thresholds import Thresholds
from .verdict import Pattern

BoolArray = npt.NDArray[np.bool_]

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


MIN_BURSTS = 5
"""Runs of raised steps that make a pattern."""

BURSTS_Z = 7.0
"""How surely a row must have more of them than the others: what comes and goes comes by chance more often than not."""

HELD_LEVEL = 0.65
"""Share of a known effect that parts loud from quiet, where bursts are to be told apart."""

LASTING = 1.1
"""Noise of long blocks that is so many times what short ones lead to expect lasts longer than these."""

MANY_ROWS = 12
"""Fewer rows have too few long blocks to tell, and one slow rank among them would pass for noise."""

MIN_ALIKE = 8
"""Other rows of a peer group whose median share of raised steps is sure by itself."""

MIN_BURST_SHARE = 0.12
"""Share of raised steps from which on bursts are looked at: 12 of 100 steps where 2 are usual come up by chance on one
rank in a million."""


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
    """A stretch of steps in which a row is raised: positions ``first`` to ``last``, ``effect`` as a log-ratio.

    ``burst_steps`` is how many steps a burst lasts on average, where it comes and goes."""

    row: int
    first: int
    last: int
    effect: float
    z: float
    share_beyond: float
    pattern: Pattern
    to_the_end: bool = False
    burst_steps: float = 0.0


def measure_noise(logs: FloatArray) -> Noise | None:
    """Noise of rows of log-ratios, [R, S]; None where too little is finite to tell.

    The spread of block medians about their row's own median carries the autocorrelation within a block: with
    blocks long against it, se(L steps) = spread x sqrt(block / L) holds for any stationary noise.
    """
    finite = np.isfinite(logs)
    if finite.sum() < 8 or logs.shape[1] < 4:
        return None
    step = spread((logs - row_median(logs)[:, None])[finite])
    short, long = max(4, logs.shape[1] // 8), max(4, logs.shape[1] // 4)
    of_short, of_long = _of_blocks(logs, short, step), _of_blocks(logs, long, step)
    if len(logs) >= MANY_ROWS and of_long * math.sqrt(long) > LASTING * of_short * math.sqrt(short):
        return Noise(step, of_long, long)
    return Noise(step, of_short, short)


def _of_blocks(logs: FloatArray, block: int, step: float) -> float:
    """Spread of the medians of blocks of so many steps about their row's own median."""
    medians = [row_median(logs[:, at : at + block]) for at in range(0, logs.shape[1] - block + 1, block)]
    strays = np.stack(medians, axis=1) - row_median(logs)[:, None]
    own = strays[np.isfinite(strays)]
    white = 1.2533 * step / math.sqrt(block)
    return max(spread(own) if len(own) else white, white, 1e-4)


def spread(values: FloatArray) -> float:
    """Robust standard deviation about zero."""
    return MAD_TO_SIGMA * float(np.median(np.abs(values))) if len(values) else 0.0


def spread_of_others(levels: FloatArray, row: int, roles: IntArray, floor: float = 0.01) -> float:
    """Robust spread between the levels of all other rows, [R]; at least ``floor``.

    The peer of a rank that has only one is left out: its level is the mirror image of the rank's own.
    """
    mirrored = (roles == roles[row]) & np.isfinite(levels)
    taken = mirrored if mirrored.sum() <= 2 else np.arange(len(levels)) == row
    others = levels[~taken & np.isfinite(levels)]
    return max(spread(others), floor)


def search_windows(steps: int, shortest: int) -> list[int]:
    """Lengths of running medians that together see every stretch of at least ``shortest`` of so many columns.

    A window that is longer than a stretch does not see it; one that is much shorter sees little but noise.
    """
    longest = min(max(8, steps // 8), steps)
    windows, window = [longest], min(shortest, longest)
    while window < longest:
        windows.append(window)
        window *= 2
    return windows


def peak_levels(logs: FloatArray, window: int | None = None, least: float = -math.inf) -> FloatArray:
    """Highest running median of each row, [R, S] -> [R]: whether a search of the row is worth while.

    NaN where there is none, or none of at least ``least``. ``window`` is the number of columns, an eighth of all if
    None. A median reaches ``least`` only where half of its values do: that is counted first, for all rows at once.
    """
    window = search_windows(logs.shape[1], logs.shape[1])[0] if window is None else window
    stride, finite = max(1, window // 4), np.isfinite(logs)
    hits = _running_count(finite & (logs >= least), window, stride)
    worth = np.flatnonzero(((2 * hits >= _running_count(finite, window, stride)) & (hits > 0)).any(axis=1))
    windows = sliding_window_view(logs[worth], window, axis=1)[:, ::stride]
    peaks = np.full(len(worth), -np.inf)
    for place in range(windows.shape[1]):
        own = windows[:, place]
        filled = np.isfinite(own).sum(axis=1) * 2 >= window
        peaks = np.where(filled, np.maximum(peaks, row_median(own)), peaks)
    result = np.full(logs.shape[0], np.nan)
    result[worth] = np.where(np.isfinite(peaks) & (peaks >= least), peaks, np.nan)
    return result


def _running_count(flags: BoolArray, window: int, stride: int) -> IntArray:
    """How many of every ``window`` columns are set, [R, S] -> [R, places]."""
    sums = np.pad(np.cumsum(flags, axis=1, dtype=np.int32), ((0, 0), (1, 0)))
    counts: IntArray = (sums[:, window:] - sums[:, : sums.shape[1] - window])[:, ::stride]
    return counts


def find_raised(
    row: int,
    logs: FloatArray,
    noise: Noise,
    start_effect: float,
    z: float = 5.0,
    end_slack: int = 2,
    *,
    is_held: bool = False,
) -> Raised | None:
    """The stretch in which one row [S] is raised most surely, or None if its best is not raised at all.

    For a shift of known size e the most likely stretch maximises the sum of (y - e/2): found in one pass, then
    again with the e that it shows. Values are clipped at 2e, so that one stall is not taken for a level. If it is held,
    e stays as given, and quiet steps weigh more: of a row that comes and goes, a single burst is found, and not all of
    them with half the effect.
    """
    known = np.flatnonzero(np.isfinite(logs))
    values = logs[known]
    effect, first, last = start_effect, 0, len(values) - 1
    for _ in range(1 if is_held else 3):
        if effect <= 0 or not len(values):
            return None
        level = HELD_LEVEL if is_held else 0.5
        first, last = _best_stretch(np.clip(values, -2 * effect, 2 * effect) - level * effect)
        effect = float(np.median(values[first : last + 1]))
    if effect <= 0:
        return None
    if len(values) - 1 - last <= end_slack:
        last = len(values) - 1
    inside = values[first : last + 1]
    score = effect / noise.standard_error(len(inside))
    beyond = float((inside > effect / 2).mean())
    to_the_end = last + 1 >= math.floor(0.9 * len(values))
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


def find_bursts(logs: FloatArray, noise: Noise, min_ratio: float = 1.2, roles: IntArray | None = None) -> list[Raised]:
    """Rows that are raised again and again, far more often than the rows beside them, [R, S].

    One bad stretch is no pattern: there must be several, each at most a quarter of the steps. The yardstick is the
    median share of the other rows of the same peer group, ``roles`` [R]: stages differ in how restless they are. Many
    short bursts show in the number of runs, few long ones in the number of steps: raised steps of one burst are one
    piece of evidence, so the variance of their share is that times the length of a burst; that of the number of runs is
    taken times 3, for stalls attract each other.
    """
    finite = np.isfinite(logs)
    counts = finite.sum(axis=1)
    hits = finite & (logs > max(math.log(min_ratio), 3 * noise.step))
    begins = hits & ~np.pad(hits, ((0, 0), (1, 0)))[:, :-1]
    runs, raised = begins.sum(axis=1), hits.sum(axis=1)
    by_runs, by_steps = (np.divide(one, counts, out=np.zeros(len(counts)), where=counts > 0) for one in (runs, raised))
    result = []
    often = (by_runs >= 0.1) | (by_steps >= MIN_BURST_SHARE)
    for row in np.flatnonzero((counts >= 20) & (runs >= MIN_BURSTS) & often).tolist():
        length = float(raised[row] / runs[row])
        peers = roles == roles[row] if roles is not None else np.ones(len(logs), bool)
        z = max(
            _beyond(by_runs, row, 3 / counts[row], peers) if by_runs[row] >= 0.1 else 0.0,
            _beyond(by_steps, row, length / counts[row], peers) if length <= counts[row] / 4 else 0.0,
        )
        if z >= BURSTS_Z:
            at = np.flatnonzero(hits[row])
            effect, share = float(np.median(logs[row][at])), float(max(by_runs[row], by_steps[row]))
            first, last = int(at[0]), int(at[-1])
            result.append(Raised(row, first, last, effect, z, share, Pattern.INTERMITTENT, burst_steps=length))
    return result


def _beyond(share: FloatArray, row: int, per_step: float, peers: BoolArray) -> float:
    """How many deviations a row's share is beyond what is usual; of ``per_step`` x p (1 - p) variance.

    Usual is the median of its other ``peers`` [R]; where these are few, no less than that of all other rows.
    """
    other = np.arange(len(share)) != row
    usual = float(np.median(share[peers & other])) if (peers & other).any() else 0.0
    if (peers & other).sum() < MIN_ALIKE:
        usual = max(usual, float(np.median(share[other])) if other.any() else 0.0)
    usual = max(usual, 0.02)
    return float((share[row] - usual) / math.sqrt(usual * (1 - usual) * per_step))


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


def smallest_visible_ratio(noise: Noise, levels: FloatArray, steps: int, thresholds: Thresholds, peers: int) -> float:
    """Ratio from which on a chronic slow-down over all steps would have been named, given the noise.

    ``levels`` [R] are the ranks' median log-ratios: their spread hides what is smaller. ``peers`` is how many the rank
    with the fewest has.
    """
    between = spread(levels[np.isfinite(levels)])
    effect = max(
        math.log(thresholds.least_ratio(peers)),
        thresholds.needed_z(len(levels), steps, steps, True) * noise.standard_error(steps),
        thresholds.min_between * between,
    )
    return math.exp(effect)


def usable_rows(logs: FloatArray, min_steps: int) -> IntArray:
    """Rows with at least that many finite steps."""
    return np.flatnonzero(np.isfinite(logs).sum(axis=1) >= min_steps)
