"""The slowest rank of each segment of work at a glance: where to look if the verdict accuses nobody."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...heatmap.cells import NS_PER_MS, WORK_KINDS
from ...heatmap.matrix import load_placement, segment_matrix
from ...heatmap.peers import FloatArray, IntArray, peers_median
from ...heatmap.source import Source, choose_source
from ...heatmap.windows import COARSEST
from ..workbench import Latest, Workbench
from .rows import over_steps

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
_SPAN_STEPS = "SELECT count(DISTINCT step) AS steps FROM spans WHERE status = 'ok' AND step BETWEEN ? AND ?"
_STEPS = "SELECT count(DISTINCT step) AS steps FROM steps WHERE step BETWEEN ? AND ?"
_EVERY = (0, 2**62)

GLANCED = 3
"""Segments whose ratio is worked out and told."""


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The rank that lost the most at a segment: ``ratio``, the mean over steps of its ratio to its peers as the
    heatmap shows it, and ``excess_ms``, by how much more a step it took than at the median of its peers' means."""

    segment: str
    rank: int
    ratio: float
    excess_ms: float


def glance_at(
    bench: Workbench, attempt: Attempt, steps: tuple[int, int] | None = None, *, wait_s: float = 0.0
) -> Latest[list[SlowestRank]]:
    """The newest `slowest_by_segment` that is ready, of the first `GLANCED` segments; worked out in the background."""
    key = ("by segment", attempt.run, attempt.attempt, *(steps or ()))
    return bench.latest(key, lambda: slowest_by_segment(bench.store, attempt, steps, GLANCED), wait_s=wait_s)


def slowest_by_segment(
    store: Store, attempt: Attempt, steps: tuple[int, int] | None = None, limit: int | None = None
) -> list[SlowestRank]:
    """The rank that lost the most at each segment of work in steps (first, last; all if None), the most lost first."""
    table, read = _rows(store, attempt, steps)
    ranks, names, total_ms, spans = _totals(table)
    means = np.divide(total_ms, spans, out=np.full_like(total_ms, np.nan), where=spans > 0)
    peers = peers_median(means, load_placement(store, attempt).roles(ranks))
    excess = total_ms - peers * spans
    found = []
    for at, name in enumerate(names):
        known = np.flatnonzero(np.isfinite(excess[:, at]) & (peers[:, at] > 0))
        if len(known):
            row = known[excess[known, at].argmax()]
            ratio = float(means[row, at] / peers[row, at])
            found.append(SlowestRank(name, int(ranks[row]), ratio, float(excess[row, at]) / max(1, read)))
    found.sort(key=lambda one: -one.excess_ms)
    return [_as_shown(store, attempt, steps, one) for one in found[:limit]]


def _as_shown(store: Store, attempt: Attempt, steps: tuple[int, int] | None, one: SlowestRank) -> SlowestRank:
    """The same with the ratio that the heatmap's own table gives: totals weigh slow steps more."""
    matrix = segment_matrix(store, attempt, one.segment, steps=steps)
    ratio = over_steps(matrix.ratio[matrix.ranks == one.rank], "mean")
    return replace(one, ratio=float(ratio[0])) if len(ratio) and np.isfinite(ratio[0]) else one


def _rows(store: Store, attempt: Attempt, steps: tuple[int, int] | None) -> tuple[pa.Table, int]:
    """Sums by rank and segment: columns rank, segment, total (ns), spans; and of how many steps they are."""
    choice = choose_source(store, attempt, steps)
    if choice.source != Source.ROLLUPS:
        between = list(steps or _EVERY)
        return store.query(_SPANS, between, attempt), _count(store, attempt, _SPAN_STEPS, between)
    first, width = choice.first_steps(steps), choice.step_width
    between = [int(first[0]), int(first[-1])] if len(first) else [1, 0]
    asked = [COARSEST, *_EVERY] if steps is None else [width, *between]
    read = _count(store, attempt, _STEPS, [between[0], between[1] + width - 1])
    return store.query(_ROLLUPS, asked, attempt), read or len(first) * width


def _count(store: Store, attempt: Attempt, query: str, between: list[int]) -> int:
    return int(store.query(query, between, attempt).to_pylist()[0]["steps"])


def _totals(table: pa.Table) -> tuple[IntArray, list[str], FloatArray, FloatArray]:
    """Ranks [R], names [K], total time in ms and number of spans, both [R, K] and 0 where there are none."""
    ranks, row = np.unique(table["rank"].to_numpy().astype(np.int64), return_inverse=True)
    names, column = np.unique(np.array(table["segment"].to_pylist(), dtype=str), return_inverse=True)
    total_ms, spans = np.zeros((len(ranks), len(names))), np.zeros((len(ranks), len(names)))
    total_ms[row, column] = table["total"].to_numpy() / NS_PER_MS
    spans[row, column] = table["spans"].to_numpy()
    return ranks, [str(name) for name in names], total_ms, spans
