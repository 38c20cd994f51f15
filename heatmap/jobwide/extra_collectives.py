"""A collective between the forwards and backwards of a step which the schedule does not have, and since which step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...profiler.vocabulary import PIPELINE_AXES
from ..asking import ask
from ..detect import BoolArray
from ..observations import Observations
from ..peers import FloatArray
from ..verdict import Evidence, Pattern
from .actions import COMPUTE
from .barrier_signs import MIN_ALIKE, MIN_COLUMNS, MIN_SHARE, Barrier, longest_stretch, pattern_of

WITHIN_ONE_LAYER = ("tp", "cp", "ep", *PIPELINE_AXES)
"""Axes of collectives that belong to a layer or a stage: the schedule of actions does not list those."""

MIN_PART = 0.5
"""What a stretch of steps loses over what all steps with the collective lose, where the stretch alone is told."""

Stretch = tuple[int, int, float, float, Pattern]
"""First and last column, shares of the job's time and of these steps that are lost, and pattern."""


def extra_collective(store: Store, attempt: Attempt, seen: Observations) -> Barrier | None:
    """The collective that costs most; None where none costs enough in the steps in which nearly all ranks run it."""
    sql = _collectives_sql(attempt, seen)
    rows = store.query(sql, attempt=attempt)
    names = np.array(rows["name"].to_pylist(), dtype=object)
    steps, ranks = rows["step"].to_numpy(), rows["ranks"].to_numpy()
    waited = rows["waited_ms"].to_numpy(zero_copy_only=False).astype(float)
    found = []
    for name in sorted(set(names.tolist())):
        own = (names == name) & (ranks >= MIN_ALIKE * len(seen.ranks)) & np.isin(steps, seen.steps)
        waits = np.full(len(seen.steps), np.nan)
        waits[np.searchsorted(seen.steps, steps[own])] = waited[own]
        if (one := _stretch(waits, seen)) is not None:
            found.append((one[2], name, one))
    if not found:
        return None
    _, name, (first, last, lost, held, pattern) = max(found, key=lambda one: (one[0], one[1]))
    span = int(seen.steps[first]), int(seen.steps[last])
    chosen = f"FROM ({sql}) WHERE name = {literal(name)} AND step BETWEEN {span[0]} AND {span[1]}"
    value = ask(store, f"SELECT median(waited_ms) {chosen}", attempt)
    often = ask(store, f"SELECT median(often) {chosen}", attempt)
    statement = (
        f"{name} runs {often:.1f} times a step between forwards and backwards, where the schedule has no such "
        f"collective, in steps {span[0]} to {span[1]}; the median rank waits {value:.2f} ms a step for it"
    )
    evidence = Evidence(statement, value, None, "events", f"SELECT median(waited_ms) {chosen}")
    return Barrier(name, round(held, 6), round(min(lost, 1.0), 6), 0.95, span, pattern, (evidence,))


def _stretch(waits: FloatArray, seen: Observations) -> Stretch | None:
    """The stretch that loses most, or all steps in which it comes now and then, where no stretch has most of the loss.

    ``waits`` [S] is what the median rank waits for it, NaN in steps without it. One that comes in some steps only has
    to cost enough of all the time between.
    """
    runs, step_ms = np.isfinite(waits), seen.step_ms
    if runs.sum() < min(MIN_COLUMNS, len(waits)) or not float(np.nansum(step_ms)) > 0:
        return None
    inside = [_of_stretch(waits, step_ms, first, last) for first, last in _stretches(np.asarray(runs, np.bool_))]
    best = max((one for one in inside if one[3] >= MIN_SHARE), key=lambda one: one[2], default=None)
    now_and_then = _of_all(waits, step_ms)
    if now_and_then[3] < MIN_SHARE or (best is not None and best[2] >= MIN_PART * now_and_then[2]):
        return best
    return now_and_then


def _stretches(runs: BoolArray) -> Iterator[tuple[int, int]]:
    """First and last columns of all stretches in which nearly all steps run it, the longest first."""
    left = runs.copy()
    while (found := longest_stretch(left)) is not None:
        yield found
        left[found[0] : found[1] + 1] = False


def _of_stretch(waits: FloatArray, step_ms: FloatArray, first: int, last: int) -> Stretch:
    """What is lost in a stretch: of the median step, in each of its steps."""
    took = step_ms[first : last + 1]
    usual = float(np.nanmedian(took)) if np.isfinite(took).any() else 0.0
    share = float(np.nanmedian(waits[first : last + 1])) / usual if usual > 0 else 0.0
    return first, last, share * float(np.nansum(took)) / float(np.nansum(step_ms)), share, pattern_of(last, len(waits))


def _of_all(waits: FloatArray, step_ms: FloatArray) -> Stretch:
    """What is lost in all steps that run it, over those and the steps between them."""
    at = np.flatnonzero(np.isfinite(waits))
    first, last = int(at[0]), int(at[-1])
    lost_ms, took_ms = float(np.nanmedian(waits)) * len(at), float(np.nansum(step_ms[first : last + 1]))
    share = lost_ms / took_ms if took_ms > 0 else 0.0
    return first, last, lost_ms / float(np.nansum(step_ms)), share, Pattern.INTERMITTENT


def _collectives_sql(attempt: Attempt, seen: Observations) -> str:
    """Ranks, times a step and median wait of collectives inside the compute of a step, by name and step.

    Where no wait was recorded, one that overlaps with the rank's own compute is taken as not waited for.
    """
    first, last = int(seen.steps[0]), int(seen.steps[-1])
    layers = ", ".join(literal(axis) for axis in WITHIN_ONE_LAYER)
    when = f"x.run = {literal(attempt.run)} AND x.attempt = {attempt.attempt} AND x.step BETWEEN {first} AND {last}"
    joined = "FROM events x JOIN segments s USING (run, attempt, segment)"
    columns = "x.rank, x.step, x.start_ns, x.start_ns + x.duration_ns AS end_ns"
    return f"""
        WITH works AS (SELECT {columns} {joined} WHERE {when} AND s.kind = 'compute' AND s.name IN {COMPUTE}),
        calls AS (SELECT {columns}, s.name, x.exposed_ns {joined}
                  WHERE {when} AND s.kind = 'collective' AND coalesce(s.axis, '') NOT IN ({layers})
                      AND NOT contains(s.name, 'reduce_scatter') AND NOT contains(s.name, 'all_gather')),
        inside AS (SELECT c.* FROM calls c JOIN (SELECT rank, step, min(start_ns) AS first_ns, max(start_ns) AS last_ns
                                                 FROM works GROUP BY rank, step) w
                   ON w.rank = c.rank AND w.step = c.step AND c.start_ns > w.first_ns AND c.end_ns <= w.last_ns),
        waits AS (SELECT c.rank, c.step, c.name, coalesce(any_value(c.exposed_ns),
                      CASE count(w.rank) WHEN 0 THEN c.end_ns - c.start_ns ELSE 0 END) AS waited_ns
                  FROM inside c LEFT JOIN works w ON w.rank = c.rank AND w.step = c.step
                      AND w.start_ns < c.end_ns AND w.end_ns > c.start_ns
                  GROUP BY c.rank, c.step, c.name, c.start_ns, c.end_ns)
        SELECT name, step, count(*) AS ranks, median(often) AS often, median(waited_ms) AS waited_ms FROM (
            SELECT rank, step, name, count(*) AS often, sum(waited_ns) / 1e6 AS waited_ms
            FROM waits GROUP BY rank, step, name) GROUP BY name, step"""
