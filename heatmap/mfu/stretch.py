"""The stretch of steps that is slower than the others, in the order of time and beyond the noise of the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..against.estimate import normal_reach
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

    All stretches of groups are tried; the mean of one must lie above that of the other steps by as many standard errors
    as intervals for all of them together need (Bonferroni). Steps of more than `LONG_STEP` medians are capped, or left
    out, whichever shows more. Where a slow beginning is found, the rest is looked at again.
    """
    capped = np.minimum(ms, LONG_STEP * float(np.median(ms)))
    usual = np.where(ms > LONG_STEP * np.median(ms), np.nan, ms)
    found = max((_scan(values) for values in (capped, usual)), key=lambda one: one[0])
    course = found[1]
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
    units = _means(ms, width)
    size = max(math.ceil(LEAST_GROUP / width), math.ceil(len(units) / GROUPS))
    edges = np.append(np.arange(0, len(units) - size + 1, size), len(units))
    if len(edges) > 2 and edges[-1] - edges[-2] < size:
        edges = np.delete(edges, -2)
    logs = np.log(units)
    first, last = _windows(edges)
    if not len(first):
        return -math.inf, Course(None, _noise(logs, np.zeros(1, np.int64), np.zeros(1, np.int64))[0] * width)
    noise = _noise(logs, first, last)
    inside, outside = _both_means(logs, first, last)
    count = last - first
    error = np.sqrt(noise * (1 / count + 1 / (len(logs) - count)))
    beyond = (inside - outside) / np.maximum(error, 1e-12) - _reach(logs, noise, len(first))
    beyond = np.where(inside - outside >= math.log(MIN_RATIO), beyond, -math.inf)
    best = int(np.argmax(beyond))
    if not beyond[best] > 0:
        return float(beyond[best]), Course(None, float(_noise(logs, first[:1] * 0, last[:1] * 0)[0]) * width)
    begin, end = int(first[best]), int(last[best])
    stretch = Stretch(begin * width, min(end * width, len(ms)) - 1, _lasts(logs, begin, end, size))
    return float(beyond[best]), Course(stretch, float(noise[best]) * width)


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


def _noise(logs: FloatArray, first: IntArray, last: IntArray) -> FloatArray:
    """Variance of a unit with which means of many vary once the two means of a stretch are taken out, [W].

    Of n units in blocks of b, the mean of one block has the variance v / b of independent units (batch means). Where
    neighbours are alike, longer blocks tell a larger v: the largest of all lengths counts, and of `_of_neighbours`.
    """
    inside, outside = _both_means(logs, first, last)
    result = _of_neighbours(logs, first, last)
    size = 1
    while size == 1 or size * LEAST_BLOCKS <= len(logs):
        blocks = len(logs) // size
        begins = np.arange(blocks) * size
        means = logs[: blocks * size].reshape(blocks, size).mean(axis=1)
        overlap = np.clip(np.minimum(begins + size, last[:, None]) - np.maximum(begins, first[:, None]), 0, size)
        away = means - outside[:, None] - overlap / size * (inside - outside)[:, None]
        result = np.maximum(result, size * (away**2).sum(axis=1) / max(blocks - 2, 1))
        size *= 2
    return result


def _of_neighbours(logs: FloatArray, first: IntArray, last: IntArray) -> FloatArray:
    """The same from the correlation r of neighbours, [W]: v (1 + r) / (1 - r), as in `against.estimate`.

    The r of n values is too small by about (1 + 4 r) / n where a mean was taken out (Marriott and Pope, 1954).
    """
    inside, outside = _both_means(logs, first, last)
    places = np.arange(len(logs))
    away = logs - np.where((places >= first[:, None]) & (places < last[:, None]), inside[:, None], outside[:, None])
    own = (away**2).sum(axis=1)
    found = np.divide((away[:, 1:] * away[:, :-1]).sum(axis=1), own, out=np.zeros(len(own)), where=own > 0)
    found = np.clip(found + 2 * (1 + 4 * np.maximum(found, 0)) / len(logs), 0.0, MAX_CORRELATION)
    result: FloatArray = own / max(len(logs) - 2, 1) * (1 + found) / (1 - found)
    return result


def _reach(logs: FloatArray, noise: FloatArray, tried: int) -> FloatArray:
    """Standard errors that a mean must lie above the others', for all ``tried`` on both series, [W].

    A quantile z of the normal distribution is widened to Student's with v degrees of freedom, z + (z^3 + z) / 4v
    (Abramowitz and Stegun, 26.7.5), of which there are as many as independent units.
    """
    z = normal_reach(2 * tried)
    single = float(np.median(np.abs(np.diff(logs))) / math.sqrt(2) * 1.4826) ** 2
    own = np.minimum(len(logs) * single / np.maximum(noise, 1e-300), len(logs))
    return z + (z**3 + z) / (4 * np.maximum(own - 2, 1.0))


def _lasts(logs: FloatArray, first: int, last: int, size: int) -> bool:
    """Whether the last fifth since the stretch began is slower than what came before by half of what it is at least."""
    if first == 0:
        return False
    before = float(logs[:first].mean())
    tail = max(size, math.ceil((len(logs) - first) / 5))
    return float(logs[-tail:].mean()) >= before + 0.5 * (float(logs[first:last].mean()) - before)
