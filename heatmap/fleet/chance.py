"""How sure a rate is, and how likely it is to come about by chance."""

from __future__ import annotations

import math
from statistics import NormalDist

CONFIDENCE = 0.95


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


def usual_rate(accused: int, present: int) -> float:
    """Rate of the others, never 0: one more of two more (Laplace's rule of succession)."""
    return (accused + 1) / (present + 2)
