"""What accused machines cost an attempt, step by step: a verdict's estimate, held to what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

import numpy as np

from ..mfu.parts import BoolArray
from ..mfu.steps import StepSeries
from ..peers import FloatArray
from ..verdict import Cause, Culprit, CulpritKind, StragglerVerdict
from ..whatif.result import Part

HARDWARE = frozenset({CulpritKind.RANK, CulpritKind.HOST, CulpritKind.LINK, CulpritKind.GROUP})

MOST_LOST = 0.99

MIN_OUTSIDE = 10
"""Steps outside the stretches of all accused machines from which on their time says what the machines cost."""

WARM_UP = 2
"""First steps of an attempt, which stand for no others."""

LONG_STEP = 3.0
"""Longer steps (of the median) count as so long: a single stop would decide a mean."""


class LostBy(StrEnum):
    """Where the size of a loss is from: the what-if replay, the steps outside the stretch, or the verdict alone."""

    WHAT_IF = "what-if"
    STEP_TIME = "step-time"
    LOST_SHARE = "lost-share"


def lost_to_machines(verdict: StragglerVerdict, series: StepSeries) -> tuple[FloatArray, LostBy]:
    """Share of each step's time that accused machines cost, [S], and where its size is from."""
    lost = lost_shares(series, [one for one in verdict.culprits if one.kind in HARDWARE])
    replayed = _replayed(verdict)
    if replayed is not None:
        return _scaled(lost, series, replayed), LostBy.WHAT_IF
    outside = (lost == 0) & (np.arange(len(series)) >= WARM_UP)
    if (lost > 0).any() and outside.sum() >= MIN_OUTSIDE:
        return _held(lost, series, outside), LostBy.STEP_TIME
    return lost, LostBy.LOST_SHARE


def lost_shares(series: StepSeries, culprits: Iterable[Culprit]) -> FloatArray:
    """Share of each step's time that is lost, [S]: of culprits that slow the same step, the largest.

    A culprit's share is of the time of all steps; it is laid on the steps that it affects.
    """
    result, total = np.zeros(len(series)), float(series.ms.sum())
    for one in culprits:
        here = (series.steps >= one.steps[0]) & (series.steps <= one.steps[1])
        inside = float(series.ms[here].sum())
        if inside > 0:
            result[here] = np.maximum(result[here], min(one.lost_share * total / inside, MOST_LOST))
    return result


def _replayed(verdict: StragglerVerdict) -> float | None:
    """Share of the time that repairing the accused ranks would win, by the what-if replay; None where it tells not.

    What each of them saves by itself is added up, to no more than the whole excess 1 - 1 / S. Contributions of only
    some of the accused, or of links, say nothing of the sum.
    """
    found = verdict.whatif
    accused = {rank for one in verdict.culprits if one.kind in HARDWARE for rank in one.ranks}
    if found is None or found.slowdown <= 1 or not accused:
        return None
    saved = {int(one.name): one.saved for one in found.of(Part.RANK)}
    if not accused <= saved.keys() or any(one.cause == Cause.NETWORK for one in verdict.culprits):
        return None
    share = sum(max(saved[rank], 0.0) for rank in accused)
    return min(share, 1 - 1 / found.slowdown)


def _scaled(lost: FloatArray, series: StepSeries, share: float) -> FloatArray:
    """The same steps, but so much in all; nothing where no machine was accused."""
    total = float((lost * series.ms).sum()) / float(series.ms.sum())
    return np.minimum(lost * (share / total), MOST_LOST) if total > 0 else lost


def _held(lost: FloatArray, series: StepSeries, outside: BoolArray) -> FloatArray:
    """No more than steps are longer than those outside: own time that hides in a pipeline's bubbles costs nothing.

    Two standard errors of the two means are granted; noise is taken from differences between neighbouring steps.
    """
    ms = np.minimum(series.ms, LONG_STEP * float(np.median(series.ms)))
    inside = lost > 0
    sigma = 1.4826 * float(np.median(np.abs(np.diff(ms)))) / math.sqrt(2)
    error = sigma * math.sqrt(1 / outside.sum() + 1 / inside.sum())
    longer = float(ms[inside].mean() - ms[outside].mean()) + 2 * error
    most = max(longer / float(ms[inside].mean()), 0.0)
    found = float((lost * ms)[inside].sum() / ms[inside].sum())
    return lost * min(1.0, most / found)
