"""Who was waited for: the ranks whose late arrivals cost the others most, where that is worth telling."""

from __future__ import annotations

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..observations import Observations
from ..source import Source
from ..waited_row import WaitedBasis, WaitedFor
from .arrivals import Arrivals, last_arrivals, load_arrivals
from .frontier import find_frontiers, frontier_blame
from .origins import origins

MOST_ROWS = 5
MOST_SPANS = 40_000
"""Spans of communication that are looked at, of evenly chosen steps: blame is passed on span by span."""

MIN_OF_FIRST = 0.05

MIN_SHARE = 0.02
"""Share of the step that the others wait for a rank beyond its stage's usual one; worth telling without findings."""


def waited_for(
    store: Store, attempt: Attempt, seen: Observations, steps: tuple[int, int] | None
) -> tuple[WaitedFor, ...]:
    """At most `MOST_ROWS` ranks, the costliest first; ``steps`` are those of the finding (first, last), None for none.

    By arrivals where all clocks are one or aligned, else by the frontier of cumulative work, which needs no clock.
    """
    if not len(seen.steps) or not np.isfinite(seen.step_ms).any():
        return ()
    length = float(np.nanmedian(seen.step_ms))
    if seen.source.source == Source.SPANS:
        between = steps or (int(seen.steps[0]), int(seen.steps[-1]))
        arrivals = load_arrivals(store, attempt, between, MOST_SPANS)
        if arrivals is not None and (rows := _by_arrivals(arrivals, seen)) is not None:
            if steps is None and not _is_notable(rows, seen, length):
                return ()
            return _costliest(rows)
    rows = _by_frontier(seen)
    if steps is None and not (rows and rows[0].caused_ms > MIN_SHARE * length):
        return ()
    return _costliest(rows)


def _costliest(rows: list[WaitedFor]) -> tuple[WaitedFor, ...]:
    """The first rows, without those that cost next to nothing beside the first."""
    return tuple(row for row in rows[:MOST_ROWS] if row.caused_ms >= MIN_OF_FIRST * rows[0].caused_ms)


def _by_arrivals(arrivals: Arrivals, seen: Observations) -> list[WaitedFor] | None:
    """Rows of all ranks by origin; None without clocks that can be compared."""
    table = origins(arrivals)
    if table is None:
        return None
    last = last_arrivals(arrivals)["last_rank"]
    counts = {int(row["values"].as_py()): int(row["counts"].as_py()) for row in last.drop_null().value_counts()}
    taken = np.bincount(arrivals.rank).tolist()
    basis = WaitedBasis.ONE_CLOCK if len(set(seen.placement.hosts)) == 1 else WaitedBasis.ALIGNED
    steps = len(np.unique(arrivals.step))
    chosen = set(seen.ranks.tolist())
    return [
        WaitedFor(
            int(row["rank"]), None, counts.get(int(row["rank"]), 0), taken[int(row["rank"])],
            round(float(row["origin_ms"]), 4), round(float(row["origin_share"]), 4), steps, basis,
        )
        for row in table.to_pylist()
        if int(row["rank"]) in chosen and float(row["origin_ms"]) > 0
    ]  # fmt: skip


def _is_notable(rows: list[WaitedFor], seen: Observations, step_ms: float) -> bool:
    """Whether a rank makes the others wait beyond what the median rank of its stage does: a pipeline always waits."""
    caused = {row.rank: row.caused_ms for row in rows}
    values = np.array([caused.get(int(rank), 0.0) for rank in seen.ranks])
    roles = seen.placement.roles(seen.ranks)
    usual = np.array([float(np.median(values[roles == role])) for role in roles])
    return float((values - usual).max()) > MIN_SHARE * step_ms * max(len(seen.ranks) - 1, 1)


def _by_frontier(seen: Observations) -> list[WaitedFor]:
    """Rows by stage, segment and leading rank."""
    table = frontier_blame(find_frontiers(seen)).slice(0, MOST_ROWS)
    steps = len(seen.steps) * seen.source.step_width
    return [
        WaitedFor(
            int(row["rank"]), str(row["segment"]), None, None, round(float(row["excess_ms"]), 4), None, steps,
            WaitedBasis.FRONTIER,
        )
        for row in table.to_pylist()
        if float(row["excess_ms"]) > 0
    ]  # fmt: skip
