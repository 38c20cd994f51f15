"""Goodput of a run: the share of its time in which steps were made that count, and what became of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One execution of a step: in which attempt, and how long it took (s)."""

    attempt: int
    step: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where a run's time went, in seconds. ``goodput``: ``useful_s`` over ``total_s``, 0 to 1; None without time.

    ``useful_s``: steps that count, each once, in its last execution. ``repeated_s``: executions that a restart from a
    checkpoint made worthless. ``other_s``: start-up, waiting, diagnosis, restarts, evaluations and the end.
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
