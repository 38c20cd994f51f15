"""Blame for a step without any clock: the largest cumulative work at each boundary of the step, over ranks.

A step is a row of segments of work, x[r, k] ms of rank r's own in segment k; at its end all meet. The frontier is
F[k] = max over r of x[r, 1] + ... + x[r, k]. What it advances by, F[k] - F[k - 1], is what segment k costs the step,
and belongs to the rank that is furthest behind there; all advances add up to the slowest rank's total. The idea of
maxima at boundaries is StageFrontier's (arXiv 2606.06751). It takes durations alone, so that it works on rollups too:
there the maximum of means is at most the mean of maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...profiler.vocabulary import SegmentKind
from ..cells import SegmentCells
from ..observations import Observations
from ..peers import FloatArray, IntArray, row_median

_ORDER = (SegmentKind.DATA, SegmentKind.GC, SegmentKind.COMPUTE, SegmentKind.OPTIMIZER, SegmentKind.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The frontier of one peer group (stage ``role``): segments [K] in the order of the step, over steps [S].

    ``advance_ms`` [K, S] is what each segment adds to the frontier, ``typical_ms`` [K, S] the median rank's own time in
    it, ``leader`` [K, S] the rank that is furthest behind after it (-1 where nothing was measured).
    """

    role: int
    segments: tuple[str, ...]
    steps: IntArray
    advance_ms: FloatArray
    typical_ms: FloatArray
    leader: IntArray


def find_frontiers(seen: Observations) -> list[Frontier]:
    """The frontier of every stage, from spans or rollups; one of a single rank says nothing and is left out."""
    cells = _ordered(seen.cells)
    if not cells:
        return []
    work = np.stack([one.per_step_ms() for one in cells])
    roles = seen.placement.roles(seen.ranks)
    names = tuple(one.name for one in cells)
    return [
        _frontier(role, names, seen, np.flatnonzero(roles == role), work)
        for role in np.unique(roles[roles >= 0]).tolist()
        if (roles == role).sum() > 1
    ]


def _ordered(cells: Sequence[SegmentCells]) -> list[SegmentCells]:
    """Segments in the order in which a step runs them: by their first spans, or by what they are where only windows
    are known."""

    def place(one: SegmentCells) -> tuple[float, int, bool, str]:
        known = one.first_ns[np.isfinite(one.first_ns)]
        kind = _ORDER.index(SegmentKind(one.kind)) if one.kind in _ORDER else len(_ORDER)
        return 0.0 if not len(known) else _moment(one, cells), kind, "backward" in one.name, one.name

    return sorted(cells, key=place)


def _moment(one: SegmentCells, cells: Sequence[SegmentCells]) -> float:
    """Median over ranks and steps of how long after the step's first span the segment begins, ns."""
    base = min(cell.base_ns for cell in cells)
    begun = np.stack([cell.first_ns + (cell.base_ns - base) for cell in cells])
    earliest = np.where(np.isfinite(begun), begun, np.inf).min(axis=0)
    after = one.first_ns + (one.base_ns - base) - earliest
    return float(np.median(after[np.isfinite(after)]))


def _frontier(role: int, names: tuple[str, ...], seen: Observations, rows: IntArray, work: FloatArray) -> Frontier:
    own = work[:, rows]
    reached = np.cumsum(np.nan_to_num(own), axis=0)
    frontier = reached.max(axis=1)
    measured = np.isfinite(own).any(axis=(0, 1))
    leader = np.where(measured, seen.ranks[rows][reached.argmax(axis=1)], -1)
    advance = np.where(measured, np.diff(frontier, axis=0, prepend=0.0), np.nan)
    return Frontier(role, names, seen.steps, advance, row_median(np.swapaxes(own, 1, 2)), leader)


def frontier_blame(frontiers: Sequence[Frontier]) -> pa.Table:
    """By stage, segment and leading rank, what a step costs: the costliest first.

    Columns: stage, segment, rank, steps_led (share of the steps that it leads), advance_ms and excess_ms (beyond what
    the median rank takes for the segment), both a mean over all steps, so that they add up: over segments and ranks of
    a stage, advance_ms is the mean time of its slowest rank.
    """
    rows = []
    for one in frontiers:
        known = np.isfinite(one.advance_ms[0])
        count = max(int(known.sum()), 1)
        excess = one.advance_ms - np.nan_to_num(one.typical_ms)
        for place, segment in enumerate(one.segments):
            for rank in np.unique(one.leader[place][known]).tolist():
                led = known & (one.leader[place] == rank)
                rows.append(
                    {
                        "stage": one.role,
                        "segment": segment,
                        "rank": rank,
                        "steps_led": float(led.sum()) / count,
                        "advance_ms": float(one.advance_ms[place][led].sum()) / count,
                        "excess_ms": float(excess[place][led].sum()) / count,
                    }
                )
    names = ("stage", "segment", "rank", "steps_led", "advance_ms", "excess_ms")
    rows.sort(key=lambda row: -float(row["excess_ms"]))
    return pa.table({name: [row[name] for row in rows] for name in names})
