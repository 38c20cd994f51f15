"""Matrices of percentiles: each cell is the median or the 99th percentile of a rank's spans in a step or a window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...heatmap.cells import SegmentCells, pivot
from ...heatmap.matrix import Matrix, load_placement, merge, segment_matrix, to_matrix
from ...heatmap.source import Source, choose_source
from ...heatmap.window_cells import ranks_of
from ...heatmap.windows import grid_percentile, segment_ids

PERCENTILES = {"p50": 50.0, "p99": 99.0}
"""Metrics of the pages that are percentiles of self time."""

_SPANS = """
    SELECT rank, step, segment_name AS name, kind, coalesce(chunk, 0) AS chunk, 1 AS spans,
           quantile_cont(self_ns, {share})::DOUBLE AS total,
           min(start_ns) AS first_ns, max(start_ns + coalesce(duration_ns, 0)) AS last_ns
    FROM spans WHERE segment_name = ? AND status = 'ok' AND step IS NOT NULL AND self_ns IS NOT NULL
        AND kind IS NOT NULL AND step BETWEEN ? AND ?
    GROUP BY ALL
"""


def percentile_matrix(
    store: Store, attempt: Attempt, segment: str, metric: str, steps: tuple[int, int] | None = None
) -> Matrix:
    """A matrix as `segment_matrix` makes, of a percentile of self time instead of its mean.

    From spans exactly (chunk by chunk, then the mean over the chunks); from rollups within 1 %, chunks together.
    Raises UsageError for a segment that the attempt does not have.
    """
    q, placement = PERCENTILES[metric], load_placement(store, attempt)
    choice = choose_source(store, attempt, steps)
    if choice.source == Source.ROLLUPS:
        cells = _from_rollups(store, attempt, segment, q, steps)
    else:
        table = store.query(_SPANS.format(share=q / 100), [segment, *(steps or (0, 2**62))], attempt)
        ranks = sorted({*placement.ranks.tolist(), *table["rank"].to_pylist()})
        cells = merge(pivot(table, ranks)) if table.num_rows else None
    if cells is None:
        return segment_matrix(store, attempt, segment, "self", steps)
    return to_matrix(cells, placement, metric)


def _from_rollups(
    store: Store, attempt: Attempt, segment: str, q: float, steps: tuple[int, int] | None
) -> SegmentCells | None:
    choice = choose_source(store, attempt, steps)
    ranks, windows = ranks_of(store, attempt, load_placement(store, attempt)), choice.first_steps(steps)
    known: pa.Table = segment_ids(store, attempt, [segment])
    if not known.num_rows or not len(ranks) or not len(windows):
        return None
    found = grid_percentile(
        store, attempt, known["segment"].to_pylist(), ranks, windows, q, window_steps=choice.step_width
    )
    count = np.isfinite(found).astype(float)
    unknown = np.broadcast_to(np.nan, found.shape)
    kind = str(known["kind"][0].as_py())
    width = choice.step_width
    return SegmentCells(segment, kind, ranks, windows, found[None], count[None], unknown, unknown, 0, width)
