"""The heatmap of a run whose spans belong to no step: equal parts of its time stand in their place."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...heatmap.cells import METRICS, pivot
from ...heatmap.matrix import Matrix, load_placement, merge, to_matrix
from ...profiler.errors import UsageError

PARTS = 60

_SEGMENTS = """
    SELECT segment_name AS segment, kind, axis, count(*) AS spans, count(DISTINCT rank) AS ranks,
           sum(self_ns) / 1e6 AS self_ms
    FROM spans GROUP BY ALL ORDER BY self_ms DESC NULLS LAST, segment, kind
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """Equal parts of an attempt's time: the first span's start (UTC ns) and the length of each."""

    base_ns: int
    length_ns: int


def segments_in_time(store: Store, attempt: Attempt) -> pa.Table:
    """Segments with spans, as `segments_available` gives them, but of spans with and without a step."""
    return store.query(_SEGMENTS, attempt=attempt)


def parts_of(store: Store, attempt: Attempt) -> Parts:
    """`PARTS` parts from the first span's start to the last one's."""
    row = store.query("SELECT min(start_ns) AS low, max(start_ns) AS high FROM events", attempt=attempt).to_pylist()[0]
    if row["low"] is None:
        return Parts(0, 1)
    return Parts(int(row["low"]), max(1, -(-(int(row["high"]) - int(row["low"]) + 1) // PARTS)))


def time_sql(segment: str, metric: str, parts: Parts) -> str:
    """A query for the rows that `pivot` takes: a span belongs to the part in which it began."""
    value = "1" if metric == "count" else f"{metric}_ns"
    return f"""SELECT rank, (start_ns - {parts.base_ns}) // {parts.length_ns} AS step, segment_name AS name, kind,
       coalesce(chunk, 0) AS chunk, count(*) AS spans, sum({value})::DOUBLE AS total,
       min(start_ns) AS first_ns, max(start_ns + coalesce(duration_ns, 0)) AS last_ns
FROM spans
WHERE segment_name = '{segment.replace("'", "''")}' AND status = 'ok' AND kind IS NOT NULL AND {value} IS NOT NULL
GROUP BY ALL"""


def time_matrix(store: Store, attempt: Attempt, segment: str, metric: str, parts: Parts) -> Matrix:
    """A matrix as `segment_matrix` makes, whose steps are the numbers of parts of time.

    Raises UsageError for a percentile, and for a segment of which no span has such a time.
    """
    if metric not in METRICS:
        raise UsageError(f"Without steps there is no {metric}: choose one of {', '.join(METRICS)}.")
    table, placement = store.query(time_sql(segment, metric, parts), attempt=attempt), load_placement(store, attempt)
    if not table.num_rows:
        raise UsageError(f"No span of {segment} has a {metric} time. Choose another segment or measure.")
    ranks = sorted({*placement.ranks.tolist(), *table["rank"].to_pylist()})
    return to_matrix(merge(pivot(table, ranks)), placement, metric)
