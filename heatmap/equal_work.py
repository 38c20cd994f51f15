"""Observations as if all ranks of a peer group had been given equal work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..profiler.vocabulary import SegmentKind
from .cells import SegmentCells, total_work
from .observations import Observations


def at_equal_work(seen: Observations, cells: Iterable[SegmentCells]) -> Observations:
    """The observations with other cells. What a rank then computes longer or shorter, it is taken to have waited less
    or more."""
    roles, evened = seen.placement.roles(seen.ranks), replace(seen, cells=tuple(cells))
    if seen.waits_ms is None:
        return evened
    was, is_now = (
        total_work([one for one in each.cells if one.kind == SegmentKind.COMPUTE], roles) for each in (seen, evened)
    )
    return replace(evened, waits_ms=seen.waits_ms + np.nan_to_num(was - is_now))
