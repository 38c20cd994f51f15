"""When the detectors speak: one table of numbers, and how it is changed from a command line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from ...profiler.errors import UsageError

MOST_STEPS = 150
"""Steps that a detector may look back: twice as many are kept, and some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a detector speaks."""

    heartbeat_s: float = 15.0
    "Age of a rank's newest heartbeat beside the newest of all."
    slow_factor: float = 1.5
    "A rank's step time over the median of all ranks, ..."
    slow_steps: int = 3
    "... for so many steps in a row; also for `baseline_factor`."
    baseline_steps: int = 20
    "Steps of the rolling baseline, of which at least half must be there."
    baseline_factor: float = 1.5
    "The job's step time over the baseline's median, ..."
    baseline_sigmas: float = 4.0
    "... and at so many robust standard deviations (1.4826 times the median absolute deviation) from it."
    throughput_steps: int = 10
    "Steps over which throughput is taken, ..."
    throughput_share: float = 0.7
    "... and its share of the best such stretch so far, below which it has declined."
    grad_factor: float = 3.0
    "Gradient norm over its running mean."
    grad_steps: int = 20
    "Steps of that mean, of which at least half must be there."
    loss_steps: int = 10
    "Steps whose median loss is held against the lowest such median so far, ..."
    loss_rise: float = 0.5
    "... in natural-log units per token: so much above it is a divergence."
    storage_s: float = 60.0
    "Age of an operation on storage that is in flight."

    def __post_init__(self) -> None:
        """Raise UsageError for a threshold with which a detector would always speak, or never could."""
        for field in fields(self):
            value, is_count = getattr(self, field.name), isinstance(field.default, int)
            least = 2 if field.name in _LEAST_TWO else 1
            if is_count and not least <= value <= MOST_STEPS:
                raise UsageError(f"The threshold {field.name} is {value}: give {least} to {MOST_STEPS} steps.")
            if not is_count and not 0 < value < math.inf:
                raise UsageError(f"The threshold {field.name} is {value}: give a number above 0.")
        for name in ("slow_factor", "baseline_factor", "grad_factor"):
            if getattr(self, name) <= 1:
                raise UsageError(f"The threshold {name} is {getattr(self, name)}: give a factor above 1.")
        if self.throughput_share >= 1:
            raise UsageError(f"The threshold throughput_share is {self.throughput_share}: give less than 1.")


_LEAST_TWO = frozenset({"baseline_steps", "grad_steps"})
"""Half of them have to be there."""

THRESHOLDS = Thresholds()


def thresholds_of(texts: Iterable[str]) -> Thresholds:
    """The table with changes as ``NAME=VALUE``; a name may have hyphens. UsageError for anything else."""
    counts = {field.name: isinstance(field.default, int) for field in fields(Thresholds)}
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        key = name.strip().replace("-", "_")
        if not equals or key not in counts or key in changes:
            known = ", ".join(counts)
            raise UsageError(f"The threshold {text!r} is none, or given twice: give NAME=VALUE, NAME one of {known}.")
        try:
            changes[key] = int(value) if counts[key] else float(value)
        except ValueError:
            what = "a whole number" if counts[key] else "a number"
            raise UsageError(f"The threshold {text!r} has no value that can be used: give {what}.") from None
    return replace(THRESHOLDS, **changes)
