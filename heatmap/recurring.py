"""Trouble that comes back: rows with several bursts, or several stalls, where the rows beside them have none.

How often the others have one by chance is the yardstick, so that a few are enough where nobody else has any, and many
are not where everybody does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .detect import BoolArray, Noise, Raised
from .peers import FloatArray, IntArray
from .verdict import Pattern

BURST_STEPS = 3
"""Steps in a row that make a burst: noise of single steps does not last."""

MIN_BURSTS, MIN_STALLS = 2, 3

BURST_RATIO = 1.2
GAP_RATIO = 1.15
STALL_RATIO, STALL_SHARE = 3.0, 0.05
"""A stall takes so many times the peers' time, and so large a share of a step beyond it."""

BURST_CHANCE, STALL_CHANCE = 0.005, 0.0002
"""How often in all rows together so many may come up by chance, in one of a job's several segments. Stalls are single
cells, of which chance makes some; to lie so far out for steps on end it hardly ever does."""

BURST_Z = 5.0
"""Single steps that are beyond so many deviations belong to a burst."""

BRIEF_STEPS = 4
"""Steps in a row that are slow at least: noise of single steps does not last so long."""

BRIEF_RATIO = 1.3
BRIEF_Z = 8.0
"""Each of the steps is so many times its peers' time, and so many deviations of one step beyond it."""

FEWEST_ROWS = 12


def find_recurring(
    logs: FloatArray, own_ms: FloatArray, peers_ms: FloatArray, noise: Noise, step_ms: FloatArray
) -> list[Raised]:
    """Rows with more bursts or stalls than chance gives them: log-ratios, own and peers' time a step [R, S].

    ``step_ms`` [S] are the step times.
    """
    if len(logs) < FEWEST_ROWS:
        return []
    finite = np.isfinite(logs)
    hits = finite & (logs > max(math.log(BURST_RATIO), BURST_Z * noise.step))
    lasting = _lasting(hits)
    bursts = _beyond_chance(_runs(lasting), MIN_BURSTS, BURST_CHANCE)
    found = {row: _raised(row, lasting[row], logs, z) for row, z in bursts}
    usual = float(np.nanmedian(step_ms)) if np.isfinite(step_ms).any() else math.inf
    stalls = finite & (own_ms >= STALL_RATIO * peers_ms) & (own_ms - peers_ms >= STALL_SHARE * usual)
    for row, z in _beyond_chance(_runs(stalls), MIN_STALLS, STALL_CHANCE):
        found.setdefault(row, _raised(row, stalls[row], logs, z))
    return [found[row] for row in sorted(found)]


def find_brief(logs: FloatArray, noise: Noise) -> list[Raised]:
    """Rows of log-ratios [R, S] of single steps with a short burst, one stretch a row; several bursts come and go."""
    hits = np.isfinite(logs) & (logs > max(math.log(BRIEF_RATIO), BRIEF_Z * noise.step))
    bursts = _lasting(hits, BRIEF_STEPS)
    counts = _runs(bursts)
    return [_brief(int(row), np.flatnonzero(bursts[row]), int(counts[row]), logs, noise) for row in counts.nonzero()[0]]


def _brief(row: int, at: IntArray, runs: int, logs: FloatArray, noise: Noise) -> Raised:
    first, last, effect = int(at[0]), int(at[-1]), float(np.median(logs[row, at]))
    pattern = Pattern.ONE_OFF if runs == 1 else Pattern.INTERMITTENT
    share, z = len(at) / (last - first + 1), effect * math.sqrt(len(at)) / max(noise.step, 1e-4)
    return Raised(row, first, last, effect, z, share, pattern, burst_steps=len(at) / runs)


def with_gaps(one: Raised, logs: FloatArray, noise: Noise, width: int = 1) -> Raised:
    """A raised stretch as one that comes and goes, if quiet steps lie between bursts of it: one row of logs [S].

    Only where single columns are sure: an effect of `GAP_RATIO` and six times their noise. ``width`` is how many steps
    a column stands for: of averages, one that is quiet is a gap.
    """
    if one.effect < max(math.log(GAP_RATIO), 6 * noise.step) or one.pattern == Pattern.INTERMITTENT:
        return one
    inside = logs[one.first : one.last + 1]
    inside = inside[np.isfinite(inside)]
    loud = inside >= one.effect / 2
    bursts, gaps = (_lasting(flags[None, :], BURST_STEPS if width == 1 else 1) for flags in (loud, ~loud))
    if not gaps.any() or _runs(bursts)[0] < MIN_BURSTS:
        return one
    length = float(bursts.sum() / _runs(bursts)[0])
    return replace(one, pattern=Pattern.INTERMITTENT, burst_steps=length)


def _lasting(hits: BoolArray, steps: int = BURST_STEPS) -> BoolArray:
    """Hits that are one of so many in a row, [R, S]."""
    result = np.zeros_like(hits)
    if hits.shape[1] < steps:
        return result
    starts = np.lib.stride_tricks.sliding_window_view(hits, steps, axis=1).all(axis=2)
    for shift in range(steps):
        result[:, shift : shift + starts.shape[1]] |= starts
    return result


def _runs(hits: BoolArray) -> IntArray:
    """Number of runs of hits in each row, [R]."""
    begins = hits & ~np.pad(hits, ((0, 0), (1, 0)))[:, :-1]
    counts: IntArray = begins.sum(axis=1)
    return counts


def _beyond_chance(counts: IntArray, least: int, chance: float) -> list[tuple[int, float]]:
    """Rows with at least so many, if chance would not give it to any of them, and how sure that is, as a z.

    What chance gives is Poisson about the mean of all other rows, plus half of one that might have been. Leaving out
    those with the most would leave out what is usual: where most rows have none, the few that have one are the mean.
    """
    candidates = np.flatnonzero(counts >= least)
    total, others = float(counts.sum()), len(counts) - 1
    result = []
    for row in candidates.tolist():
        own = int(counts[row])
        tail = _poisson_tail(own, (total - own + 0.5) / others)
        if tail * len(counts) <= chance:
            result.append((row, math.sqrt(-2 * math.log(max(tail, 1e-300)))))
    return result


def _poisson_tail(least: int, mean: float) -> float:
    """Probability of at least so many events where ``mean`` are expected."""
    term = math.exp(-mean + least * math.log(mean) - math.lgamma(least + 1))
    total, count = 0.0, least
    while term > 1e-12 * total and count < least + 1000:
        total += term
        count += 1
        term *= mean / count
    return min(total, 1.0)


def _raised(row: int, hits: BoolArray, logs: FloatArray, z: float) -> Raised:
    at = np.flatnonzero(hits)
    first, last = int(at[0]), int(at[-1])
    runs = int(_runs(hits[None, :])[0])
    share = len(at) / (last - first + 1)
    effect = float(np.median(logs[row, at]))
    return Raised(row, first, last, effect, z, share, Pattern.INTERMITTENT, burst_steps=len(at) / runs)
