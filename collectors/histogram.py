"""Log-histograms of durations: mergeable, with any percentile within 1 %, in numpy and in SQL.

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

IntArray = npt.NDArray[np.int64]
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


def histogram(duration_ns: npt.NDArray[Any]) -> tuple[BinArray, IntArray]:
    """Histogram of durations: bins, ascending, and their counts."""
    bins, counts = np.unique(bins_of(duration_ns), return_counts=True)
    return bins, counts.astype(np.int64)


def merge(
    one: tuple[npt.NDArray[Any], npt.NDArray[Any]], other: tuple[npt.NDArray[Any], npt.NDArray[Any]]
) -> tuple[BinArray, IntArray]:
    """Histogram of the values of both."""
    bins, place = np.unique(np.concatenate([one[0], other[0]]).astype(np.int32), return_inverse=True)
    counts = np.zeros(len(bins), np.int64)
    np.add.at(counts, place, np.concatenate([one[1], other[1]]).astype(np.int64))
    return bins, counts


def percentile(bins: npt.NDArray[Any], counts: npt.NDArray[Any], q: float) -> float:
    """Percentile ``q`` (0 to 100) in ns, within 1 % of the exact one; NaN where the histogram is empty.

    The exact one is the nearest-rank percentile: the smallest value that at least q % of all values do not exceed.
    """
    zero = np.zeros(len(bins), np.int64)
    return float(cell_percentiles(zero, bins, counts, q, 1)[0])


def cell_percentiles(
    cells: npt.NDArray[Any], bins: npt.NDArray[Any], counts: npt.NDArray[Any], q: float, cell_count: int
) -> FloatArray:
    """Percentile ``q`` of many histograms at once, [C]; NaN for a cell without values.

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


def bin_sql(duration: str) -> str:
    """The bin of a duration (an SQL expression in ns) in DuckDB."""
    return f"CAST(floor(ln(greatest({duration}, 0.99)) * {BINS_PER_E}) AS INTEGER)"


def estimate_sql(of_bin: str) -> str:
    """The duration in ns that stands for a bin (an SQL expression) in DuckDB."""
    factor = math.exp(1 / BINS_PER_E)
    middle = 2 * factor / (1 + factor)
    return f"CASE WHEN {of_bin} <= {ZERO_BIN} THEN 0.0 ELSE exp({of_bin} / {BINS_PER_E}.0) * {middle!r} END"


def percentile_sql(rows: str, keys: str, metric: str, q: float) -> str:
    """SELECT of ``keys`` and ``percentile_ns``: the percentile of each key over all rows of ``rows`` together.

    ``rows`` is a view, a table or a SELECT in brackets with the columns of ``rank_windows``; ``keys`` are its columns,
    separated by commas; ``metric`` is duration or self.
    """
    entries = f"SELECT {keys}, unnest({metric}_bins) AS bin, unnest({metric}_bin_counts) AS n FROM {rows}"
    return f"""
        WITH merged AS (SELECT {keys}, bin, sum(n) AS n FROM ({entries}) GROUP BY {keys}, bin),
        reached AS (
            SELECT *, sum(n) OVER (PARTITION BY {keys} ORDER BY bin) AS up_to,
                sum(n) OVER (PARTITION BY {keys}) AS total
            FROM merged
        )
        SELECT {keys}, {estimate_sql("min(bin)")} AS percentile_ns
        FROM reached WHERE up_to >= greatest(ceil(total * {q / 100!r}), 1) GROUP BY {keys}"""
