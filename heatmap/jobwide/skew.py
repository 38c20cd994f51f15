"""Replicas that get longer sequences than the others step after step: slow on all stages alike, on several machines.

One machine explains one stage. That the GPUs of every stage of a replica, on different hosts, are slower by the same
ratio since the same step, and nobody else's, has a simpler reason: they work on the same micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..detect import MAD_TO_SIGMA
from ..observations import Observations
from ..peers import FloatArray, row_median
from ..verdict import Cause, Culprit, CulpritKind, Pattern, severity
from .evidence import replica_evidence
from .microbatches import MIN_REPLICAS
from .replicas import ReplicaWork
from .stretch import steps_of, surest_stretch
from .work import compute_cells, spans_per_step, work_ms

MIN_STAGES = 3
"""Two slow GPUs may share a replica by chance."""

MIN_RATIO = 1.05
MIN_Z = 6.0
MIN_SIGMAS = 6.0
MIN_LIKENESS = 0.7
"""The least raised stage's effect over the most raised one's."""

MIN_STEPS, MIN_WINDOWS = 15, 3
"""Of a stretch, where single steps are known and where they are averaged: by chance a replica is last for a few."""

MOST_REPLICAS = 1 / 3
"""Where more are raised, they are no exception."""


@dataclass(frozen=True, slots=True)
class SkewedReplica:
    """A replica (position) that works ``ratio`` times as long on all stages in columns ``first`` to ``last``."""

    replica: int
    first: int
    last: int
    ratio: float
    likeness: float
    to_the_end: bool


def skewed_replicas(work: ReplicaWork, seen: Observations) -> list[SkewedReplica]:
    """Replicas all of whose stages are raised alike, and run on different hosts; the most raised one first."""
    if work.microbatches > 1 or work.logs.shape[0] < MIN_STAGES or work.logs.shape[1] < MIN_REPLICAS:
        return []
    found = []
    for replica in _candidates(work.logs):
        raised = surest_stretch(replica, work.logs[:, replica].mean(axis=0), MIN_Z)
        least = MIN_STEPS if seen.source.step_width == 1 else MIN_WINDOWS
        if raised is None or raised.last - raised.first + 1 < least:
            continue
        levels = row_median(work.logs[:, :, raised.first : raised.last + 1])
        own = levels[:, replica]
        likeness = float(own.min() / own.max()) if own.max() > 0 else 0.0
        stands_out = own.min() >= max(math.log(MIN_RATIO), MIN_SIGMAS * _sigma(levels))
        if stands_out and likeness >= MIN_LIKENESS and _on_different_hosts(work, seen, replica):
            ratio = math.exp(float(np.median(own)))
            found.append(SkewedReplica(replica, raised.first, raised.last, ratio, likeness, raised.to_the_end))
    if len(found) > MOST_REPLICAS * work.logs.shape[1]:
        return []
    return sorted(found, key=lambda one: -one.ratio)


def _candidates(logs: FloatArray) -> list[int]:
    """Replicas all of whose stages are above the others in many columns: those worth a search."""
    with np.errstate(invalid="ignore"):
        above = (logs > math.log(MIN_RATIO) / 2).all(axis=0)
    return [int(one) for one in np.flatnonzero(above.sum(axis=1) >= max(2, logs.shape[2] // 20))]


def _sigma(levels: FloatArray) -> float:
    """Robust spread of the replicas' levels [P, G] within a stage."""
    strays = levels - np.nanmedian(levels, axis=1)[:, np.newaxis]
    return MAD_TO_SIGMA * float(np.nanmedian(np.abs(strays)))


def _on_different_hosts(work: ReplicaWork, seen: Observations, replica: int) -> bool:
    """Whether no two stages of a replica share a host: else one slow machine may be all that is the matter."""
    numbers = np.unique(work.replica[(work.replica >= 0) & (work.stage >= 0)])
    members = np.flatnonzero(work.replica == numbers[replica])
    hosts: dict[int, set[str | None]] = {}
    for row in members.tolist():
        hosts.setdefault(int(work.stage[row]), set()).add(seen.placement.host_of(int(seen.ranks[row])))
    every = set[str | None]().union(*hosts.values())
    return None not in every and len(every) == sum(len(one) for one in hosts.values())


def skew_culprit(
    store: Store, attempt: Attempt, seen: Observations, work: ReplicaWork, found: list[SkewedReplica]
) -> Culprit:
    """One finding of the job for all such replicas, told by the most raised one; it names no rank.

    All replicas meet at the end of a step: (ratio - 1) x work x (1 + (p - 1) / n) is lost in each of the steps, for p
    stages that pass on n spans a step.
    """
    worst = found[0]
    inside = slice(worst.first, worst.last + 1)
    usual = np.nan_to_num(np.nanmedian(work_ms(seen)[:, inside], axis=0))
    lost_ms = (worst.ratio - 1) * usual * (1 + (len(work.logs) - 1) / max(spans_per_step(seen), 1.0))
    total = float(np.nansum(seen.step_ms))
    lost = round(min(float(lost_ms.sum()) / total, 1.0), 6) if total > 0 else 0.0
    middle = (worst.first + worst.last) // 2
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=round(min(worst.likeness, 0.95), 3),
        severity=severity(lost),
        kind=CulpritKind.JOB,
        cause=Cause.UNEVEN_INPUT,
        segment=max(compute_cells(seen), key=lambda one: float(np.nansum(one.total_ms))).name,
        ratio=round(worst.ratio, 4),
        steps=steps_of(worst.first, worst.last, seen),
        pattern=Pattern.CHRONIC if worst.to_the_end else Pattern.ONE_OFF,
        lost_share=lost,
        evidence=replica_evidence(store, attempt, seen, work, (worst.replica, middle), _several(found)),
    )


def _several(found: list[SkewedReplica]) -> str:
    count = len(found)
    return "so it is on all its stages" if count == 1 else f"so it is on all its stages, and in {count} replicas"
