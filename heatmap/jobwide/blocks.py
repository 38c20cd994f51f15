"""Time in checkpoints by blocks of steps, and what stands out in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...collectors.rollups.windows import WINDOW_STEPS
from ..cells import SegmentCells
from ..detect import BoolArray
from ..observations import Observations
from ..peers import FloatArray, IntArray

BLOCK_STEPS = WINDOW_STEPS[0]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What is spent in checkpoints: ``spent`` [R, B] and ``step_ms`` [B] in ms per step, over blocks of columns.

    ``steps`` [B] is how many steps a block has, ``first`` and ``last`` [B] are its columns; ``active`` [R] are ranks
    that write checkpoints at all.
    """

    spent: FloatArray
    step_ms: FloatArray
    steps: FloatArray
    first: IntArray
    last: IntArray
    active: BoolArray


@dataclass(frozen=True, slots=True)
class StalledHost:
    """A host all of whose ranks spend longer in checkpoints than the ranks of the same stage on other hosts."""

    host: str
    ranks: tuple[int, ...]
    blocks: tuple[int, ...]
    ratio: float
    lost_share: float
    sigmas: float
    alike: float


def blocks_of(cells: list[SegmentCells], seen: Observations) -> Blocks:
    """Sums over blocks of steps; windows are blocks already. A rank without a span of it spent no time."""
    spent = sum((np.nan_to_num(one.per_step_ms()) for one in cells), np.zeros((len(seen.ranks), len(seen.steps))))
    length = max(seen.source.step_width, BLOCK_STEPS)
    _, first = np.unique(seen.steps // length, return_index=True)
    columns = np.diff(np.append(first, len(seen.steps)))
    width = seen.source.step_width
    usual = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else np.nan
    step_ms = np.where(np.isfinite(seen.step_ms), seen.step_ms, usual)
    return Blocks(
        np.add.reduceat(spent, first, axis=1) / columns,
        np.add.reduceat(step_ms, first) / columns,
        columns.astype(float) * width,
        first.astype(np.int64),
        (first + columns - 1).astype(np.int64),
        np.asarray((spent > 0).any(axis=1), np.bool_),
    )
