"""From paired runs to an effect with an interval, and whether it is visible here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_PAIRS = 6
"""Of fewer pairs no two order statistics hold the median with 95 %."""


@dataclass(frozen=True, slots=True)
class Run:
    """One short training.

    Of a step of rank 0: ``wall_ns``, ``cpu_ns``, and its communication as ``messages`` and ``size_bytes``. ``wait_ns``
    is how long a rank waits in a step for its operations and for data, by axis, the mean over all ranks; None on a GPU,
    where the host does not. ``memory_bytes`` is the most that the rank with the largest need holds at once in tensors,
    and ``mfu`` the model FLOP/s utilization, 0 to 1; None where it cannot be told.
    """

    variant: str
    repeat: int
    tokens: int
    wall_ns: float
    cpu_ns: float
    messages: float
    size_bytes: float
    wait_ns: Mapping[str, float] | None = None
    memory_bytes: int | None = None
    mfu: float | None = None


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


@dataclass(frozen=True, slots=True)
class Change:
    """How much longer a rank waits with the technique, in ms, with its interval; negative is less.

    For as many tokens as a step of what it is compared with. ``is_visible`` as of `Effect`.
    """

    milliseconds: float
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


def effects(runs: Iterable[Run], against: Mapping[str, str], what: str) -> Mapping[str, Effect]:
    """By variant, the effect on ``what`` (wall_ns or cpu_ns) for each token.

    ``against`` names what each variant is compared with, in the same repeat; one that it does not name has no effect.
    """
    logs: dict[str, list[float]] = defaultdict(list)
    for variant, run, other in _pairs(runs, against):
        ratio = getattr(other, what) / other.tokens / (getattr(run, what) / run.tokens)
        logs[variant].append(math.log(ratio))
    return {variant: _effect(values) for variant, values in logs.items()}


def wait_changes(runs: Iterable[Run], against: Mapping[str, str]) -> Mapping[str, Change]:
    """By variant, the change of what a rank waits for in all; ``against`` as of `effects`."""
    differences: dict[str, list[float]] = defaultdict(list)
    for variant, run, other in _pairs(runs, against):
        if run.wait_ns is not None and other.wait_ns is not None:
            own, others = sum(run.wait_ns.values()), sum(other.wait_ns.values())
            differences[variant].append((own * other.tokens / run.tokens - others) / 1e6)
    return {variant: Change(*median_interval(values)) for variant, values in differences.items()}


def _pairs(runs: Iterable[Run], against: Mapping[str, str]) -> Iterator[tuple[str, Run, Run]]:
    """(variant, its run, the run of the same repeat that it is compared with)."""
    of: dict[int, dict[str, Run]] = defaultdict(dict)
    for run in runs:
        of[run.repeat][run.variant] = run
    for repeat in of.values():
        for variant, run in repeat.items():
            other = repeat.get(against.get(variant, ""))
            if other is not None:
                yield variant, run, other


def _effect(logs: Sequence[float]) -> Effect:
    return Effect(*(100 * math.expm1(one) if math.isfinite(one) else one for one in median_interval(logs)))
