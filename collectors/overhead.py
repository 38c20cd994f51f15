"""What recording costs a job while it runs: steps with timings against the shadow steps between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from .store import Attempt, Store

REACH = 3
"""A step is compared with those at most so many steps before or after it: the job changes slowly, if at all."""

MIN_COMPARED = 6
"""Below six comparisons even all of them together are no interval of 95 %."""

_STEPS = """
    SELECT step, bool_or(shadow) AS shadow, median(duration_ns) AS duration_ns FROM steps
    WHERE shadow IS NOT NULL AND duration_ns IS NOT NULL GROUP BY step ORDER BY step
"""
_COST = "SELECT median(value) FROM health WHERE metric = 'recorder_span_ns'"
_SPANS = """
    SELECT count(*) / count(DISTINCT (events.rank, events.step))::DOUBLE FROM events
    JOIN (SELECT step FROM steps GROUP BY step HAVING NOT bool_or(coalesce(shadow, FALSE))) USING (step)
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
    """The overhead in one attempt; None for what its tables do not tell."""
    rows = store.query(_STEPS, attempt=attempt).to_pylist()
    durations = {int(row["step"]): float(row["duration_ns"]) for row in rows}
    shadows = {int(row["step"]) for row in rows if row["shadow"]}
    excess = compare_steps({step: ns for step, ns in durations.items() if step not in shadows},
                           {step: durations[step] for step in shadows})  # fmt: skip
    middle, low, high = median_interval(excess)
    (span_ns,) = store.query(_COST, attempt=attempt).column(0).to_pylist() or [None]
    (spans,) = store.query(_SPANS, attempt=attempt).column(0).to_pylist() or [None]
    step_ns = median(durations.values()) if durations else None
    is_known = span_ns is not None and spans is not None and not math.isnan(spans) and bool(step_ns)
    return RecordingOverhead(
        percent=middle,
        low=low,
        high=high,
        steps=len(excess),
        span_ns=span_ns,
        spans_per_step=spans if is_known else None,
        step_ns=step_ns,
        calibrated_percent=100 * span_ns * spans / step_ns if is_known else None,
    )


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
