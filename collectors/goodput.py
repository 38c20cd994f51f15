"""Goodput of a run: the share of its time in which steps were made that count, and what became of the rest.

It is computed from the tables, so that whoever opens the store gets it: while the run goes on, and over all its
supervisors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .reading.store import Store

_EXECUTIONS = """
SELECT attempt, step, median(duration_ns) / 1e9 AS duration_s, max(start_ns + duration_ns) AS end_ns FROM steps_all
WHERE run = ? AND attempt >= ? AND duration_ns IS NOT NULL GROUP BY attempt, step
QUALIFY count(loss) > 0 OR count(grad_norm) > 0 OR step < max(step) OVER (PARTITION BY attempt)"""
"""A step that was broken off has neither loss nor norm, and no later one of its attempt ends. Metrics are optional and
may come every so many steps, so that a completed step may have none."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One execution of a step: in which attempt, how long it took (s, the median over ranks), and its end (UTC ns)."""

    attempt: int
    step: int
    duration_s: float
    end_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where a run's time went, in seconds. ``goodput``: ``useful_s`` over ``total_s``, 0 to 1; None without time.

    ``useful_s``: steps that count, each once, in its last execution. ``repeated_s``: executions that a restart from a
    checkpoint made worthless. ``other_s``: start-up, waiting, diagnosis, restarts, evaluations, the end, and time
    between two attempts in which nobody looked after the run.
    """

    total_s: float
    useful_s: float
    repeated_s: float
    other_s: float
    steps: int
    goodput: float | None

    def as_json(self) -> dict[str, Any]:
        """For a report."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def goodput_of(spans: Iterable[StepSpan], total_s: float) -> Goodput:
    """Goodput from all executions of steps, and the time from the run's start to its end."""
    newest: dict[int, StepSpan] = {}
    everything = 0.0
    for span in spans:
        everything += span.duration_s
        known = newest.get(span.step)
        if known is None or span.attempt > known.attempt:
            newest[span.step] = span
    useful = sum(span.duration_s for span in newest.values())
    share = min(useful / total_s, 1.0) if total_s > 0 else None
    other = max(total_s - everything, 0.0)
    return Goodput(total_s, useful, everything - useful, other, len(newest), share)


def executions(store: Store, run: str, first_attempt: int = 0) -> list[StepSpan]:
    """Every execution of every step of a run, from an attempt on."""
    rows = store.query(_EXECUTIONS, [run, first_attempt]).to_pylist()
    return [StepSpan(int(row["attempt"]), int(row["step"]), float(row["duration_s"]), row["end_ns"]) for row in rows]


def run_goodput(store: Store, run: str, began_ns: int | None = None, until_ns: int | None = None) -> Goodput | None:
    """Goodput of a run so far, over all attempts; None where no step of it was completed.

    ``began_ns``, ``until_ns`` (UTC): when it began and ended for whoever knows better than the tables; these tell of
    the start of its first attempt, and of the end of its last one, or else of its last step.
    """
    spans = executions(store, run)
    if not spans:
        return None
    attempts = store.query("SELECT attempt, start_ns, end_ns FROM runs WHERE run = ?", [run]).to_pylist()
    starts = [row["start_ns"] for row in attempts if row["start_ns"] is not None]
    starts += [] if began_ns is None else [began_ns]
    ends = [row["end_ns"] for row in attempts if row["end_ns"] is not None]
    ends += [span.end_ns for span in spans if span.end_ns is not None]
    first = min(starts, default=None)
    last = until_ns if until_ns is not None else max(ends, default=None)
    total_s = 0.0 if first is None or last is None else max(last - first, 0) / 1e9
    return goodput_of(spans, total_s)
