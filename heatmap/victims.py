"""Who only waits: ranks that look slow in a segment that hides a synchronisation are not accused."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..profiler.vocabulary import SegmentKind
from .cells import SegmentCells
from .compare import Comparison, typical_excess
from .detect import Raised
from .observations import Observations
from .peers import FloatArray, IntArray, column_median, has_values, peer_counts
from .synchrony import (
    Lateness,
    MeasuredWaiting,
    hides_waiting,
    leaves_late,
    measure_lateness,
    slope_on_lateness,
)
from .verdict import Abstention


@dataclass(frozen=True, slots=True)
class Sifted:
    """Raised rows without those that only wait; ``is_blind``: a slow rank might look there like all others."""

    raised: tuple[Raised, ...]
    abstained: tuple[Abstention, ...]
    is_blind: bool


def sift(
    comparison: Comparison,
    cells: SegmentCells,
    roles: IntArray,
    seen: Observations,
    waiting: MeasuredWaiting | None,
) -> Sifted:
    """Leave out who may only wait. ``waiting`` is None where no communication was recorded."""
    raised, notes = _without_lone_loaders(comparison, cells, seen)
    lateness = measure_lateness(cells, roles, seen.clocks)
    hidden = hides_waiting(cells, roles, lateness)
    covered = waiting is not None and waiting.covers(cells, roles)
    if waiting is not None and (hidden is False or (hidden is None and covered)):
        blind = not covered and not _is_surely_work(cells, roles, lateness)
        if blind:
            notes.append(Abstention(cells.name, _NOT_COVERED.format(cells.name)))
        return Sifted(tuple(raised), tuple(notes), blind)
    kept: list[Raised] = []
    for one in raised:
        excess = typical_excess(one, comparison)
        late = leaves_late(lateness, one.row, slice(one.first, one.last + 1), excess)
        if late is None and waiting is not None and others_wait(one, comparison, roles, waiting.waits_ms):
            late = True
        if late:
            kept.append(one)
        else:
            notes.append(_waiting_note(cells, one, late))
    if hidden:
        notes.append(Abstention(cells.name, _HIDDEN.format(cells.name)))
    elif hidden is None and waiting is not None:
        notes.append(Abstention(cells.name, _NO_CLOCKS.format(cells.name)))
    return Sifted(tuple(kept), tuple(notes), True)


def others_wait(one: Raised, comparison: Comparison, roles: IntArray, waits_ms: FloatArray) -> bool:
    """Whether a rank's peers wait longer, and it does not, in just the columns in which it takes longer.

    By half of its excess at least, in `LEAST_WAITS` columns. ``waits_ms`` [R, S] is the waiting that was timed. Who
    only waits inside a segment makes nobody else wait.
    """
    excess = (comparison.own - comparison.peers)[one.row]
    peers = np.flatnonzero((roles == roles[one.row]) & has_values(comparison.logs))
    lead = column_median(waits_ms[peers[peers != one.row]]) - waits_ms[one.row]
    known = np.isfinite(excess) & np.isfinite(lead)
    inside = known & (np.arange(len(excess)) >= one.first) & (np.arange(len(excess)) <= one.last)
    if not inside.any():
        return False
    hit = inside & (excess >= 0.5 * excess[inside].max())
    if hit.sum() < LEAST_WAITS or not (known & ~hit).any():
        return False
    gain = float(np.median(lead[hit]) - np.median(lead[known & ~hit]))
    return gain >= 0.5 * float(np.median(excess[hit]))


LEAST_WAITS = 3

_HIDDEN = "{} contains unmeasured synchronisation: ranks that enter it later show it shorter by as much"
_NOT_COVERED = (
    "{} may contain unmeasured synchronisation: the waiting that was recorded does not follow from who takes longer "
    "in it, so a slow rank may look like all others there"
)
_NO_CLOCKS = (
    "{} may contain unmeasured synchronisation: the waiting that was recorded does not follow from who takes longer "
    "in it, and the hosts' clocks are not aligned finely enough to tell who enters it late"
)


def _is_surely_work(cells: SegmentCells, roles: IntArray, lateness: Lateness) -> bool:
    """Whether lateness varies enough to see that who enters late does not take less time for it."""
    if not lateness.is_known:
        return False
    slope = slope_on_lateness(cells, roles, lateness)
    return slope is not None and slope.is_surely_above


def _without_lone_loaders(
    comparison: Comparison, cells: SegmentCells, seen: Observations
) -> tuple[list[Raised], list[Abstention]]:
    """Of a stage's two ranks one may load the data for both: nobody is accused there of loading longer."""
    if cells.kind != SegmentKind.DATA:
        return list(comparison.raised), []
    counts = peer_counts(seen.placement.roles(cells.ranks), has_values(comparison.logs))
    alone = [one for one in comparison.raised if counts[one.row] == 1]
    notes = [
        Abstention(
            cells.name,
            f"rank {int(cells.ranks[one.row])} takes x{math.exp(one.effect):.2f} of its only peer's time: with one "
            f"peer, it cannot be told whether it is slow or loads for both",
        )
        for one in alone
    ]
    return [one for one in comparison.raised if one not in alone], notes


def _waiting_note(cells: SegmentCells, one: Raised, late: bool | None) -> Abstention:
    rank = int(cells.ranks[one.row])
    if late is None:
        reason = (
            f"{cells.name} may contain unmeasured synchronisation and the hosts' clocks are not aligned finely enough: "
            f"whether rank {rank} (x{math.exp(one.effect):.2f} of its peers) works or waits there cannot be told"
        )
    else:
        reason = (
            f"{cells.name} contains unmeasured synchronisation: rank {rank} (x{math.exp(one.effect):.2f} of its peers) "
            f"does not leave it later than the others, so it waits for them there"
        )
    return Abstention(cells.name, reason)
