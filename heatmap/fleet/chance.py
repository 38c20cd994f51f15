"""How sure a rate is, and how likely it is to come about by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95

FALSE_RATE = 0.01
"""Attempts of a healthy host in which it is accused, at most, as verdicts are scored: no usual rate is below."""

FIT_ROUNDS = 60


def wilson(accused: int, present: int) -> tuple[float, float]:
    """Interval of 95 % of a rate; 0 to 1 where nothing was tried.

    With z of the normal distribution: (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    (E. B. Wilson, Journal of the American Statistical Association 22, 1927).
    """
    if present <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    rate = accused / present
    middle = rate + z * z / (2 * present)
    reach = z * math.sqrt(rate * (1 - rate) / present + z * z / (4 * present * present))
    scale = 1 + z * z / present
    return min(max((middle - reach) / scale, 0.0), rate), max(min((middle + reach) / scale, 1.0), rate)


def at_least(accused: int, present: int, rate: float) -> float:
    """Probability of ``accused`` or more of ``present`` at a rate: the upper tail of the binomial distribution."""
    if accused <= 0 or rate >= 1:
        return 1.0
    if rate <= 0:
        return 0.0
    total = 0.0
    for k in range(accused, present + 1):
        choose = math.lgamma(present + 1) - math.lgamma(k + 1) - math.lgamma(present - k + 1)
        total += math.exp(choose + k * math.log(rate) + (present - k) * math.log1p(-rate))
    return min(total, 1.0)


def usual_rate(accused: Sequence[int], present: Sequence[int]) -> float:
    """Rate at which a host that is like most is accused, from the counts of all hosts; `FALSE_RATE` at least.

    Hosts are of two kinds, the usual and those accused more often, each with a binomial rate; both rates and how many
    are of which kind are fitted by expectation and maximization (Dempster, Laird and Rubin, 1977). No more than half of
    the hosts may be of the second kind: what happens to most is usual.
    """
    k, n = np.asarray(accused, float), np.asarray(present, float)
    k, n = k[n > 0], n[n > 0]
    if not len(n):
        return FALSE_RATE
    whole = float(k.sum() / n.sum())
    usual, often, share = FALSE_RATE, max(0.75, whole), 0.1
    for _ in range(FIT_ROUNDS):
        logs = [k * math.log(rate) + (n - k) * math.log1p(-rate) for rate in (usual, often)]
        is_often = 1 / (1 + (1 - share) / share * np.exp(np.clip(logs[0] - logs[1], -700, 700)))
        share = float(np.clip(is_often.mean(), 1e-6, 1 - 1e-6))
        usual = float(np.clip(((1 - is_often) * k).sum() / max(((1 - is_often) * n).sum(), 1e-9), 1e-4, 0.999))
        often = float(np.clip((is_often * k).sum() / max((is_often * n).sum(), 1e-9), usual, 0.999))
    return max(usual if share <= 0.5 else whole, FALSE_RATE)
