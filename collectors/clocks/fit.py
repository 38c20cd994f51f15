"""A robust line through each stream of differences between two clocks, and how far it may be wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..reading.clock_sql import MAX_DRIFT_PPB
from .pairs import FloatArray, IntArray, Side, Streams

MIN_SAMPLES = 8
ROUNDS = 12
"""Of reweighting; the line moves by less than a nanosecond afterwards."""

ASYMMETRY = math.log(2) / math.asinh(0.5)
"""Of the median absolute residual: how far the delays of one host alone can move the median difference.

If the first host notices every end at once and the second after an exponential delay of mean m, the median difference
is m ln 2 too large, and the median of the absolute residuals is m asinh(1/2). Delays on both hosts move the median less
against the residuals. Up to half of the differences may be wrong without bending this.
"""

MEDIAN_ERROR = 1.4826 * math.sqrt(math.pi / 2)
"""Of the median absolute residual: the standard deviation of normal values, and what a median's error is of that."""

SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Lines:
    """``offset of first - offset of second`` of pairs of hosts, [E] each, as a line in time.

    difference = level_ns + value_ns + slope * (t - t0), its uncertainty bias_ns + SIGMAS * sqrt(v + (t - centre)^2 w)
    + loose * |t - centre|, where v is ``variance``, w ``slope_variance``; ``loose`` is the drift left open, per unit.
    """

    first: IntArray
    second: IntArray
    level_ns: IntArray
    value_ns: FloatArray
    slope: FloatArray
    centre_ns: FloatArray
    bias_ns: FloatArray
    variance: FloatArray
    slope_variance: FloatArray
    loose: FloatArray

    def uncertainty_ns(self, at_ns: float) -> FloatArray:
        """Of each line at a moment, [E]."""
        away = at_ns - self.centre_ns
        spread = np.sqrt(self.variance + away**2 * self.slope_variance)
        total: FloatArray = self.bias_ns + SIGMAS * spread + self.loose * np.abs(away)
        return total


def fit_lines(streams: Streams, t0_ns: float) -> Lines:
    """One line a pair of hosts; pairs with fewer than `MIN_SAMPLES` samples are left out.

    A collective ends on all hosts at once, up to delays. A receive ends later than its send by the latency: with sends
    in both directions the latency cancels, up to its asymmetry, which is at most half of the sum, as in NTP (RFC 5905,
    section 8); with one direction it may be as long as both were in the operation.
    """
    enough = np.isfinite(streams.difference_ns).sum(axis=1) >= MIN_SAMPLES
    kept = Streams(*(getattr(streams, name)[enough] for name in Streams.__slots__))
    singles = _fit_each(kept, t0_ns)
    return _by_pair(singles, kept.side, _median(kept.shared_ns), t0_ns)


def _fit_each(streams: Streams, t0_ns: float) -> Lines:
    at, y = streams.at_ns - t0_ns, streams.difference_ns
    there = np.isfinite(y)
    count = there.sum(axis=1).astype(np.float64)
    centre = _median(at)
    x = np.where(there, at - centre[:, None], 0.0)
    value, slope = _least_absolute(x, y, there)
    spread = np.maximum((x**2).sum(axis=1), 1.0)
    most = MAX_DRIFT_PPB * 1e-9
    slope_error = _median_error(y, value, slope, x) / np.sqrt(spread)
    unknown = (slope_error > most) | (np.abs(slope) > 10 * most)
    value, slope = np.where(unknown, _median(y), value), np.where(unknown, 0.0, slope)
    error = _median_error(y, value, slope, x)
    return Lines(
        streams.first,
        streams.second,
        streams.level_ns,
        value - slope * centre,
        slope,
        centre + t0_ns,
        ASYMMETRY * error / MEDIAN_ERROR,
        error**2 / np.maximum(count, 1.0),
        np.where(unknown, 0.0, error**2 / spread),
        np.where(unknown, most, 0.0),
    )


def _median_error(y: FloatArray, value: FloatArray, slope: FloatArray, x: FloatArray) -> FloatArray:
    """Standard error (times the root of their number) of the median of differences, by their median residual."""
    return MEDIAN_ERROR * _median(np.abs(y - value[:, None] - slope[:, None] * x))


def _median(values: FloatArray) -> FloatArray:
    return np.asarray(np.nanmedian(values, axis=1) if len(values) else np.zeros(0), np.float64)


def _least_absolute(x: FloatArray, y: FloatArray, there: np.ndarray) -> tuple[FloatArray, FloatArray]:
    """Lines of least absolute deviation [P], by reweighting; begun from the medians of the outer thirds."""
    if not len(y):
        return np.zeros(0), np.zeros(0)
    edges = np.nanquantile(np.where(there, x, np.nan), [1 / 3, 2 / 3], axis=1)
    early, late = (there & (x <= edges[0][:, None]), there & (x >= edges[1][:, None]))
    (x0, y0), (x1, y1) = (tuple(_median(np.where(part, values, np.nan)) for values in (x, y)) for part in (early, late))
    slope = np.where(x1 > x0, (y1 - y0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0)
    value = _median(y - slope[:, None] * x)
    filled = np.where(there, y, 0.0)
    for _ in range(ROUNDS):
        residuals = np.abs(filled - value[:, None] - slope[:, None] * x)
        floor = 0.02 * _median(np.where(there, residuals, np.nan)) + 1.0
        weight = np.where(there, 1.0 / np.maximum(residuals, floor[:, None]), 0.0)
        total = weight.sum(axis=1)
        mean_x, mean_y = (weight * x).sum(axis=1) / total, (weight * filled).sum(axis=1) / total
        dx = x - mean_x[:, None]
        square = (weight * dx**2).sum(axis=1)
        slope = np.where(square > 0, (weight * dx * filled).sum(axis=1) / np.where(square > 0, square, 1.0), 0.0)
        value = mean_y - slope * mean_x
    return value, slope


def _by_pair(lines: Lines, side: IntArray, shared_ns: FloatArray, t0_ns: float) -> Lines:
    """The lines of the two directions of a pair as one; collectives stand for themselves."""
    if not len(lines.first):
        return lines
    both = np.flatnonzero(
        (side[:-1] == Side.SEND)
        & (side[1:] == Side.RECEIVE)
        & (lines.first[:-1] == lines.first[1:])
        & (lines.second[:-1] == lines.second[1:])
    )
    bias = lines.bias_ns + np.where(side == Side.COLLECTIVE, 0.0, shared_ns)
    merged = {name: getattr(lines, name).copy() for name in Lines.__slots__}
    merged["bias_ns"] = bias
    shift = (lines.level_ns[both + 1] - lines.level_ns[both]).astype(np.float64)
    merged["value_ns"][both] = (lines.value_ns[both + 1] + shift + lines.value_ns[both]) / 2
    merged["slope"][both] = (lines.slope[both] + lines.slope[both + 1]) / 2
    middle = (lines.centre_ns[both] + lines.centre_ns[both + 1]) / 2
    gap = lines.value_ns[both + 1] + shift - lines.value_ns[both]
    gap += (lines.slope[both + 1] - lines.slope[both]) * (middle - t0_ns)
    merged["bias_ns"][both] = np.maximum(lines.bias_ns[both], lines.bias_ns[both + 1]) + np.abs(gap) / 2
    merged["centre_ns"][both] = middle
    for name in ("variance", "slope_variance", "loose"):
        values = getattr(lines, name)
        merged[name][both] = np.maximum(values[both], values[both + 1])
    kept = np.setdiff1d(np.arange(len(side)), both + 1)
    return Lines(**{name: values[kept] for name, values in merged.items()})
