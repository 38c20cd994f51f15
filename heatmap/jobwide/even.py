"""Takes unequal micro-batches out of the observations, so that ranks are compared at equal work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import SegmentKind
from ..detect import BoolArray
from ..equal_work import at_equal_work
from ..observations import Observations
from ..peers import FloatArray, others_median
from .microbatches import comparable_work
from .replicas import ReplicaWork
from .sequences import uneven_input
from .skew import skewed_replicas
from .work import compute_cells


def even_out(store: Store, attempt: Attempt, seen: Observations) -> Observations:
    """The observations with compute as if all micro-batches cost the same; unchanged where they do.

    In the steps in which micro-batches cost unequally much, each rank's compute is divided by what the other stages of
    its replica took beside theirs: a slow rank moves its own factor by nothing, and stays slow. What it then works
    longer or shorter, it is taken to have waited less or more.
    """
    if seen.waits_ms is None or not compute_cells(seen):
        return seen
    work = comparable_work(store, attempt, seen)
    is_divided = any(one.scale is not None for one in seen.cells)
    if work is None or (is_divided and work.microbatches > 1):  # by tokens; micro-batches are read from raw spans
        return seen
    found, skewed = uneven_input(work, seen), skewed_replicas(work, seen)
    if found is None and not skewed:
        return seen
    wanted = np.zeros(work.logs.shape[1:], bool)
    if found is not None:
        wanted[:, found.first : found.last + 1] = True
    for one in skewed:
        wanted[one.replica, one.first : one.last + 1] = True
    factors = _factors(work, wanted)
    cells = (
        replace(one, total_ms=one.total_ms / factors) if one.kind == SegmentKind.COMPUTE else one for one in seen.cells
    )
    return at_equal_work(seen, cells)


def _factors(work: ReplicaWork, wanted: BoolArray) -> FloatArray:
    """What a rank's micro-batches cost by the other stages of its replica, [R, C]; 1 where that is not known, and in
    the replicas and columns [G, C] where it is not wanted."""
    stages, groups = (np.unique(one[one >= 0]) for one in (work.stage, work.replica))
    others = others_median(work.logs.reshape(len(stages), -1)).reshape(work.logs.shape)
    each = np.where(wanted, np.exp(np.nan_to_num(others)), 1.0)
    factors = np.stack([work.by_replica(one) for one in each])
    known = np.flatnonzero((work.stage >= 0) & (work.replica >= 0))
    result = np.ones((len(work.stage), work.logs.shape[2]))
    result[known] = factors[np.searchsorted(stages, work.stage[known]), np.searchsorted(groups, work.replica[known])]
    return result
