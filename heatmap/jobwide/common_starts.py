"""Actions that all replicas begin together, however early each was ready, with nothing recorded between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..asking import ask
from ..observations import Observations
from ..peers import column_median
from ..synchrony import Slope, fit_slope
from ..verdict import Evidence, Pattern
from .actions import Key, StageActions, action_name, idle_sql
from .barrier_signs import MIN_SHARE, Barrier

MAX_SLOPE = -0.9
MIN_EXPLAINED = 0.8
"""Of idle time on lateness: who is ready later waits less, by as much, where all are held until the last one."""

MIN_REPLICAS = 3

MIN_COLUMNS = 6
"""Steps looked at that a barrier which crept in has to hold, and half as many before it without it."""

FREE_SLOPE = -0.5
"""Before it came, idle time falls by less than this with lateness."""


def common_starts(store: Store, attempt: Attempt, seen: Observations, stages: Sequence[StageActions]) -> Barrier | None:
    """The stage that is held most; None where none is. ``stages`` hold a sample of the steps.

    It is looked for in all steps of the sample, else in those from one of them to the end.
    """
    usual = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else np.nan
    if not usual > 0:
        return None
    fit = [one for one in stages if len(one.ranks) >= MIN_REPLICAS and np.isfinite(one.uncertainty_ms)]
    found = [held for one in fit if (held := _held_since(one, usual)) is not None]
    if not found:
        return None
    first, places, idle, stage = max(found, key=lambda one: one[2])
    inside = _since(stage, first)
    widest = max(places, key=lambda at: _mean_idle(inside, at))
    sql = idle_sql(attempt, inside, widest)
    own = ask(store, sql, attempt)
    if own is None:
        return None
    begin = int(seen.steps[0] if first == 0 else stage.steps[first])
    since = "" if first == 0 else f"from about step {begin} on "
    statement = (
        f"{since}the replicas of stage {stage.stage} begin {action_name(stage.keys[widest])} at the same moment, "
        f"though they were ready at different ones and nothing that was recorded keeps them: {own:.2f} ms of a step "
        f"are idle there on average, {idle:.2f} ms at the {len(places)} such places"
    )
    evidence = Evidence(statement, own, 0.0, "events", sql)
    share = min(idle / usual, 1.0)
    lost = share * float(np.nansum(seen.step_ms[seen.steps >= begin])) / float(np.nansum(seen.step_ms))
    steps = begin, seen.last_of(int(seen.steps[-1]), seen.source.step_width)
    name = stage.keys[widest][0]
    return Barrier(name, round(share, 6), round(lost, 6), 0.8, steps, Pattern.CHRONIC, (evidence,))


def _since(one: StageActions, first: int, last: int | None = None) -> StageActions:
    """Columns ``first`` to before ``last`` of those looked at."""
    part = slice(first, last)
    return replace(
        one,
        steps=one.steps[part],
        start_ms=one.start_ms[:, part],
        idle_ms=one.idle_ms[:, part],
        order=one.order[:, part],
    )


def _held_since(one: StageActions, usual: float) -> tuple[int, list[int], float, StageActions] | None:
    """Column from which on a stage is held, the places, and how long a step is idle there, ms."""
    columns = len(one.steps)
    for first in [0, *range(MIN_COLUMNS // 2, columns - MIN_COLUMNS + 1)]:
        inside = _since(one, first)
        least = MIN_SHARE * usual / len(one.keys)
        costly = (at for at in range(1, len(one.keys)) if _mean_idle(inside, at) >= least)
        places = [at for at in costly if not _opens_chunk(one.keys, at) and _is_held(inside, at)]
        if first:
            before = _since(one, 0, first)
            places = [at for at in places if not _was_held(before, at, _mean_idle(inside, at))]
        idle = sum(_mean_idle(inside, at) for at in places)
        if places and idle >= MIN_SHARE * usual:
            return first, places, idle, one
    return None


def _was_held(before: StageActions, at: int, idle_ms: float) -> bool:
    """Whether it was idle before an action as long, or in that way, before."""
    if _mean_idle(before, at) > idle_ms / 2:
        return True
    slope = _slope(before, at)
    return slope is not None and slope.value < FREE_SLOPE and _mean_idle(before, at) > idle_ms / 4


def _mean_idle(one: StageActions, at: int) -> float:
    """Mean idle time before an action in ms; 0 where it is not known."""
    known = one.idle_ms[:, :, at][np.isfinite(one.idle_ms[:, :, at])]
    return float(known.mean()) if len(known) else 0.0


def _opens_chunk(keys: Sequence[Key], at: int) -> bool:
    """Whether an action is the first forward of its chunk, which waits for its weights."""
    return all(key[1] != keys[at][1] for key in keys[:at])


def _is_held(one: StageActions, at: int) -> bool:
    """Whether idle time before an action falls with how late a rank was ready, by as much."""
    slope = _slope(one, at)
    return slope is not None and slope.value <= MAX_SLOPE and slope.explained >= MIN_EXPLAINED


def _slope(one: StageActions, at: int) -> Slope | None:
    """Slope of idle time before an action on how late a rank was ready; None where ranks are ready alike."""
    idle = one.idle_ms[:, :, at]
    ready = one.start_ms[:, :, at] - idle
    late, short = (values - column_median(values) for values in (_known(ready), _known(idle)))
    if not np.isfinite(late).any() or float(np.nanstd(late)) <= 2 * one.uncertainty_ms:
        return None
    return fit_slope(late, short)


def _known(values: np.ndarray) -> np.ndarray:
    """Columns in which every rank is known; the others are taken out."""
    return values[:, np.isfinite(values).all(axis=0)]
