"""What a pipeline loses to a stage with more work than the others."""

from __future__ import annotations

import numpy as np

from ..observations import Observations
from ..peers import FloatArray, IntArray, column_median
from .work import forward_ms, spans_per_step


def stage_cost(
    levels: FloatArray, row: int, seen: Observations, roles: IntArray, stages: IntArray, inside: slice
) -> float:
    """Share of the job's time, 0 to 1, that is lost to a long stage, of all steps looked at.

    ``levels`` [P, S] is the work of each stage per step in ms. With n spans a step each way, 1F1B takes under a long
    stage s: its own work W_s, then one span of each stage before it (they fill and drain), and of each stage after it
    what a forward of s does not hide, W_s + (sum of W_k before + sum of max(W_k - F_s, 0) after) / n. Cut evenly it
    takes (1 + (p - 1) / n) times the mean work. The difference is lost; it is nothing where the bubble hides it. Of
    interleaved schedules this is an estimate (n counts the spans of all chunks).
    """
    spans = max(spans_per_step(seen), 1.0)
    forwards = forward_ms(seen)
    forward = levels[row] / 3 if forwards is None else column_median(forwards[roles == stages[row]])
    after = np.maximum(levels[row + 1 :] - forward, 0.0).sum(axis=0)
    takes = levels[row] + (levels[:row].sum(axis=0) + after) / spans
    even = (1 + (len(levels) - 1) / spans) * levels.mean(axis=0)
    lost = np.minimum(np.maximum(takes - even, 0.0), seen.step_ms)[inside]
    total = float(np.nansum(seen.step_ms))
    return round(min(float(np.nansum(lost)) / total, 1.0), 6) if total > 0 else 0.0
