"""Observations as rollups would give them: columns averaged over windows of steps, when spans began forgotten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megascope.heatmap.cells import SegmentCells
from megascope.heatmap.observations import Observations
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.source import Choice, Source


def windowed(seen: Observations, width: int = 10) -> Observations:
    """The same job from whole windows of ``width`` steps; the first window is left out."""
    windows = len(seen.steps) // width

    def mean(values: FloatArray) -> FloatArray:
        kept = values[..., width : windows * width]
        result: FloatArray = kept.reshape(*values.shape[:-1], windows - 1, width).mean(axis=-1)
        return result

    steps = seen.steps[width : windows * width : width]
    unknown = np.full((len(seen.ranks), len(steps)), np.nan)

    def cells(one: SegmentCells) -> SegmentCells:
        total, count = (mean(values.sum(axis=0, keepdims=True)) for values in (one.total_ms, one.count))
        return SegmentCells(one.name, one.kind, one.ranks, steps, total, count, unknown, unknown, 0, width)

    assert seen.waits_ms is not None
    choice = Choice(Source.ROLLUPS, 0, "no raw spans", width, (0, (windows - 1) * width))
    return replace(
        seen,
        cells=tuple(cells(one) for one in seen.cells),
        steps=steps,
        step_ms=mean(seen.step_ms),
        waits_ms=mean(seen.waits_ms),
        warm_up=tuple(range(width)),
        source=choice,
    )
