"""The stretch of steps that is slower than the others, in the order of time and beyond the noise of the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..estimate import normal_reach
from ..peers import FloatArray, IntArray
from .growth import LONG_STEP

GROUPS = 24
LEAST_GROUP = 5
"""Steps of a group at least. Stretches begin and end with groups."""

LEAST_GROUPS = 4
"""Groups from which on a stretch can be told from noise."""

MIN_RATIO = 1.01
"""A slower stretch takes so many times the others' steps at least."""

LEAST_BLOCKS = 8
"""Blocks of steps whose means tell how noisy long stretches are."""

MAX_CORRELATION = 0.9
"""Steps that are more alike than this are no noise, but a course."""

LEAST_CORRELATION = -0.5

LEAST_BLOCK = 4

MAX_UNITS = 960
"""Longer series are averaged over neighbouring steps first."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps ``first`` to ``last`` (places in the series) are slower; ``lasts``: the steps at the end are slow too."""

    first: int
    last: int
    lasts: bool

    @property
    def is_first(self) -> bool:
        """Whether it is the job's beginning: then it became faster."""
        return self.first == 0


@dataclass(frozen=True, slots=True)
class Course:
    """The slower stretch, None where noise explains all, and ``noise``: the variance of the logarithm of one step's
    time with which means of many steps vary, which is more than that of single steps where neighbours are alike."""

    stretch: Stretch | None
    noise: float

    def error(self, count: int) -> float:
        """Standard error of the mean of so many steps, as a share of it."""
        return math.sqrt(self.noise / max(count, 1))


def is_long_enough(count: int) -> bool:
    """Whether so many steps can be judged."""
    return count >= LEAST_GROUP * LEAST_GROUPS


def find_course(ms: FloatArray) -> Course:
    """Look for a slower stretch in the times of steps in order, [S].

    All stretches of groups are tried, and a steady growth: the mean of one must lie above that of the other steps by as
    many standard errors as intervals for all of them together need (Bonferroni). Steps of more than `LONG_STEP` medians
    are capped, or left out, whichever shows more. Where a slow beginning is found, the rest is looked at again.
    """
    longest = LONG_STEP * float(np.median(ms))
    usual = np.where(ms > longest, np.nan, ms)
    found = [scan(values) for values in (np.minimum(ms, longest), usual) for scan in (_scan, _grown)]
    course = max(found, key=lambda one: one[0])[1]
    if course.stretch is not None and course.stretch.is_first:
        begin = course.stretch.last + 1
        if is_long_enough(len(ms) - begin):
            later = find_course(ms[begin:]).stretch
            if later is not None and later.lasts:
                return Course(Stretch(later.first + begin, later.last + begin, lasts=True), course.noise)
    return course


def _scan(ms: FloatArray) -> tuple[float, Course]:
    """How many standard errors the clearest stretch is above the reach of chance, and the course it makes."""
    width = math.ceil(len(ms) / MAX_UNITS)
    logs = np.log(_means(ms, width))
    edges = _edges(len(logs), width)
    first, last = _windows(edges)
    whole = np.zeros(1, np.int64)
    if not len(first):
        return -math.inf, Course(None, float(_noise(_away(logs, whole, whole))[0]) * width)
    away = _away(logs, first, last)
    noise = _noise(away)
    inside, outside = _both_means(logs, first, last)
    count = last - first
    error = np.sqrt(noise * (1 / count + 1 / (len(logs) - count)))
    beyond = (inside - outside) / np.maximum(error, 1e-12) - _reach(away, noise, len(first))
    beyond = np.where(inside - outside >= math.log(MIN_RATIO), beyond, -math.inf)
    best = int(np.argmax(beyond))
    if not beyond[best] > 0:
        return float(beyond[best]), Course(None, float(_noise(_away(logs, whole, whole))[0]) * width)
    begin, end = int(first[best]), int(last[best])
    stretch = Stretch(begin * width, min(end * width, len(ms)) - 1, _lasts(logs, begin, end, int(edges[1])))
    return float(beyond[best]), Course(stretch, float(noise[best]) * width)


def _grown(ms: FloatArray) -> tuple[float, Course]:
    """The same for a steady growth, whose stretch is the half in which steps are slower."""
    width = math.ceil(len(ms) / MAX_UNITS)
    logs = np.log(_means(ms, width))
    edges = _edges(len(logs), width)
    away_from_middle = np.arange(len(logs)) - (len(logs) - 1) / 2
    slope = float(away_from_middle @ logs) / float(away_from_middle @ away_from_middle)
    away = (logs - logs.mean() - slope * away_from_middle)[None]
    noise = _noise(away)
    error = math.sqrt(float(noise[0]) / float(away_from_middle @ away_from_middle))
    beyond = abs(slope) / max(error, 1e-12) - float(_reach(away, noise, len(_windows(edges)[0]))[0])
    if beyond <= 0 or abs(slope) * len(logs) / 2 < math.log(MIN_RATIO):
        return min(beyond, 0.0), Course(None, float(_noise((logs - logs.mean())[None])[0]) * width)
    half = len(logs) // 2
    begin, end = (half, len(logs)) if slope > 0 else (0, half)
    stretch = Stretch(begin * width, min(end * width, len(ms)) - 1, _lasts(logs, begin, end, int(edges[1])))
    return beyond, Course(stretch, float(noise[0]) * width)


def _edges(count: int, width: int) -> IntArray:
    """Where groups begin among so many units of ``width`` steps, and the end."""
    size = max(math.ceil(LEAST_GROUP / width), math.ceil(count / GROUPS))
    edges = np.append(np.arange(0, count - size + 1, size), count)
    return np.delete(edges, -2) if len(edges) > 2 and edges[-1] - edges[-2] < size else edges


def _means(ms: FloatArray, width: int) -> FloatArray:
    """Means over so many neighbours; what is missing takes the nearest known one's place."""
    padded = np.concatenate([ms, np.full(-len(ms) % width, np.nan)]).reshape(-1, width)
    known = np.isfinite(padded)
    count = known.sum(axis=1)
    total = np.where(known, padded, 0.0).sum(axis=1)
    means = np.divide(total, count, out=np.full(len(padded), np.nan), where=count > 0)
    has = np.flatnonzero(count > 0)
    result: FloatArray = np.interp(np.arange(len(means)), has, means[has])
    return result


def _windows(edges: IntArray) -> tuple[IntArray, IntArray]:
    """All stretches between two edges but the whole: first and one past the last unit of each, [W]."""
    places = np.arange(len(edges))
    first, last = (edges[index] for index in np.nonzero(places[:, None] < places))
    proper = (last - first) < edges[-1]
    return first[proper], last[proper]


def _both_means(logs: FloatArray, first: IntArray, last: IntArray) -> tuple[FloatArray, FloatArray]:
    """Means inside and outside of each stretch, [W]."""
    sums = np.concatenate([[0.0], np.cumsum(logs)])
    inside, count = sums[last] - sums[first], last - first
    return inside / np.maximum(count, 1), (sums[-1] - inside) / np.maximum(len(logs) - count, 1)


def _away(logs: FloatArray, first: IntArray, last: IntArray) -> FloatArray:
    """What is left of units when the two means of each stretch are taken out, [W, S]."""
    inside, outside = _both_means(logs, first, last)
    places = np.arange(len(logs))
    within = (places >= first[:, None]) & (places < last[:, None])
    result: FloatArray = logs - np.where(within, inside[:, None], outside[:, None])
    return result


def _noise(away: FloatArray) -> FloatArray:
    """Variance of a unit with which means of many vary, [W], from what is left of units, [W, S].

    With a correlation r of neighbours it is v (1 + r) / (1 - r), as in `against.estimate`; of n units in blocks of b,
    the mean of one block has the variance v / b (batch means). The largest of all counts. The r of n values is too
    small by about (1 + 4 r) / n where one mean was taken out (Marriott and Pope, 1954).
    """
    count = away.shape[1]
    own = (away**2).sum(axis=1)
    found = np.divide((away[:, 1:] * away[:, :-1]).sum(axis=1), own, out=np.zeros(len(own)), where=own > 0)
    found = np.clip(found + 2 * (1 + 4 * np.maximum(found, 0)) / count, LEAST_CORRELATION, MAX_CORRELATION)
    result: FloatArray = own / max(count - 2, 1) * (1 + found) / (1 - found)
    size = LEAST_BLOCK
    while size * LEAST_BLOCKS <= count:
        blocks = count // size
        means = away[:, : blocks * size].reshape(len(away), blocks, size).mean(axis=2)
        result = np.maximum(result, size * (means**2).sum(axis=1) / max(blocks - 2, 1))
        size *= 2
    return result


def _reach(away: FloatArray, noise: FloatArray, tried: int) -> FloatArray:
    """Standard errors that a mean must lie above the others', for all ``tried`` on both series, [W].

    A quantile z of the normal distribution is widened to Student's with v degrees of freedom, z + (z^3 + z) / 4v
    (Abramowitz and Stegun, 26.7.5), of which there are as many as independent units.
    """
    z = normal_reach(2 * (tried + 1))
    count = away.shape[1]
    single = (away**2).sum(axis=1) / max(count - 2, 1)
    own = np.divide(count * single, noise, out=np.full(len(noise), float(count)), where=noise > 0)
    result: FloatArray = z + (z**3 + z) / (4 * np.clip(own - 2, 1.0, count))
    return result


def _lasts(logs: FloatArray, first: int, last: int, size: int) -> bool:
    """Whether the last fifth since the stretch began is slower than what came before by half of what it is at least."""
    if first == 0:
        return False
    before = float(logs[:first].mean())
    tail = max(size, math.ceil((len(logs) - first) / 5))
    return float(logs[-tail:].mean()) >= before + 0.5 * (float(logs[first:last].mean()) - before)
