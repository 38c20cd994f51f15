"""A barrier that crept in: the observed order against the schedule, collectives it does not have, and common starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..observations import Observations
from ..source import Source
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Findings, severity
from .actions import StageActions, observed_actions, scheduled_compute
from .barrier_signs import Barrier
from .common_starts import common_starts
from .extra_collectives import extra_collective
from .other_order import other_order

SIGNAL = "barrier"


def find_barrier(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """One finding of the job for each way in which the ranks wait for what the schedule does not ask for."""
    scheduled = scheduled_compute(store, attempt)
    if not scheduled or not seen.cells:
        return Findings()
    if seen.source.source == Source.ROLLUPS:
        reason = "the order of actions was not held against the schedule: that takes spans, and rollups were read"
        return Findings(abstained=(Abstention(SIGNAL, reason),))
    stages = observed_actions(store, attempt, seen, scheduled)
    found = [
        other_order(store, attempt, seen, stages),
        extra_collective(store, attempt, seen),
        common_starts(store, attempt, seen, stages),
    ]
    culprits = tuple(_culprit(one) for one in found if one is not None)
    return Findings(culprits=culprits, abstained=tuple(_no_clocks(stages)))


def _no_clocks(stages: Sequence[StageActions]) -> list[Abstention]:
    if not stages or all(np.isfinite(one.uncertainty_ms) for one in stages):
        return []
    reason = "whether ranks of several hosts begin at the same moment cannot be told: their clocks are not aligned"
    return [Abstention(SIGNAL, reason)]


def _culprit(one: Barrier) -> Culprit:
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=one.confidence,
        severity=severity(one.lost_share),
        kind=CulpritKind.JOB,
        cause=Cause.BARRIER,
        segment=one.segment,
        ratio=round(1 / max(1 - one.held_share, 1e-3), 4),
        steps=one.steps,
        pattern=one.pattern,
        lost_share=one.lost_share,
        evidence=one.evidence,
    )
