"""The slowest rank of each segment of work at a glance: where to look if the verdict accuses nobody."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..collectors.store import Attempt, Store
from ..heatmap.cells import NS_PER_MS, WORK_KINDS
from ..heatmap.matrix import load_placement
from ..heatmap.peers import FloatArray, IntArray, peers_median
from ..heatmap.source import Source, choose_source
from ..heatmap.windows import COARSEST

_KINDS = ", ".join(f"'{kind}'" for kind in WORK_KINDS)
_SPANS = f"""
    SELECT rank, segment_name AS segment, sum(self_ns)::DOUBLE AS total, count(*) AS spans FROM spans
    WHERE status = 'ok' AND self_ns IS NOT NULL AND step BETWEEN ? AND ? AND kind IN ({_KINDS}) GROUP BY ALL
"""
_ROLLUPS = f"""
    SELECT w.rank, s.name AS segment, sum(w.self_sum_ns)::DOUBLE AS total, sum(w.self_count)::BIGINT AS spans
    FROM rank_windows w JOIN segments s USING (segment)
    WHERE w.window_steps = ? AND w.first_step BETWEEN ? AND ? AND s.kind IN ({_KINDS}) GROUP BY ALL
    HAVING sum(w.self_count) > 0
"""


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The rank that lost the most at a segment: ``ratio`` of its mean time per span to the median of its peers, and
    ``excess_ms``, by how much more all of its spans took than if they had taken that."""

    segment: str
    rank: int
    ratio: float
    excess_ms: float


def slowest_by_segment(store: Store, attempt: Attempt, steps: tuple[int, int] | None = None) -> list[SlowestRank]:
    """The rank that lost the most at each segment of work in steps (first, last; all if None), the most lost first."""
    ranks, names, total_ms, spans = _totals(_rows(store, attempt, steps))
    means = np.divide(total_ms, spans, out=np.full_like(total_ms, np.nan), where=spans > 0)
    peers = peers_median(means, load_placement(store, attempt).roles(ranks))
    excess = total_ms - peers * spans
    found = []
    for at, name in enumerate(names):
        known = np.flatnonzero(np.isfinite(excess[:, at]) & (peers[:, at] > 0))
        if len(known):
            row = known[excess[known, at].argmax()]
            ratio = float(means[row, at] / peers[row, at])
            found.append(SlowestRank(name, int(ranks[row]), ratio, float(excess[row, at])))
    return sorted(found, key=lambda one: -one.excess_ms)


def _rows(store: Store, attempt: Attempt, steps: tuple[int, int] | None) -> pa.Table:
    """Sums by rank and segment: columns rank, segment, total (ns), spans."""
    choice = choose_source(store, attempt, steps)
    if choice.source != Source.ROLLUPS:
        return store.query(_SPANS, list(steps or (0, 2**62)), attempt)
    if steps is None:
        return store.query(_ROLLUPS, [COARSEST, 0, 2**62], attempt)
    first = choice.first_steps(steps)
    between = [int(first[0]), int(first[-1])] if len(first) else [1, 0]
    return store.query(_ROLLUPS, [choice.step_width, *between], attempt)


def _totals(table: pa.Table) -> tuple[IntArray, list[str], FloatArray, FloatArray]:
    """Ranks [R], names [K], total time in ms and number of spans, both [R, K] and 0 where there are none."""
    ranks, row = np.unique(table["rank"].to_numpy().astype(np.int64), return_inverse=True)
    names, column = np.unique(np.array(table["segment"].to_pylist(), dtype=str), return_inverse=True)
    total_ms, spans = np.zeros((len(ranks), len(names))), np.zeros((len(ranks), len(names)))
    total_ms[row, column] = table["total"].to_numpy() / NS_PER_MS
    spans[row, column] = table["spans"].to_numpy()
    return ranks, [str(name) for name in names], total_ms, spans
