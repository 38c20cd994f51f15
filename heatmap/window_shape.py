"""What lies inside windows of steps: whether all of a window is slow or a part of it, from its histogram.

A mean over ten steps does not tell ten slow steps from one that stalls. The percentiles of the same window do: where
all of it is slow the low ones are raised too, where a part of it is only the high ones are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..collectors.reading.store import Attempt, Store
from .cells import NS_PER_MS, SegmentCells
from .detect import BoolArray
from .peers import FloatArray, IntArray, has_values, row_median
from .windows import histogram_percentiles, segment_ids

LOW, HIGH = 15.0, 90.0
"""Percentiles that stand for the quick and the slow part of a window: nine slow steps of ten leave neither usual."""

PEERS_READ = 24
"""Peers of a role whose histograms are read: their median is sure to half a percent."""

MIXED = 0.4
"""A window of which the quick part is raised by less than this share of the slow part's is slow in a part only."""

MIN_BURST_RATIO = 1.15
"""Slow part over the peers' from which on a window may count as mixed: less is the noise of percentiles."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One rank's windows [W] against its peers: log-ratios of the quick part, of the slow part, and the largest time
    of a span in ms; NaN where there is nothing."""

    low: FloatArray
    high: FloatArray
    top_ms: FloatArray

    def slow_share(self, means: FloatArray) -> FloatArray:
        """Share of each window that is slow, [W], from its mean's log-ratio; 0 where none of it is."""
        effect = float(np.nanmax(self.high)) if np.isfinite(self.high).any() else 0.0
        if effect <= 0:
            return np.zeros(len(means))
        shares: FloatArray = np.clip(np.nan_to_num(np.expm1(means)) / math.expm1(effect), 0.0, 1.0)
        return shares

    def is_mixed(self) -> BoolArray:
        """Which windows are slow in a part only, [W]."""
        mixed: BoolArray = (self.high >= math.log(MIN_BURST_RATIO)) & (self.low < MIXED * self.high)
        return mixed


@dataclass(frozen=True, slots=True)
class WindowShapes:
    """Reads shapes from a store's rollups, for the few ranks for which they are asked."""

    store: Store
    attempt: Attempt

    def of(self, cells: SegmentCells, roles: IntArray, rows: list[int], excluded: BoolArray) -> dict[int, Shape]:
        """Shapes of rows of a segment, beside peers that are not ``excluded`` [R]."""
        fit = has_values(cells.per_step_ms()) & ~excluded
        peers = {int(role): _spread_out(np.flatnonzero((roles == role) & fit)) for role in np.unique(roles[rows])}
        chosen = np.unique(np.concatenate([np.array(rows, np.int64), *peers.values()]))
        place = {int(row): at for at, row in enumerate(chosen)}
        low, high, top = self._read(cells, cells.ranks[chosen])
        result = {}
        for row in rows:
            beside = np.array([place[int(one)] for one in peers[int(roles[row])] if one != row], np.int64)
            if len(beside):
                at = place[row]
                result[row] = Shape(_log_to(low, at, beside), _log_to(high, at, beside), top[at] / NS_PER_MS)
        return result

    def _read(self, cells: SegmentCells, ranks: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Percentiles and the largest value, in ns, of ranks and windows: [n, W] each."""
        known = segment_ids(self.store, self.attempt, [cells.name], [cells.kind])["segment"].to_pylist()
        rows: pa.Table = self.store.query(
            f"""SELECT rank, first_step, self_max_ns, self_bins, self_bin_counts FROM rank_windows
                WHERE window_steps = {cells.step_width} AND segment IN ({", ".join(map(str, known))})
                    AND first_step BETWEEN {int(cells.steps[0])} AND {int(cells.steps[-1])}
                    AND rank IN ({", ".join(map(str, ranks.tolist()))})""",
            attempt=self.attempt,
        )
        shape = (len(ranks), len(cells.steps))
        row, step = np.searchsorted(ranks, rows["rank"].to_numpy()), rows["first_step"].to_numpy()
        column = np.minimum(np.searchsorted(cells.steps, step), len(cells.steps) - 1)
        keep = cells.steps[column] == step
        cell, rows = (row * shape[1] + column)[keep], rows.filter(pa.array(keep))
        low, high = (histogram_percentiles(rows, cell, "self", q, shape[0] * shape[1]) for q in (LOW, HIGH))
        top = np.full(shape[0] * shape[1], -np.inf)
        np.maximum.at(top, cell, rows["self_max_ns"].to_numpy(zero_copy_only=False).astype(float))
        top[~np.isfinite(top)] = np.nan
        scale = 1.0 if cells.scale is None else cells.scale[0, np.searchsorted(cells.ranks, ranks)]
        return low.reshape(shape) / scale, high.reshape(shape) / scale, top.reshape(shape) / scale


def _spread_out(members: IntArray) -> IntArray:
    """A sample of rows from all over a role: neighbours share a host."""
    places = np.unique(np.linspace(0, len(members) - 1, min(PEERS_READ, len(members))).astype(np.int64))
    return members[places] if len(members) else members


def _log_to(values: FloatArray, row: int, peers: IntArray) -> FloatArray:
    """Log-ratio of a row to the median of others, [W]."""
    usual = row_median(np.ascontiguousarray(values[peers].T))
    ratio = np.divide(values[row], usual, out=np.full(len(usual), np.nan), where=(usual > 0) & (values[row] > 0))
    logs: FloatArray = np.log(ratio)
    return logs
