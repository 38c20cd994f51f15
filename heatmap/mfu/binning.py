"""Bins of steps: how they are cut, their mean steps, which are slower, and which one the others are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..peers import FloatArray
from .growth import LONG_STEP, Columns
from .lives import Life
from .parts import BoolArray
from .steps import StepSeries
from .stretch import Course, find_course, is_long_enough

MIN_BIN_STEPS = 5

SLOWER = 1.01
"""Bins whose mean step takes so many times the reference's, and more than `SURE` standard errors, count as slower."""

SURE = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """One bin: steps (first, last) of an attempt; ``begin`` is the place of its first step among those of all."""

    life: Life
    steps: tuple[int, int]
    begin: int

    def series(self) -> StepSeries:
        """All its steps."""
        kept = self.life.kept
        return kept.part((kept.steps >= self.steps[0]) & (kept.steps <= self.steps[1]))

    def compared_ms(self) -> FloatArray:
        """Times of the steps that are compared: those whose spans were timed, where there are any."""
        series = self.series()
        has_parts = self.life.columns.parts is not None
        return series.ms[series.timed] if has_parts and series.timed.any() else series.ms

    def mean_ms(self) -> float:
        """Their mean."""
        return float(self.compared_ms().mean())


@dataclass(frozen=True, slots=True)
class Binned:
    """All bins in the order of time, the one that the others are compared with, and the course of the step's time."""

    cuts: tuple[Cut, ...]
    reference: Cut
    course: Course | None

    def is_slower(self, one: Cut) -> bool:
        """Whether its mean step is longer than the reference's beyond noise."""
        base, counts = self.reference.mean_ms(), (len(one.compared_ms()), len(self.reference.compared_ms()))
        error = 0.0 if self.course is None else math.hypot(*(self.course.error(count) for count in counts))
        usual = one.compared_ms()
        has_stop = bool((usual > LONG_STEP * float(np.median(one.life.kept.ms))).any())
        return one.mean_ms() > base * (SLOWER if has_stop else max(SLOWER, math.exp(SURE * error)))

    def inside(self, one: Cut) -> bool:
        """Whether most of its steps are in the slower stretch."""
        stretch = None if self.course is None else self.course.stretch
        if stretch is None:
            return False
        end = one.begin + len(one.series()) - 1
        shared = min(end, stretch.last) - max(one.begin, stretch.first) + 1
        return 2 * shared > len(one.series())


def binned(lives: Sequence[Life], bins: int) -> Binned:
    """Cut the attempts into about so many bins, and look for what is slower."""
    cuts: list[Cut] = []
    before = 0
    for life in lives:
        for steps in _ranges(life, max(1, round(bins / len(lives)))):
            begin = before + int(np.searchsorted(life.kept.steps, steps[0]))
            cuts += [Cut(life, steps, begin)]
        before += len(life.kept)
    ms = np.concatenate([life.kept.ms for life in lives])
    course = find_course(ms) if is_long_enough(len(ms)) else None
    return Binned(tuple(cuts), _reference(cuts, course), course)


def _ranges(life: Life, bins: int) -> list[tuple[int, int]]:
    """Steps (first, last) of the bins of an attempt: as many as asked for, in whole columns."""
    first, last = int(life.kept.steps[0]), int(life.kept.steps[-1])
    spacing = (last - first) / max(len(life.kept) - 1, 1)  # logs may hold every fifth step only
    size = max(math.ceil((last - first + 1) / bins), math.ceil(MIN_BIN_STEPS * spacing), life.width)
    size = -(-size // life.width) * life.width
    start = first // life.width * life.width if life.width > 1 else first
    edges = list(range(start, last + 1, size))
    if len(edges) > 1 and last - edges[-1] + 1 < size / 2:
        edges.pop()  # a short end belongs to the bin before it
    ends = [edge - 1 for edge in edges[1:]] + [last]
    return [
        (max(low, first), high)
        for low, high in zip(edges, ends, strict=True)
        if ((life.kept.steps >= low) & (life.kept.steps <= high)).any()
    ]


def _reference(cuts: Sequence[Cut], course: Course | None) -> Cut:
    """The first bin that is as fast as the fastest within a standard error, before the slower stretch or outside it.

    A decline is told from the beginning on, and the fastest of many bins is fast by chance.
    """
    chosen = list(cuts)
    if course is not None and (stretch := course.stretch) is not None:
        before = [one for one in cuts if one.begin + len(one.series()) <= stretch.first]
        after = [one for one in cuts if one.begin > stretch.last]
        chosen = before or after or chosen
    means = [one.mean_ms() for one in chosen]
    fastest = int(np.argmin(means))
    for one, mean in zip(chosen, means, strict=True):
        counts = (len(one.compared_ms()), len(chosen[fastest].compared_ms()))
        error = 0.0 if course is None else math.hypot(*(course.error(count) for count in counts))
        if mean <= means[fastest] * max(SLOWER, math.exp(error)):
            return one
    return chosen[fastest]


def columns_of(chosen: Sequence[Cut]) -> list[tuple[Columns, BoolArray]]:
    """The columns of some bins, one entry an attempt."""
    by_life: dict[int, tuple[Life, BoolArray]] = {}
    for one in chosen:
        known = by_life.get(id(one.life))
        keep = one.life.inside(one.steps) if known is None else known[1] | one.life.inside(one.steps)
        by_life[id(one.life)] = (one.life, keep)
    return [(life.columns, keep & np.isfinite(life.columns.ms)) for life, keep in by_life.values()]
