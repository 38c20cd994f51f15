"""What the ranks that work on the same micro-batches have in common: those of one replica, over its stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...profiler.vocabulary import PIPELINE_AXES, SegmentKind
from ..cells import SegmentCells, total_work
from ..observations import Observations
from ..peers import FloatArray, IntArray, column_median

SHARED_AXES = frozenset({*PIPELINE_AXES, "tp", "cp"})
"""Axes along which ranks share their micro-batches: pipeline, tensor and context parallelism cut the model or the
sequence. All other axes multiply the batch."""


@dataclass(frozen=True, slots=True)
class ReplicaWork:
    """Work of each replica on each stage beside the other replicas', as log-ratios ``logs`` [P, G, C].

    P stages, G replicas, C columns (steps or windows). Each is the median over the ranks of a replica on a stage, of
    log(own time of compute / median of the stage in the same column): a stage's usual work does not count. ``spans`` is
    how many spans a column averages, ``chunks`` how many of them are of one micro-batch. ``replica`` [R] is the number
    of each rank's replica, ``stage`` [R] that of its stage; -1 where not known. Where single micro-batches are
    compared, each stands for a replica: G is replicas x ``microbatches``, replica by replica.
    """

    logs: FloatArray
    spans: float
    chunks: int
    replica: IntArray
    stage: IntArray
    microbatches: int = 1

    def by_replica(self, values: FloatArray) -> FloatArray:
        """Mean over the micro-batches of a replica, [G, C] -> [replicas, C]."""
        mean: FloatArray = values.reshape(-1, self.microbatches, values.shape[-1]).mean(axis=1)
        return mean


def replicas_of(seen: Observations) -> IntArray:
    """Number of each rank's replica, [R]; -1 where a coordinate is not known."""
    axes = sorted(axis for axis in seen.placement.coordinates if axis not in SHARED_AXES)
    if not axes:
        return np.zeros(len(seen.ranks), np.int64)
    keys = np.stack([seen.placement.coordinate(axis, seen.ranks) for axis in axes])
    _, numbers = np.unique(keys, axis=1, return_inverse=True)
    return np.where((keys < 0).any(axis=0), -1, numbers.reshape(-1)).astype(np.int64)


def replica_work(seen: Observations, chunks: int = 1) -> ReplicaWork | None:
    """Work by stage and replica; None where there is no compute, or fewer than two stages or replicas."""
    cells = [one for one in seen.cells if one.kind == SegmentKind.COMPUTE]
    stage, replica = seen.placement.roles(seen.ranks), replicas_of(seen)
    known = (stage >= 0) & (replica >= 0)
    stages, groups = np.unique(stage[known]), np.unique(replica[known])
    if not cells or len(stages) < 2 or len(groups) < 2:
        return None
    raw = _rank_logs(cells, stage, stages)
    order = np.lexsort((replica, stage))
    order = order[known[order]]
    keys = np.searchsorted(stages, stage[order]) * len(groups) + np.searchsorted(groups, replica[order])
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    shape = (len(stages), len(groups), raw.shape[1])
    flat = np.full((shape[0] * shape[1], shape[2]), np.nan)
    for at, rows in zip(keys[begins], np.split(order, begins[1:]), strict=True):
        flat[at] = raw[rows[0]] if len(rows) == 1 else column_median(raw[rows])
    counts = max(cells, key=lambda one: float(one.count.sum())).count.sum(axis=0)
    spans = float(np.median(counts[counts > 0])) * seen.source.step_width if (counts > 0).any() else 1.0
    return ReplicaWork(flat.reshape(shape), spans, chunks, replica, stage)


def _rank_logs(cells: list[SegmentCells], stage: IntArray, stages: IntArray) -> FloatArray:
    """log(own / median of the stage's ranks in the column), [R, C]."""
    work = total_work(cells, stage)
    logs = np.full(work.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        for one in stages:
            here = stage == one
            logs[here] = np.log(work[here] / column_median(work[here]))
    logs[~np.isfinite(logs)] = np.nan
    return logs
