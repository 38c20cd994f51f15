"""Matrices of transfers: what the operations of a rank took once all of their members had arrived."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...heatmap.cells import pivot
from ...heatmap.matrix import Matrix, load_placement, merge, segment_matrix, to_matrix
from ...heatmap.network.operations import NAME, SENDER, USABLE
from ...heatmap.source import Source, choose_source

TRANSFER = "transfer"
"""The metric's name on the pages."""

NEEDS_SPANS = "{0} has no transfers here: they take raw spans, and {1}. Choose fewer steps, or the duration."
NOT_COMPLETE = (
    "{0} has no transfers in these steps: they are known of communication of which the group, the sequence and the "
    "spans of all members are recorded. Choose another segment, other steps, or the duration."
)


def transfer_sql(segment: str, steps: tuple[int, int] | None = None) -> str:
    """A query for the rows that `pivot` takes, of the steps from the first to the last given.

    A transfer is an operation's end minus the latest start among its members. All see it end together, so that it is
    the shortest duration among them. An operation of which a member's span is missing is left out.
    """
    between = "" if steps is None else f" AND e.step BETWEEN {steps[0]} AND {steps[1]}"
    of_both_ends = literal(segment.replace("receive", "send").replace("recv", "send"))
    return f"""WITH ends AS (
  SELECT e.rank, e.step, coalesce(e.chunk, 0) AS chunk, s.name, s.kind, e."group" AS g, e.sequence AS q,
         {SENDER} AS sender, e.duration_ns, e.start_ns
  FROM events e JOIN segments s USING (segment)
  WHERE {USABLE} AND e.step IS NOT NULL{between}
    AND (s.name = {literal(segment)} OR (s.kind = 'p2p' AND {NAME} = {of_both_ends}))
), operations AS (
  SELECT g, q, sender, min(duration_ns) AS took FROM ends LEFT JOIN groups ON g = "group"
  GROUP BY ALL HAVING count(*) = CASE WHEN sender < 0 THEN any_value(len(ranks)) ELSE 2 END
)
SELECT rank, step, name, kind, chunk, count(*) AS spans, sum(took)::DOUBLE AS total,
       min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns
FROM ends JOIN operations USING (g, q, sender) WHERE name = {literal(segment)} GROUP BY ALL"""


def transfer_matrix(store: Store, attempt: Attempt, segment: str, steps: tuple[int, int] | None = None) -> Matrix:
    """A matrix as `segment_matrix` makes, of the mean transfer of the operations that each rank took part in.

    All NaN where `missing_transfers` gives a reason. Raises UsageError for a segment that the attempt does not have.
    """
    if choose_source(store, attempt, steps).source == Source.SPANS:
        table = store.query(transfer_sql(segment, steps), attempt=attempt)
        if table.num_rows:
            placement = load_placement(store, attempt)
            ranks = sorted({*placement.ranks.tolist(), *table["rank"].to_pylist()})
            return to_matrix(merge(pivot(table, ranks)), placement, TRANSFER)
    known = segment_matrix(store, attempt, segment, "duration", steps)
    none = np.full_like(known.values, np.nan)
    return replace(known, metric=TRANSFER, values=none, peers_median=none, ratio=none, z=none)


def missing_transfers(store: Store, attempt: Attempt, segment: str, steps: tuple[int, int] | None = None) -> str:
    """In a sentence or two, why a segment has no transfers."""
    source = choose_source(store, attempt, steps)
    if source.source == Source.ROLLUPS:
        return NEEDS_SPANS.format(segment, source.reason)
    return NOT_COMPLETE.format(segment)
