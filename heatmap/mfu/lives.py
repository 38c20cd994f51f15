"""The attempts of a run for the MFU analysis: each one's steps and their parts in columns, restarts, long steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import SegmentKind
from ..cells import NS_PER_MS
from ..peers import FloatArray, IntArray
from ..source import Choice, Source, choose_source
from .growth import LONG_STEP, Columns
from .parts import StepParts, load_parts
from .result import LongStep, Restart
from .steps import StepSeries, load_series, moment

MAX_WARM_UP = 2
MAX_LONG_STEPS = 20

LONG_ATTEMPT = 12
"""Steps of an attempt from which on its first ones are left out."""


@dataclass(frozen=True, slots=True)
class Life:
    """One attempt: all its ``series``, the ``kept`` steps after warm-up, and the ``columns`` whose spans are known.

    ``first`` [S] is the first step of each column.
    """

    attempt: Attempt
    series: StepSeries
    kept: StepSeries
    choice: Choice
    first: IntArray
    columns: Columns

    @property
    def width(self) -> int:
        """Steps of a column."""
        return self.columns.parts.width if self.columns.parts is not None else 1

    def inside(self, steps: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """Which columns begin in the given steps (first, last), [S]."""
        return np.asarray((self.first >= steps[0]) & (self.first <= steps[1]), np.bool_)


def load_life(store: Store, attempt: Attempt, steps: tuple[int, int] | None) -> Life | None:
    """One attempt in the given steps (first, last); None where it has no step with a time."""
    series = load_series(store, attempt)
    series = series.part(np.isfinite(series.ms) & (series.ms > 0))
    asked = series if steps is None else series.part((series.steps >= steps[0]) & (series.steps <= steps[1]))
    if not len(asked):
        return None
    choice = choose_source(store, attempt, steps)
    parts = load_parts(store, attempt, choice, steps)
    if parts is not None and _is_the_step(parts, asked):
        parts = None
    width = parts.width if parts is not None else 1
    kept = _after_warm_up(asked, first=int(series.steps[0]), is_long=len(series) >= LONG_ATTEMPT, width=width)
    first, columns = _columns(kept, parts)
    return Life(attempt, asked, kept, choice, first, columns)


def _is_the_step(parts: StepParts, series: StepSeries) -> bool:
    """Whether all that was recorded is one span over the whole step, as importers of logs write it: no part of it."""
    whole = float(np.nanmean(parts.own_ms.sum(axis=0)))
    return set(parts.kinds) == {SegmentKind.HOST} and len(parts.names) == 1 and whole > 0.98 * float(series.ms.mean())


def _after_warm_up(asked: StepSeries, *, first: int, is_long: bool, width: int) -> StepSeries:
    """The steps without the ``first`` ones of the attempt, which are unlike the others: two, or their window.

    None is left out of a short attempt, or where nothing else was asked for.
    """
    begin = first + MAX_WARM_UP if width == 1 else first // width * width + width
    kept = asked.part(asked.steps >= begin)
    return kept if is_long and len(kept) else asked


def _columns(series: StepSeries, parts: StepParts | None) -> tuple[IntArray, Columns]:
    """Step times in the columns that parts have; a step a column where there are none."""
    long_ms = np.where(_is_long(series), series.ms - float(np.median(series.ms)), 0.0)
    if parts is None:
        return series.steps, Columns(series.ms, np.ones(len(series)), long_ms, None)
    place = np.searchsorted(parts.first, series.steps, side="right") - 1
    inside = (place >= 0) & (series.steps < parts.first[place] + parts.width) & series.timed
    at, size = place[inside], len(parts.first)
    count = np.bincount(at, minlength=size).astype(np.float64)

    def mean(values: FloatArray) -> FloatArray:
        total = np.bincount(at, values[inside], size)
        means: FloatArray = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
        return means

    return parts.first, Columns(mean(series.ms), count, np.nan_to_num(mean(long_ms)), parts)


def _is_long(series: StepSeries) -> npt.NDArray[np.bool_]:
    return np.asarray(series.ms > LONG_STEP * np.median(series.ms), np.bool_)


def restarts(lives: Sequence[Life]) -> tuple[Restart, ...]:
    """What lies between each attempt and the one before; a step that several later ones repeat counts once."""
    found = []
    limits = [np.inf] * len(lives)
    for place, (before, after) in enumerate(itertools.pairwise(lives)):
        first = int(after.series.steps[0])
        lost_ms: list[FloatArray] = []
        for earlier, life in enumerate(lives[: place + 1]):
            again = (life.series.steps >= first) & (life.series.steps < limits[earlier])
            lost_ms.append(life.series.ms[again])
            limits[earlier] = min(limits[earlier], first)
        lost = np.concatenate(lost_ms)
        ended, began = moment(before.series.end_ns()), moment(after.series.start_ns[0])
        down_s = None if ended is None or began is None else round((began - ended) / 1e9, 3)
        found.append(
            Restart(
                after.attempt.attempt,
                first,
                before.attempt.exit_reason,
                len(lost),
                round(float(lost.sum()) / 1e3, 3),
                down_s,
            )
        )
    return tuple(found)


def long_time_share(lives: Sequence[Life]) -> float:
    """Share of the time that single long steps take beyond the median."""
    longer = sum(float((life.kept.ms - np.median(life.kept.ms))[_is_long(life.kept)].sum()) for life in lives)
    return longer / sum(float(life.kept.ms.sum()) for life in lives)


def long_steps(lives: Sequence[Life]) -> tuple[tuple[LongStep, ...], int]:
    """Steps of more than `LONG_STEP` medians, the longest first, and how many there are."""
    found = []
    for life in lives:
        usual = float(np.median(life.kept.ms))
        for place in np.flatnonzero(_is_long(life.kept)):
            step, took = int(life.kept.steps[place]), float(life.kept.ms[place])
            segment = _filled_by(life, step, took, usual)
            found.append(
                LongStep(life.attempt.attempt, step, moment(life.kept.start_ns[place]), took, took / usual, segment)
            )
    found.sort(key=lambda one: -one.duration_ms)
    return tuple(found[:MAX_LONG_STEPS]), len(found)


def _filled_by(life: Life, step: int, took_ms: float, usual_ms: float) -> str | None:
    """The work that grew most in the step's column, if work fills at least half of what the step is longer."""
    parts = life.columns.parts
    if parts is None:
        return None
    column = int(np.searchsorted(life.first, step, side="right")) - 1
    if column < 0 or step >= life.first[column] + parts.width:
        return None
    both = (parts.own_ms + parts.awaited_ms) * parts.width
    more = np.nan_to_num(both[:, column] - np.nanmedian(both, axis=1))
    filled = np.maximum(more, 0.0).sum() >= 0.5 * (took_ms - usual_ms)
    return parts.names[int(np.argmax(more))] if filled else None


def wall_mfu(lives: Sequence[Life]) -> float | None:
    """FLOPs of the steps that counted over what the peak allows in all the time since the first step began."""
    begin = lives[0].series.start_ns[0]
    wall_ms = (lives[-1].series.end_ns() - int(begin)) / NS_PER_MS
    if wall_ms <= 0 or (len(lives) > 1 and any(moment(life.series.start_ns[0]) is None for life in lives)):
        return None
    done, known = 0.0, True
    for place, life in enumerate(lives):
        limit = min((int(later.series.steps[0]) for later in lives[place + 1 :]), default=np.inf)
        counts = life.series.part(life.series.steps < limit)
        known &= bool(np.isfinite(counts.mfu).all())
        done += float(np.nansum(counts.mfu * counts.ms))
    return done / wall_ms if known and done > 0 else None


def is_rollups(lives: Sequence[Life]) -> bool:
    """Whether any attempt was read from rollups."""
    return any(life.choice.source == Source.ROLLUPS for life in lives)
