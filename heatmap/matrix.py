"""Rank by step matrices of a segment, beside what the peers of each rank took: what the heatmap shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..collectors.reading.store import Attempt, Store
from ..profiler.errors import UsageError
from .cells import METRICS, SegmentCells, load_cells, pivot
from .peers import FloatArray, IntArray, Placement
from .source import Choice, Source, choose_source
from .window_cells import ranks_of, segment_cells
from .windows import COARSEST

MIN_SPREAD = 0.01
"""Floor of the spread behind z, as a log-ratio: no difference below a percent is called large."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A segment over ranks [R] and steps [S]; all arrays [R, S] float64, NaN where nothing was measured.

    ``values``: mean per span in milliseconds, or the number of spans for the metric ``count``. ``peers_median``:
    the same of the median of the rank's peers (same stage and chunk, itself left out). ``ratio``: values over
    peers. ``z``: log-ratio in units of its robust spread over all cells of the segment. ``step_width``: steps that a
    column stands for, from the one in ``steps`` on; where it is not 1, rollups were read (`choose_source`).
    """

    segment: str
    metric: str
    ranks: IntArray
    steps: IntArray
    values: FloatArray
    peers_median: FloatArray
    ratio: FloatArray
    z: FloatArray
    step_width: int = 1


def load_placement(store: Store, attempt: Attempt) -> Placement:
    """Where the attempt's ranks ran and stand in the mesh, as far as the store knows."""
    table = store.query("SELECT * FROM ranks", attempt=attempt)
    key = {"run", "attempt", "rank", "host", "local_rank", "device", "pid"}
    axes = list(attempt.layout) or [name for name in table.column_names if name not in key]
    return Placement.from_table(table, axes)


def segment_matrix(
    store: Store,
    attempt: Attempt,
    segment_name: str,
    metric: str = "self",
    steps: tuple[int, int] | None = None,
) -> Matrix:
    """Matrix of one segment over all ranks of the attempt; ``steps`` are the first and the last wanted.

    Metrics: self, duration, exposed (all milliseconds per span) and count (spans per step). Raises UsageError for
    another metric, or a segment that the attempt does not have.
    """
    if metric not in METRICS:
        raise UsageError(f"There is no metric {metric!r}: choose one of {', '.join(METRICS)}.")
    placement = load_placement(store, attempt)
    choice = choose_source(store, attempt, steps)
    if choice.source == Source.ROLLUPS:
        ranks, windows, width = ranks_of(store, attempt, placement), choice.first_steps(steps), choice.step_width
        cells = segment_cells(store, attempt, ranks, windows, metric=metric, names=[segment_name], width=width)
    else:
        table = load_cells(store, attempt, metric=metric, names=[segment_name], steps=steps)
        ranks = np.array(sorted({*placement.ranks.tolist(), *table["rank"].to_pylist()}), np.int64)
        cells = pivot(table, ranks.tolist()) if table.num_rows else []
    if not cells:
        names = segments_available(store, attempt)["segment"].to_pylist()
        if segment_name not in names:
            listed = ", ".join(names[:20]) or "none"
            raise UsageError(f"Attempt {attempt.attempt} of {attempt.run} has no segment {segment_name!r}: {listed}.")
        return _empty(segment_name, metric, ranks, choice)
    return to_matrix(merge(cells), placement, metric)


def merge(cells: list[SegmentCells]) -> SegmentCells:
    """The same name may be used with several kinds: the one with the most spans is shown."""
    return max(cells, key=lambda one: float(one.count.sum()))


def to_matrix(cells: SegmentCells, placement: Placement, metric: str = "self") -> Matrix:
    """Matrix of cells that are loaded: see `Matrix` for what its arrays hold."""
    values = cells.per_span_ms()
    if metric == "count":
        spans = cells.count.sum(axis=0)
        values = np.where(spans > 0, spans, np.nan)
        cells = replace(cells, total_ms=values[None], count=(spans > 0).astype(float)[None])
    own, peers = cells.compared(placement.roles(cells.ranks))
    ratio = np.divide(own, peers, out=np.full_like(own, np.nan), where=peers > 0)
    return Matrix(cells.name, metric, cells.ranks, cells.steps, values, peers, ratio, _z(ratio), cells.step_width)


def _z(ratio: FloatArray) -> FloatArray:
    logs = np.log(np.where(ratio > 0, ratio, np.nan))
    finite = np.abs(logs[np.isfinite(logs)])
    spread = max(1.4826 * float(np.median(finite)), MIN_SPREAD) if len(finite) else MIN_SPREAD
    z: FloatArray = logs / spread
    return z


def _empty(segment: str, metric: str, ranks: IntArray, choice: Choice) -> Matrix:
    none = np.full((len(ranks), 0), np.nan)
    return Matrix(segment, metric, ranks, np.zeros(0, np.int64), none, none, none, none, choice.step_width)


def segments_available(store: Store, attempt: Attempt) -> pa.Table:
    """Segments with spans: segment, kind, axis, spans, ranks, self_ms (over all ranks); the costliest first.

    Where rollups are read (`choose_source`), only spans of status ok are known of.
    """
    if choose_source(store, attempt).source == Source.ROLLUPS:
        return store.query(
            f"""SELECT s.name AS segment, s.kind, s.axis, sum(w.duration_count) AS spans,
                       count(DISTINCT w.rank) AS ranks, sum(w.self_sum_ns) / 1e6 AS self_ms
                FROM rank_windows w JOIN segments s USING (segment) WHERE w.window_steps = {COARSEST}
                GROUP BY ALL ORDER BY self_ms DESC NULLS LAST, s.name, s.kind""",
            attempt=attempt,
        )
    return store.query(
        """SELECT segment_name AS segment, kind, axis, count(*) AS spans, count(DISTINCT rank) AS ranks,
                  sum(self_ns) / 1e6 AS self_ms
           FROM spans WHERE step IS NOT NULL GROUP BY ALL ORDER BY self_ms DESC NULLS LAST, segment, kind""",
        attempt=attempt,
    )
