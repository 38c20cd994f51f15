"""What recording costs a job while it runs: steps with timings against the shadow steps between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pyarrow as pa

from .reading.store import Attempt, Store
from .rollups.windows import WINDOW_STEPS

REACH = 3
"""A step is compared with those at most so many steps before or after it: the job changes slowly, if at all."""

MIN_COMPARED = 6
"""Below six comparisons even all of them together are no interval of 95 %."""

READ_RANKS = 64
READ_STEPS = 2000
"""Of an attempt so many first ranks and newest steps are read: all ranks leave out the same steps, and meet in each."""

STARTING_NS = 600 * 10**9
"""A rank tells what a span costs it when it begins: looked for in so much time first, since samples go on for days."""

_LAST_RANK = f"SELECT max(rank) FROM (SELECT DISTINCT rank FROM ranks ORDER BY rank LIMIT {READ_RANKS})"
_BEFORE = f"SELECT max(step) - {READ_STEPS} FROM steps WHERE rank <= ?"
_STEPS = """
    SELECT step, bool_or(shadow) AS shadow, median(duration_ns) AS duration_ns FROM steps
    WHERE rank <= ? AND step > ? AND shadow IS NOT NULL AND duration_ns IS NOT NULL GROUP BY step ORDER BY step
"""
_COST = "SELECT median(value) FROM health WHERE metric = 'recorder_span_ns' AND moment_ns <= ?"
_WINDOWS = """
    WITH read AS (
        SELECT rank, first_step, sum(duration_count) AS spans FROM rank_windows
        WHERE window_steps = $3 AND rank <= $1 AND first_step > $2 GROUP BY ALL),
    timed AS (
        SELECT rank, step - step % $3 AS first_step, count(DISTINCT step) AS steps FROM steps
        WHERE rank <= $1 AND step > $2 AND NOT coalesce(shadow, FALSE) GROUP BY ALL)
    SELECT sum(spans) / sum(steps)::DOUBLE FROM read JOIN timed USING (rank, first_step)
"""
_SPANS = """
    WITH timed AS (
        SELECT DISTINCT rank, step FROM steps
        WHERE rank <= $1 AND step > $2 AND NOT coalesce(shadow, FALSE) ORDER BY step DESC LIMIT 500)
    SELECT count(*) / count(DISTINCT (rank, step))::DOUBLE FROM events JOIN timed USING (rank, step)
    WHERE rank <= $1 AND step > $2
"""


@dataclass(frozen=True, slots=True)
class RecordingOverhead:
    """Cost of recording in percent of a step.

    ``percent`` is the median over ``steps`` comparisons of how much longer a step with timings takes than one without,
    and ``low`` to ``high`` its interval of 95 % or somewhat more; None where there were too few comparisons. The shadow
    steps keep what is in flight, so this is the cost of the timings; ``calibrated_percent`` is that of all spans on the
    host: ``span_ns`` as the ranks measured it when they began, times ``spans_per_step``, over the step's duration.
    """

    percent: float | None
    low: float | None
    high: float | None
    steps: int
    span_ns: float | None
    spans_per_step: float | None
    step_ns: float | None
    calibrated_percent: float | None


def recording_overhead(store: Store, attempt: Attempt) -> RecordingOverhead:
    """The overhead in one attempt, from a part of it (`READ_RANKS`); None for what its tables do not tell."""
    last_rank = store.query(_LAST_RANK, attempt=attempt).column(0)[0].as_py()
    before = store.query(_BEFORE, [last_rank], attempt).column(0)[0].as_py()
    rows = store.query(_STEPS, [last_rank, before], attempt).to_pylist()
    durations = {int(row["step"]): float(row["duration_ns"]) for row in rows}
    excess = compare_shadows(durations, {int(row["step"]) for row in rows if row["shadow"]})
    middle, low, high = median_interval(excess)
    span_ns = _span_ns(store, attempt)
    spans = _spans_per_step(store, attempt, last_rank, before)
    step_ns = median(durations.values()) if durations else None
    calibrated = None
    if span_ns is not None and spans is not None and step_ns:
        calibrated = 100 * span_ns * spans / step_ns
    return RecordingOverhead(
        percent=middle,
        low=low,
        high=high,
        steps=len(excess),
        span_ns=span_ns,
        spans_per_step=None if calibrated is None else spans,
        step_ns=step_ns,
        calibrated_percent=calibrated,
    )


def _span_ns(store: Store, attempt: Attempt) -> float | None:
    """What a span costs, as the ranks that began first measured it; of an attempt without a start, all."""
    forever = 2**63 - 1
    for until_ns in (forever if attempt.start_ns is None else attempt.start_ns + STARTING_NS, forever):
        found = _number(store.query(_COST, [until_ns], attempt))
        if found is not None:
            return found
    return None


def _spans_per_step(store: Store, attempt: Attempt, last_rank: int | None, before: int | None) -> float | None:
    """Spans of a timed step of one rank: from the shortest windows that there are, else from raw spans."""
    for width in WINDOW_STEPS:
        found = _number(store.query(_WINDOWS, [last_rank, before, width], attempt))
        if found is not None:
            return found
    return _number(store.query(_SPANS, [last_rank, before], attempt))


def _number(table: pa.Table) -> float | None:
    """The only value of a table; None where it is NULL or no number."""
    (value,) = table.column(0).to_pylist() or [None]
    return None if value is None or math.isnan(value) else float(value)


def compare_shadows(durations: Mapping[int, float], shadows: Collection[int]) -> list[float]:
    """`compare_steps` of steps by number, of which those in ``shadows`` were not timed."""
    timed = {step: duration for step, duration in durations.items() if step not in shadows}
    return compare_steps(timed, {step: durations[step] for step in shadows if step in durations})


def compare_steps(timed: Mapping[int, float], shadow: Mapping[int, float]) -> list[float]:
    """Excess of timed steps over shadow steps in percent, one value for each step of the rarer sort.

    Each is compared with the median of its neighbours of the other sort, at most `REACH` steps away, and as many before
    it as after it, so that a drift of the job cancels out; without neighbours on both sides it is left out. Arguments
    map steps to durations in one unit.
    """
    few, many = (shadow, timed) if len(shadow) <= len(timed) else (timed, shadow)
    excess = []
    for step, duration in few.items():
        before = [many[other] for other in range(step - 1, step - 1 - REACH, -1) if other in many]
        after = [many[other] for other in range(step + 1, step + 1 + REACH) if other in many]
        count = min(len(before), len(after))
        if not count or duration <= 0:
            continue
        others = median(before[:count] + after[:count])
        longer, shorter = (others, duration) if few is shadow else (duration, others)
        if shorter > 0:
            excess.append(100 * (longer / shorter - 1))
    return excess


def median_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Median and its distribution-free interval of at least 95 %: two order statistics (Thompson 1936).

    The k-th smallest and the k-th largest of n values hold the median with probability 1 - 2 P(B(n, 1/2) < k). None for
    all three below `MIN_COMPARED` values.
    """
    count = len(values)
    if count < MIN_COMPARED:
        return None, None, None
    ordered = sorted(values)
    below, k = 0.0, 0
    while below + math.comb(count, k) / 2**count <= 0.025:
        below += math.comb(count, k) / 2**count
        k += 1
    return median(ordered), ordered[k - 1], ordered[count - k]
