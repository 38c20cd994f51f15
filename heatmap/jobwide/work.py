"""How much ranks compute: own time per step over all segments of compute, into how many spans it is cut; waiting."""

from __future__ import annotations

import numpy as np

from ...profiler.vocabulary import ActionKind, SegmentKind
from ..cells import SegmentCells, total_work
from ..observations import Observations
from ..peers import FloatArray


def compute_cells(seen: Observations) -> list[SegmentCells]:
    """The segments that are compute."""
    return [one for one in seen.cells if one.kind == SegmentKind.COMPUTE]


def work_ms(seen: Observations) -> FloatArray:
    """Own time in compute per step, [R, S]; NaN where a rank has none."""
    return total_work(compute_cells(seen), seen.placement.roles(seen.ranks))


def forward_ms(seen: Observations) -> FloatArray | None:
    """The part of it that is forward, [R, S]; None where no segment has that name."""
    cells = [one for one in compute_cells(seen) if one.name == ActionKind.FORWARD]
    return total_work(cells, seen.placement.roles(seen.ranks)) if cells else None


def spans_per_step(seen: Observations) -> float:
    """Spans of the segment of compute that runs most often in a step: micro-batches x chunks."""
    counts = []
    for one in compute_cells(seen):
        total = one.count.sum(axis=0)
        if (total > 0).any():
            counts.append(float(np.median(total[total > 0])))
    return max(counts, default=1.0)


def is_waiting_known(seen: Observations) -> bool:
    """Whether it was recorded how long ranks wait for each other, or there is nobody to wait for."""
    return len(seen.ranks) == 1 or (seen.waits_ms is not None and bool(np.isfinite(seen.waits_ms).any()))
