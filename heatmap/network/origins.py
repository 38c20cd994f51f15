"""Whose lateness makes others wait: blame goes to the last to arrive, and on to whom it had waited for itself.

At an operation o all wait for its last rank r. If r had waited longer before, in this step, than the typical other
member of o, that explains a share s of its lateness: s = (waits of r - their median wait before) / (latest - median
start), 0 to 1. That share of the blame goes on to the operations that r had waited at, in proportion to its waits, and
from there to their last ranks; the rest stays with r. So blame ends with those who were late by themselves. Ranks whose
arrivals are closer to the last than the clocks are certain share the blame equally: no order of theirs is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..peers import FloatArray, IntArray
from .arrivals import Arrivals, BoolArray


def origins(arrivals: Arrivals) -> pa.Table | None:
    """By rank: waiting that it caused and was the origin of, milliseconds a step. None without aligned clocks.

    Columns: rank, last_ms (others' waiting at operations where it came last), origin_ms (waiting that it is the origin
    of, through any chain), origin_share (of the waiting of all), waited_ms (its own). Sorted by origin_ms. The waiting
    that a pipeline always has is in it: compare ranks of one stage with each other.
    """
    if not len(arrivals) or not arrivals.by_clock.all():
        return None
    waits = _waits(arrivals)
    last = _last_spans(arrivals)
    of_last = arrivals.operation[last]
    caused = np.add.reduceat(waits, arrivals.first)
    pasts = _Pasts.of(arrivals, waits)
    before = pasts.before(arrivals)
    share = np.where(before[last] >= 0, _share_passed_on(arrivals, pasts, before, last), 0.0)
    blamed = _passed_on(arrivals, waits, caused, last, share, before[last], pasts)
    evenly = np.bincount(of_last, minlength=len(arrivals))[of_last]
    ranks, place = np.unique(arrivals.rank, return_inverse=True)
    place = place.reshape(-1)
    steps = len(np.unique(arrivals.step))
    columns = {
        "last_ms": np.bincount(place[last], caused[of_last] / evenly, len(ranks)),
        "origin_ms": np.bincount(place[last], blamed, len(ranks)),
        "waited_ms": np.bincount(place, waits, len(ranks)),
    }
    total = float(columns["origin_ms"].sum())
    table = pa.table(
        {
            "rank": ranks,
            **{name: values / 1e6 / steps for name, values in columns.items()},
            "origin_share": columns["origin_ms"] / total if total > 0 else np.zeros(len(ranks)),
        }
    )
    return table.sort_by([("origin_ms", "descending"), ("rank", "ascending")])


def _last_spans(arrivals: Arrivals) -> IntArray:
    """Spans that came last to their operation, or may have: sorted by operation, at least one of each."""
    order = np.lexsort((arrivals.wait_ns, arrivals.operation))
    surely = order[arrivals.first]
    unsure = arrivals.uncertainty_ns + arrivals.uncertainty_ns[surely][arrivals.operation]
    may_be = arrivals.wait_ns <= np.nan_to_num(unsure)
    may_be[surely] = True
    return np.flatnonzero(may_be)


def _waits(arrivals: Arrivals) -> FloatArray:
    """What each span's rank really waited for the last, ns: no more than its work waited, where that is recorded."""
    if np.isfinite(arrivals.exposed_ns).any():
        return np.minimum(arrivals.wait_ns, np.nan_to_num(arrivals.exposed_ns))
    return arrivals.wait_ns


@dataclass(frozen=True, slots=True)
class _Pasts:
    """What every rank had waited for, by the moment: spans by rank, step and end.

    ``order`` [N] are the spans, ``begins`` [N] whether each is the first of its rank and step, ``waited`` [N] the waits
    up to each in its step, with its own; ``ends`` [N] are in the order of the arrivals.
    """

    order: IntArray
    begins: BoolArray
    waited: FloatArray
    ends: IntArray

    @classmethod
    def of(cls, arrivals: Arrivals, waits: FloatArray) -> _Pasts:
        """Pasts of all ranks. An operation ends after its latest start, whatever the clocks say."""
        latest = np.maximum.reduceat(arrivals.start_ns, arrivals.first)[arrivals.operation]
        ends = np.maximum(arrivals.start_ns + arrivals.duration_ns, latest + 1)
        step = arrivals.step[arrivals.operation]
        order = np.lexsort((ends, step, arrivals.rank))
        begins = np.r_[True, (np.diff(arrivals.rank[order]) != 0) | (np.diff(step[order]) != 0)]
        running = np.cumsum(waits[order])
        base = (running - waits[order])[np.flatnonzero(begins)]
        return cls(order, begins, running - base[np.cumsum(begins) - 1], ends)

    def before(self, arrivals: Arrivals) -> IntArray:
        """Place in ``order`` of the last span that had ended when each began, on its rank in its step; -1 for none."""
        number = np.cumsum(self.begins) - 1
        own = np.empty(len(self.order), np.int64)
        own[self.order] = number
        # Times since the rank's first span of the step, so that keys of long records do not overflow.
        low = np.minimum.reduceat(arrivals.start_ns[self.order], np.flatnonzero(self.begins))
        keys = self.ends[self.order] - low[number]
        width = int(keys.max()) + 1
        found = np.searchsorted(keys + number * width, own * width + (arrivals.start_ns - low[own]), side="right") - 1
        return np.where(found >= np.flatnonzero(self.begins)[own], found, -1)


def _share_passed_on(arrivals: Arrivals, pasts: _Pasts, before: IntArray, last: IntArray) -> FloatArray:
    """Share of its part of the blame that each of the ``last`` spans [L] hands on to its rank's past, [L]."""
    of_last = arrivals.operation[last]
    waited = np.where(before >= 0, pasts.waited[np.maximum(before, 0)], 0.0)
    more = waited[last] - _medians(waited, arrivals)[of_last]
    late = _medians(arrivals.wait_ns, arrivals)[of_last]
    share: FloatArray = np.clip(np.divide(more, late, out=np.zeros(len(late)), where=late > 0), 0.0, 1.0)
    return share


def _medians(values: FloatArray, arrivals: Arrivals) -> FloatArray:
    """Median over the spans of each operation, of a pair the value of the one that came first: [N] -> [K]."""
    order = np.lexsort((values, arrivals.operation))
    middle: FloatArray = values[order[arrivals.first + arrivals.size // 2]]
    if (arrivals.size == 2).any():
        summed = np.add.reduceat(values, arrivals.first)
        last = np.lexsort((arrivals.wait_ns, arrivals.operation))[arrivals.first]
        middle = np.where(arrivals.size == 2, summed - values[last], middle)
    return middle


def _passed_on(
    arrivals: Arrivals,
    waits: FloatArray,
    caused: FloatArray,
    last: IntArray,
    share: FloatArray,
    before: IntArray,
    pasts: _Pasts,
) -> FloatArray:
    """Blame that stays with each of the ``last`` spans, ns, [L]: a sweep from the latest operation back.

    What goes on (``share`` [L]) is put on the rank's past (``before`` [L]); the past up to a span is its own operation,
    by its wait, and the span before.
    """
    order = pasts.order
    mass, past, kept = caused.tolist(), [0.0] * len(order), [0.0] * len(last)
    own = np.divide(waits[order], pasts.waited, out=np.ones(len(order)), where=pasts.waited > 0).tolist()
    operation, shares, befores = arrivals.operation[order].tolist(), share.tolist(), before.tolist()
    bounds = np.searchsorted(arrivals.operation[last], np.arange(len(arrivals) + 1)).tolist()
    latest = np.maximum.reduceat(arrivals.start_ns, arrivals.first)
    # The latest first: an operation hands on blame when its last rank arrives, a span when it ends.
    for at in np.argsort(-np.concatenate([latest, pasts.ends[order]]), kind="stable").tolist():
        if at < len(mass):
            part = mass[at] / (bounds[at + 1] - bounds[at])
            for one in range(bounds[at], bounds[at + 1]):
                kept[one] = part * (1.0 - shares[one])
                if shares[one]:
                    past[befores[one]] += part * shares[one]
            continue
        span = at - len(mass)
        if past[span]:
            mine = past[span] * own[span]
            mass[operation[span]] += mine
            if own[span] < 1.0:
                past[span - 1] += past[span] - mine
    return np.asarray(kept)
