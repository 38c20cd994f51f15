"""Who arrives when at each collective and p2p operation: lateness, waiting and transfer, told apart.

In each operation: latest = max(start over its ranks), transfer of a rank = its end - latest, lateness of a rank = its
start - the earliest start, its wait = latest - its start. Skew of arrival is lateness of the last, and no part of the
transfer. Starts are on aligned clocks; where those are not known, the same follows from durations, since all ranks see
an operation end together: who is last shows the shortest one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...collectors.clocks.clocks import load_clocks
from ...collectors.reading.store import Attempt, Store
from ..peers import FloatArray, IntArray
from .operations import NAME, SENDER, USABLE, load_groups

BoolArray = npt.NDArray[np.bool_]

END_SKEW_NS = 50_000
"""How far apart ranks may see one operation end: 36 us at most in a trace whose hosts' clocks agree, rounded up."""

MOST_SPANS = 1_500_000
"""Spans that are looked at: of a longer record evenly chosen steps, so that memory stays below about 500 MB."""


class Basis(StrEnum):
    """What an order of arrival rests on."""

    CLOCK = "clock"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Spans [N] of operations [K] that at least two ranks recorded, sorted by operation.

    ``first`` [K] is the place of an operation's first span. Times are ns: ``start_ns`` aligned (UTC; 0 where not
    known); ``wait_ns`` [N] until the last had arrived, ``late_ns`` [N] after the first, ``transfer_ns`` [N] from the
    latest start to the rank's end; ``exposed_ns`` is NaN where nobody waited. ``uncertainty_ns`` [N] is that of the
    start. ``by_clock`` [K] tells what an operation's order rests on.
    """

    rank: IntArray
    operation: IntArray
    start_ns: IntArray
    duration_ns: IntArray
    exposed_ns: FloatArray
    uncertainty_ns: FloatArray
    wait_ns: FloatArray
    late_ns: FloatArray
    transfer_ns: FloatArray
    first: IntArray
    size: IntArray
    by_clock: BoolArray
    step: IntArray
    group: IntArray
    sequence: IntArray
    segment: tuple[str, ...]
    segment_of: IntArray

    def __len__(self) -> int:
        return len(self.first)


_SPANS = f"""
    SELECT e.rank, e.step, e."group" AS g, e.sequence AS q, {SENDER} AS sender, e.start_ns,
        e.duration_ns, e.exposed_ns, e.uncertainty_ns, {NAME} AS name, dense_rank() OVER (ORDER BY r.host) AS host
    FROM events_aligned e JOIN segments s USING (segment) LEFT JOIN ranks r USING (rank)
    WHERE {USABLE} AND e.step IS NOT NULL AND list_contains(?, e.step)
"""

_STEPS = f"""SELECT e.step, count(*) AS spans FROM events e JOIN segments s USING (segment)
             WHERE {USABLE} AND e.step IS NOT NULL GROUP BY 1 ORDER BY 1"""


def load_arrivals(
    store: Store, attempt: Attempt, steps: tuple[int, int] | None = None, most_spans: int = MOST_SPANS
) -> Arrivals | None:
    """Arrivals at all operations of the given steps (first and last; all if None); None where there are none.

    Of more than ``most_spans`` spans, evenly chosen steps are looked at.
    """
    load_clocks(store, attempt)  # so that the view aligns by all that can be known
    chosen = _chosen(store.query(_STEPS, attempt=attempt), steps, most_spans)
    if not chosen:
        return None
    table = store.query(_SPANS, [chosen], attempt=attempt)
    groups, place, _ = load_groups(store, attempt)
    return _arrivals(table, groups, np.bincount(place, minlength=len(groups))) if table.num_rows else None


def _chosen(table: pa.Table, steps: tuple[int, int] | None, most_spans: int) -> list[int]:
    """Steps to look at, no more than what makes ``most_spans`` spans, one at least."""
    known, spans = table["step"].to_numpy(), table["spans"].to_numpy()
    if steps is not None:
        inside = (known >= steps[0]) & (known <= steps[1])
        known, spans = known[inside], spans[inside]
    if not len(known):
        return []
    share = min(1.0, most_spans / max(int(spans.sum()), 1))
    count = max(1, int(len(known) * share))
    return [int(known[at]) for at in np.unique(np.linspace(0, len(known) - 1, count).round().astype(int))]


def _integers(table: pa.Table, name: str, missing: int = 0) -> IntArray:
    values: IntArray = table[name].cast(pa.int64()).fill_null(missing).combine_chunks().to_numpy().astype(np.int64)
    return values


def _floats(table: pa.Table, name: str) -> FloatArray:
    return np.asarray(table[name].cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False), np.float64)


def _arrivals(table: pa.Table, groups: IntArray, sizes: IntArray) -> Arrivals | None:
    """Rows of `_SPANS` as arrivals; ``sizes`` [G] of the ``groups`` [G].

    An operation of which a member's span is missing is left out: that member may have been the last to arrive.
    """
    keys = [_integers(table, name) for name in ("g", "sender", "q", "step")]
    order = np.lexsort(keys)
    keys = [key[order] for key in keys]
    is_new = np.r_[True, np.any([key[1:] != key[:-1] for key in keys], axis=0)]
    ends = np.bincount(np.cumsum(is_new) - 1)[np.cumsum(is_new) - 1]
    whole = (ends == np.where(keys[1] >= 0, 2, _sizes_of(keys[0], groups, sizes))) & (ends > 1)
    order, is_new = order[whole], is_new[whole]
    if not len(order):
        return None
    first, operation = np.flatnonzero(is_new), np.cumsum(is_new) - 1
    duration = _integers(table, "duration_ns")[order]
    is_aligned = np.asarray(table["start_ns"].is_valid().to_numpy(), bool)[order]
    by_clock = np.minimum.reduceat(is_aligned.astype(np.int64), first) > 0
    start = _integers(table, "start_ns")[order]
    host = _integers(table, "host")[order]
    one_host = np.minimum.reduceat(host, first) == np.maximum.reduceat(host, first)
    wait, late = _skew(start, duration, first, operation, by_clock)
    names, segment_of = np.unique(
        np.asarray(table["name"].to_pylist(), dtype=object)[order][first], return_inverse=True
    )
    uncertainty = np.where(one_host[operation], 0.0, _floats(table, "uncertainty_ns")[order])
    return Arrivals(
        _integers(table, "rank")[order], operation, start, duration, _floats(table, "exposed_ns")[order],
        np.where(by_clock[operation], uncertainty, END_SKEW_NS / 2), wait, late, np.maximum(duration - wait, 0.0),
        first, np.bincount(operation), by_clock, _integers(table, "step")[order][first],
        _integers(table, "g")[order][first], _integers(table, "q")[order][first], tuple(names), segment_of.reshape(-1),
    )  # fmt: skip


def _sizes_of(wanted: IntArray, groups: IntArray, sizes: IntArray) -> IntArray:
    """Number of members of each wanted group, [N]; -1 for one that is not known."""
    if not len(groups):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(groups)
    at = order[np.minimum(np.searchsorted(groups[order], wanted), len(groups) - 1)]
    return np.where(groups[at] == wanted, sizes[at], -1)


def _skew(
    start: IntArray, duration: IntArray, first: IntArray, operation: IntArray, by_clock: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Wait until the last arrival and lateness after the first, ns, [N] each."""
    by_duration = np.where(by_clock[operation], 0, -duration)  # as if the end were at 0
    begun = np.where(by_clock[operation], start, by_duration)
    latest, earliest = np.maximum.reduceat(begun, first), np.minimum.reduceat(begun, first)
    return (latest[operation] - begun).astype(np.float64), (begun - earliest[operation]).astype(np.float64)


def last_arrivals(arrivals: Arrivals) -> pa.Table:
    """One row an operation: who came last, how late, and what the transfer took.

    Columns: step, group, sequence, segment, ranks (number), last_rank (NULL where the last two are closer than their
    uncertainty), skew_ns (latest - earliest start), ahead_ns (latest - second latest), waiting_ns (of all others
    together), transfer_ns (least over the ranks), longest_ns (the longest span, which contains the skew),
    uncertainty_ns, basis (clock or duration).
    """
    order = np.lexsort((arrivals.wait_ns, arrivals.operation))
    last, second = order[arrivals.first], order[arrivals.first + 1]
    ahead = arrivals.wait_ns[second]
    unsure = arrivals.uncertainty_ns[last] + arrivals.uncertainty_ns[second]
    is_sure = ahead > unsure
    at = arrivals.first
    names = np.asarray(arrivals.segment, dtype=object)
    return pa.table(
        {
            "step": arrivals.step,
            "group": arrivals.group,
            "sequence": arrivals.sequence,
            "segment": pa.array(names[arrivals.segment_of], pa.string()),
            "ranks": arrivals.size,
            "last_rank": pa.array(arrivals.rank[last], pa.int64(), mask=~is_sure),
            "skew_ns": np.maximum.reduceat(arrivals.late_ns, at).astype(np.int64),
            "ahead_ns": ahead.astype(np.int64),
            "waiting_ns": np.add.reduceat(arrivals.wait_ns, at).astype(np.int64),
            "transfer_ns": np.minimum.reduceat(arrivals.transfer_ns, at).astype(np.int64),
            "longest_ns": np.maximum.reduceat(arrivals.duration_ns, at),
            "uncertainty_ns": pa.array(np.nan_to_num(unsure).astype(np.int64), pa.int64(), mask=np.isnan(unsure)),
            "basis": pa.array(np.where(arrivals.by_clock, str(Basis.CLOCK), str(Basis.DURATION)), pa.string()),
        }
    )


def arrival_skew(arrivals: Arrivals) -> pa.Table:
    """By segment, the skew of arrival apart from the transfer: medians in ms over operations, the largest skew first.

    Columns: segment, operations, skew_ms, transfer_ms, longest_ms. A timer around the whole operation would show
    ``longest_ms``, which contains the skew.
    """
    table = last_arrivals(arrivals)
    rows = []
    for place, name in enumerate(arrivals.segment):
        here = arrivals.segment_of == place
        medians = {
            f"{column}_ms": float(np.median(table[f"{column}_ns"].to_numpy()[here])) / 1e6
            for column in ("skew", "transfer", "longest")
        }
        rows.append({"segment": name, "operations": int(here.sum()), **medians})
    return pa.Table.from_pylist(sorted(rows, key=lambda row: -float(str(row["skew_ms"]))))
