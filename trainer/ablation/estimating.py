"""From paired runs to an effect with an interval, and whether it is visible here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_PAIRS = 6
"""Of fewer pairs no two order statistics hold the median with 95 %."""


@dataclass(frozen=True, slots=True)
class Run:
    """One short training.

    All of a step of rank 0: ``wall_ns``, ``cpu_ns``, and its communication as ``messages`` and ``size_bytes``.
    """

    variant: str
    repeat: int
    tokens: int
    wall_ns: float
    cpu_ns: float
    messages: float
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Effect:
    """How much more a second brings with the technique, in percent, with its interval; negative is less.

    ``is_visible``: the interval does not hold 0.
    """

    percent: float
    low: float
    high: float

    @property
    def is_visible(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and an interval that holds the true one with at least 95 %, whatever the distribution.

    From the k-th smallest to the k-th largest of n values: it misses with probability 2 P(B < k), B binomial (n, 1/2)
    (Conover, Practical Nonparametric Statistics, section 3.2). Infinite with fewer than six values.
    """
    ordered, n = np.sort(np.asarray(values, float)), len(values)
    k, below = 0, 0.0
    while True:
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - CONFIDENCE:
            break
        k += 1
    if k == 0:
        return float(np.median(ordered)), -math.inf, math.inf
    return float(np.median(ordered)), float(ordered[k - 1]), float(ordered[n - k])


def effects(runs: Iterable[Run], base: str, what: str) -> Mapping[str, Effect]:
    """By variant, the effect on ``what`` (wall_ns or cpu_ns) for each token, against the base of the same repeat."""
    of: dict[int, dict[str, float]] = defaultdict(dict)
    for run in runs:
        of[run.repeat][run.variant] = getattr(run, what) / run.tokens
    logs: dict[str, list[float]] = defaultdict(list)
    for repeat in of.values():
        for variant, value in repeat.items():
            if variant != base and base in repeat:
                logs[variant].append(math.log(repeat[base] / value))
    return {variant: _effect(values) for variant, values in logs.items()}


def _effect(logs: Sequence[float]) -> Effect:
    return Effect(*(100 * math.expm1(one) if math.isfinite(one) else one for one in median_interval(logs)))
