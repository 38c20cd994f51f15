"""How much ranks compute: own time per step over all segments of compute, and into how many spans it is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...profiler.vocabulary import ActionKind, SegmentKind
from ..cells import SegmentCells
from ..observations import Observations
from ..peers import FloatArray


def compute_cells(seen: Observations) -> list[SegmentCells]:
    """The segments that are compute."""
    return [one for one in seen.cells if one.kind == SegmentKind.COMPUTE]


def work_ms(seen: Observations) -> FloatArray:
    """Own time in compute per step, [R, S]; NaN where a rank has none."""
    return _total(compute_cells(seen))


def forward_ms(seen: Observations) -> FloatArray | None:
    """The part of it that is forward, [R, S]; None where no segment has that name."""
    cells = [one for one in compute_cells(seen) if one.name == ActionKind.FORWARD]
    return _total(cells) if cells else None


def _total(cells: Sequence[SegmentCells]) -> FloatArray:
    parts = np.stack([one.per_step_ms() for one in cells])
    total: FloatArray = np.where(np.isfinite(parts).any(axis=0), np.nansum(parts, axis=0), np.nan)
    return total


def spans_per_step(seen: Observations) -> float:
    """Spans of the segment of compute that runs most often in a step: micro-batches x chunks."""
    counts = []
    for one in compute_cells(seen):
        total = one.count.sum(axis=0)
        if (total > 0).any():
            counts.append(float(np.median(total[total > 0])))
    return max(counts, default=1.0)
