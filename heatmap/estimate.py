"""Medians along steps with robust standard errors, and ratios of two of them with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .peers import FloatArray, row_median

CONFIDENCE = 0.95

_MAX_CORRELATION = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """Median of the logarithm of a time and its standard error, both [N]; NaN where there are too few values."""

    log: FloatArray
    error: FloatArray


@dataclass(frozen=True, slots=True)
class Ratio:
    """Now over then, with its interval of 95 %."""

    value: float
    low: float
    high: float


def estimate(values: FloatArray, least: int) -> Estimate:
    """Estimates along the last axis of positive times, [N, S] -> [N]; NaN is missing, rows of under ``least`` are too.

    sigma is 1.4826 MAD, the standard error of a median of n values sqrt(pi / 2) sigma / sqrt(n). Neighbouring steps are
    alike: n values with correlation r count as n (1 - r) / (1 + r) independent ones (Bayley and Hammersley, 1946).
    """
    logs = np.log(np.where(values > 0, values, np.nan))
    count = np.isfinite(logs).sum(axis=-1)
    middle = row_median(logs)
    away = logs - middle[:, None]
    sigma = 1.4826 * row_median(np.abs(away))
    correlation = _neighbours(away, sigma)
    independent = np.maximum(count * (1 - correlation) / (1 + correlation), 1.0)
    error = math.sqrt(math.pi / 2) * sigma / np.sqrt(independent)
    enough = count >= least
    return Estimate(np.where(enough, middle, np.nan), np.where(enough, error, np.nan))


def _neighbours(away: FloatArray, sigma: FloatArray) -> FloatArray:
    """Correlation of neighbouring values, [N]: outliers count as three sigmas, and none is below 0."""
    limit = 3 * sigma[:, None]
    held = np.nan_to_num(np.clip(away, -limit, limit))
    own = (held**2).sum(axis=-1)
    found = np.divide(
        (held[:, 1:] * held[:, :-1]).sum(axis=-1), own, out=np.zeros(len(held)), where=np.isfinite(own) & (own > 0)
    )
    result: FloatArray = np.clip(found, 0.0, _MAX_CORRELATION)
    return result


def ratio_of(log: float, error: float, tried: int = 1) -> Ratio:
    """exp(log) with its interval, which is wide enough to hold for all of ``tried`` ratios at once (Bonferroni)."""
    reach = normal_reach(tried) * error
    return Ratio(math.exp(log), math.exp(log - reach), math.exp(log + reach))


def normal_reach(tried: int = 1) -> float:
    """Standard errors on either side that ``tried`` intervals of 95 % need together."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / max(tried, 1))
