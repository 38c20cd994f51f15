"""Log-histograms of durations: mergeable, with any percentile within 1 %.

Bin b holds durations from exp(b / k) to exp((b + 1) / k) ns with k = `BINS_PER_E` = 50: each bin is 2 % wider than the
one before. A bin is estimated by the harmonic mean of its bounds, 2ab / (a + b): it is off by the same share at both
ends, (b - a) / (b + a) = tanh(1 / 2k) = 0.99997 %. Zero has the bin `ZERO_BIN`, and is estimated by 0. A missing
duration has no bin: it is left out before. A histogram is two arrays: bins, ascending, and the count of each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

BINS_PER_E = 50
"""Bins for each factor e of duration."""

ZERO_BIN = -1

BinArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]


def bins_of(duration_ns: npt.NDArray[Any]) -> BinArray:
    """Bin of every duration, [N] int32. Durations are nanoseconds, 0 or more; what is missing must be left out before.

    >>> bins_of(np.array([0, 1, 1000])).tolist()
    [-1, 0, 345]
    """
    # The logarithm of 0.99 falls into the bin before that of 1 ns: zeros need no branch of their own.
    logs = np.log(np.maximum(duration_ns, 0.99))
    logs *= BINS_PER_E
    bins: BinArray = np.floor(logs, out=logs).astype(np.int32)
    return bins


def estimates(bins: npt.NDArray[Any]) -> FloatArray:
    """The duration in ns that stands for each bin: within 1 % of everything in it."""
    lower = np.exp(np.asarray(bins, np.float64) / BINS_PER_E)
    factor = math.exp(1 / BINS_PER_E)
    values: FloatArray = np.where(np.asarray(bins) <= ZERO_BIN, 0.0, lower * (2 * factor / (1 + factor)))
    return values


def cell_percentiles(
    cells: npt.NDArray[Any], bins: npt.NDArray[Any], counts: npt.NDArray[Any], q: float, cell_count: int
) -> FloatArray:
    """Percentile ``q`` (0 to 100) in ns of many histograms at once, [C]; NaN for a cell without values.

    Within 1 % of the nearest-rank percentile: the smallest value that at least q % of all values do not exceed.
    ``cells`` [E] says to which cell (0 to C - 1) each entry (bin, count) belongs; a cell may have a bin several times,
    and entries may come in any order (fastest where they are sorted by cell and bin).
    """
    if not len(bins):
        return np.full(cell_count, np.nan)
    low = int(bins.min())
    width = int(bins.max()) - low + 1
    key = cells.astype(np.int64) * width + (bins - low)
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        key, bins, counts = key[order], bins[order], counts[order]
    return row_percentiles(np.searchsorted(key, np.arange(cell_count + 1) * width), bins, counts, q)


def row_percentiles(
    offsets: npt.NDArray[Any], bins: npt.NDArray[Any], counts: npt.NDArray[Any], q: float
) -> FloatArray:
    """The same of histograms that lie one behind the other: that of row r has the entries ``offsets[r]`` to
    ``offsets[r + 1]``, its bins ascending."""
    if not len(bins):
        return np.full(len(offsets) - 1, np.nan)
    reached = np.cumsum(counts, dtype=np.int64)
    ends = np.concatenate([[0], reached])[offsets]
    before, total = ends[:-1], np.diff(ends)
    wanted = before + np.clip(np.ceil(total * (q / 100)), 1, np.maximum(total, 1)).astype(np.int64)
    found = np.minimum(np.searchsorted(reached, wanted), len(bins) - 1)
    values: FloatArray = np.where(total > 0, estimates(bins[found]), np.nan)
    return values
