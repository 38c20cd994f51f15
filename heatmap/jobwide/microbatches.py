"""Work of single micro-batches, from spans: of a job with few replicas, these are what can be compared."""

from __future__ import annotations

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import SegmentKind
from ..cells import NS_PER_MS
from ..observations import Observations
from ..peers import FloatArray, IntArray, column_median, row_median
from ..source import Source
from .replicas import ReplicaWork, replica_work, replicas_of

MIN_GROUPS = 8
"""Micro-batches of all replicas in a step: fewer have no spread to speak of."""

MIN_REPLICAS = 4
"""From so many on, what a replica takes for all its micro-batches of a step tells enough."""


def comparable_work(store: Store, attempt: Attempt, seen: Observations) -> ReplicaWork | None:
    """Work by stage and replica where there are replicas enough, else by micro-batch; None where neither can be."""
    stage, replica = seen.placement.roles(seen.ranks), replicas_of(seen)
    replicas = len(np.unique(replica[(replica >= 0) & (stage >= 0)]))
    if replicas >= MIN_REPLICAS:
        return replica_work(seen, _chunks(store, attempt))
    if seen.source.source == Source.ROLLUPS or len(np.unique(stage[stage >= 0])) < 2:
        return None
    return _microbatch_work(store, attempt, seen, stage, replica)


def _chunks(store: Store, attempt: Attempt) -> int:
    """Chunks of a rank by the schedule; 1 where none is stored."""
    found = store.query("SELECT count(DISTINCT chunk) AS n FROM schedule", attempt=attempt)["n"].to_pylist()
    return max(int(found[0] or 0), 1) if found else 1


def _microbatch_work(
    store: Store, attempt: Attempt, seen: Observations, stage: IntArray, replica: IntArray
) -> ReplicaWork | None:
    """Log-ratios of micro-batches, [P, G x M, C], replica by replica; a first one that is always longer is usual."""
    work = _load(store, attempt, seen)
    stages, groups = np.unique(stage[stage >= 0]), np.unique(replica[replica >= 0])
    if work is None or len(groups) * work.shape[1] < MIN_GROUPS:
        return None
    logs = np.full((len(stages), len(groups), *work.shape[1:]), np.nan)
    for row, one in enumerate(stages):
        for place, group in enumerate(groups):
            members = np.flatnonzero((stage == one) & (replica == group))
            if len(members):
                logs[row, place] = column_median(work[members].reshape(len(members), -1)).reshape(work.shape[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(logs.reshape(len(stages), -1, work.shape[2]))
    logs[~np.isfinite(logs)] = np.nan
    logs -= np.stack([column_median(one) for one in logs])[:, np.newaxis]
    logs -= row_median(logs)[:, :, np.newaxis]
    return ReplicaWork(logs, 1.0, 1, replica, stage, work.shape[1])


def _load(store: Store, attempt: Attempt, seen: Observations) -> FloatArray | None:
    """Own time of compute by rank, micro-batch and step in ms, [R, M, C]; None where spans carry no micro-batches."""
    table = store.query(
        f"""SELECT rank, step, microbatch, sum(self_ns)::DOUBLE AS own_ns FROM spans
            WHERE kind = '{SegmentKind.COMPUTE}' AND status = 'ok' AND microbatch >= 0 AND step IS NOT NULL
            GROUP BY rank, step, microbatch""",
        attempt=attempt,
    )
    rank, step, own_ns = (table[name].to_numpy(zero_copy_only=False) for name in ("rank", "step", "own_ns"))
    keep = np.isin(rank, seen.ranks) & np.isin(step, seen.steps)
    if not keep.any():
        return None
    numbers, batch = np.unique(table["microbatch"].to_numpy()[keep], return_inverse=True)
    work = np.full((len(seen.ranks), len(numbers), len(seen.steps)), np.nan)
    at = np.searchsorted(seen.ranks, rank[keep]), batch, np.searchsorted(seen.steps, step[keep])
    work[at] = own_ns[keep] / NS_PER_MS
    return work
