"""Histograms of single cells for tests, in numpy and in SQL: as the documentation of ``rank_windows`` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from megascope.collectors.rollups.histogram import BINS_PER_E, bins_of, cell_percentiles

Histogram = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]
"""Bins, ascending, and the count of each."""


def histogram(duration_ns: npt.NDArray[Any]) -> Histogram:
    """Histogram of durations."""
    bins, counts = np.unique(bins_of(duration_ns), return_counts=True)
    return bins, counts.astype(np.int64)


def percentile(bins: npt.NDArray[Any], counts: npt.NDArray[Any], q: float) -> float:
    """Percentile ``q`` of one histogram, in ns."""
    return float(cell_percentiles(np.zeros(len(bins), np.int64), bins, counts, q, 1)[0])


def bin_sql(duration: str) -> str:
    """The bin of a duration (an SQL expression in ns) in DuckDB."""
    return f"CAST(floor(ln(greatest({duration}, 0.99)) * {BINS_PER_E}) AS INTEGER)"
