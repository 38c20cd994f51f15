"""The question behind `worst` and `changed`: how long each rank's own work usually takes, over all raw spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..collectors.rollups.histogram import BINS_PER_E
from ..heatmap.peers import FloatArray
from ..profiler.vocabulary import WAITING_KINDS, SegmentKind
from .engines import Question
from .places import Places
from .scope import Scope

LEFT_OUT = {*WAITING_KINDS, SegmentKind.INIT, SegmentKind.COMPILE}
"""Waiting is for others, and what comes once is compared by nobody."""

_MEDIANS = """
    WITH binned AS (
        SELECT placed.place, events.segment, coalesce(events.chunk, 0) AS chunk, {side} AS side,
            CAST(floor(ln(greatest(events.self_ns, 1)) * {bins}) AS BIGINT) AS bin, events.step
        FROM events JOIN looked_at ON looked_at.segment = events.segment AND looked_at.attempt = events.attempt
        JOIN placed ON placed.rank = events.rank AND placed.attempt = events.attempt
        WHERE {where} AND events.self_ns IS NOT NULL
    ), entries AS (
        SELECT place, segment, chunk, side, bin, count(*) AS n, min(step) AS first_step, max(step) AS last_step
        FROM binned WHERE side IS NOT NULL GROUP BY place, segment, chunk, side, bin
    ), reached AS (
        SELECT place, segment, chunk, side, bin, n,
            sum(n) OVER (PARTITION BY place, segment, chunk, side ORDER BY bin
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS up_to,
            sum(n) OVER (PARTITION BY place, segment, chunk, side) AS spans,
            min(first_step) OVER (PARTITION BY place, segment, chunk, side) AS first_step,
            max(last_step) OVER (PARTITION BY place, segment, chunk, side) AS last_step
        FROM entries
    )
    SELECT place, segment, CAST(chunk AS BIGINT) AS chunk, CAST(side AS BIGINT) AS side,
        CAST(spans AS BIGINT) AS spans, first_step, last_step, bin,
        CAST(up_to - n AS BIGINT) AS below, CAST(n AS BIGINT) AS inside
    FROM reached WHERE up_to * 2 >= spans AND (up_to - n) * 2 < spans
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A stretch of steps that is told apart from another, both ends included."""

    first: int
    last: int


def medians_of(scope: Scope, places: Places, sides: tuple[Side, ...] = ()) -> Question:
    """A row for each place, segment, chunk and side (0, 1, ...): how many spans, and where their median lies."""
    branches = [f"WHEN events.step BETWEEN {one.first} AND {one.last} THEN {at}" for at, one in enumerate(sides)]
    side = f"CASE {' '.join(branches)} END" if branches else "0"
    sql = _MEDIANS.format(side=side, bins=BINS_PER_E, where=scope.where())
    return Question(sql, {"looked_at": _segments(scope), "placed": places.table})


def median_ns(rows: pa.Table) -> FloatArray:
    """The median of each row [R] in ns: interpolated inside of its bin, which is 2 % wide."""
    columns = {name: rows[name].to_numpy().astype(np.float64) for name in ("bin", "below", "inside", "spans")}
    inside = (columns["spans"] / 2 - columns["below"]) / columns["inside"]
    values: FloatArray = np.exp((columns["bin"] + inside) / BINS_PER_E)
    return values


def _segments(scope: Scope) -> pa.Table:
    """The segments whose work is compared, for each attempt."""
    kinds = ", ".join(f"'{kind}'" for kind in sorted(LEFT_OUT))
    found = [
        scope.store.query(f"SELECT attempt, segment FROM segments WHERE kind NOT IN ({kinds})", attempt=one)
        for one in scope.attempts
    ]
    return pa.concat_tables(found)
