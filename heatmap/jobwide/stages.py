"""Stages whose ranks all have more work than those of the other stages: the model is cut unevenly, nobody is slow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..detect import MAD_TO_SIGMA, Raised
from ..hosts import hosts_of_stages
from ..observations import Observations
from ..peers import FloatArray, IntArray, column_median, others_median, row_median
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Findings, severity
from .evidence import stage_evidence
from .stage_cost import stage_cost
from .stretch import LEAST_SIGMA, MEDIAN_ERROR, steps_of, surest_stretch
from .work import compute_cells, work_ms

SIGNAL = "uneven-stages"

MIN_RATIO = 1.05
PART_RATIO = 1.10
"""Instead of it for a part of the steps, where few ranks or single steps were averaged: a cut of the model lasts."""

PART_LENGTH = 12
"""Steps that a part needs, where single steps are known."""

PART_SIGMAS = 4.0
"""How far a part stands above the other steps, in their own spread."""

FEW_RANKS = 8
"""Of a stage: so few may all have been disturbed by something else."""

MIN_COLUMNS = 3
"""Steps or windows in which a stage is to be longer, at least."""

MIN_Z = 6.0
"""Standard errors that a stage is above the others: along the steps, and between the ranks."""

MIN_ALIKE = 0.9
"""Share of the stage's ranks that are raised by half the effect at least: fewer are slow ranks, not a long stage."""

MIN_EXCESS = 0.015
"""Work beyond the mean of all stages, as a share of the stretch: less is not worth cutting the model anew."""


@dataclass(frozen=True, slots=True)
class UnevenStage:
    """A stage with more work than the others: where, how much, and in which columns of the observations."""

    stage: int
    segment: str
    raised: Raised
    alike: float
    lost_share: float

    @property
    def ratio(self) -> float:
        """Own work over the other stages' median."""
        return math.exp(self.raised.effect)


def find_uneven_stages(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Stages whose work per step is longer than the other stages', on all their ranks alike.

    Nothing where communication was not recorded: compute would contain waiting. A stage that runs on one host of
    several, or on one rank, is not judged: its machine may be what is slow.
    """
    roles = seen.placement.roles(seen.ranks)
    stages = np.unique(roles[roles >= 0])
    if len(stages) < 2 or seen.waits_ms is None or not compute_cells(seen):
        return Findings()
    found = uneven_stages(seen, roles, stages)
    hosts = hosts_of_stages(seen)
    several = len(set().union(*hosts.values())) > 1
    culprits, blocking = [], []
    for one in found:
        members = int((roles == one.stage).sum())
        if members < 2 or (several and len(hosts[one.stage]) < 2):
            blocking.append(_cannot_tell(one, members, hosts[one.stage]))
        else:
            culprits.append(_culprit(store, attempt, seen, one))
    return Findings(culprits=tuple(culprits), blocking=tuple(blocking))


def uneven_stages(seen: Observations, roles: IntArray, stages: IntArray) -> list[UnevenStage]:
    """All stages that are raised, the costliest first."""
    work = work_ms(seen)
    levels = np.stack([column_median(work[roles == stage]) for stage in stages])
    others = others_median(levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(levels / others)
    result = []
    for row, stage in enumerate(stages):
        raised = surest_stretch(row, logs[row], MIN_Z)
        if raised is None or raised.effect < math.log(MIN_RATIO):
            continue
        if not _is_all(raised, logs[row]) and not _is_part(raised, logs[row], seen, int((roles == stage).sum())):
            continue
        inside = slice(raised.first, raised.last + 1)
        alike, errors = _alike(work[:, inside], others[row, inside], roles, int(stage), raised.effect)
        if alike >= MIN_ALIKE and errors >= MIN_Z and _excess(levels, row, seen, inside) >= MIN_EXCESS:
            segment = _segment(seen, roles, int(stage), inside)
            lost = stage_cost(levels, row, seen, roles, stages, inside)
            result.append(UnevenStage(int(stage), segment, raised, alike, lost))
    return sorted(result, key=lambda one: -one.lost_share)


def _is_all(raised: Raised, logs: FloatArray) -> bool:
    """Whether a stretch covers nearly all steps that are known."""
    known = np.flatnonzero(np.isfinite(logs))
    return bool(np.mean((known >= raised.first) & (known <= raised.last)) >= 0.95) and len(known) >= MIN_COLUMNS


def _is_part(raised: Raised, logs: FloatArray, seen: Observations, members: int) -> bool:
    """Whether a stretch of a part of the steps is one that no passing disturbance makes."""
    width, length = seen.source.step_width, raised.last - raised.first + 1
    if raised.effect < math.log(PART_RATIO) and (width == 1 or members < FEW_RANKS):
        return False
    if width == 1 and length < PART_LENGTH:
        return False
    outside = np.concatenate([logs[: raised.first], logs[raised.last + 1 :]])
    outside = outside[np.isfinite(outside)]
    if not len(outside):
        return True
    middle = float(np.median(outside))
    sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(outside - middle))), LEAST_SIGMA)
    return raised.effect - middle >= PART_SIGMAS * sigma


def _alike(work: FloatArray, others: FloatArray, roles: IntArray, stage: int, effect: float) -> tuple[float, float]:
    """Share of the stage's ranks that are raised by half the effect, and the effect in standard errors of ranks.

    A single rank has no spread of its own: its error is not known, and taken to be none.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        own = row_median(np.log(work[roles == stage] / others))
    own = own[np.isfinite(own)]
    if not len(own):
        return 0.0, 0.0
    spread = MAD_TO_SIGMA * float(np.median(np.abs(own - np.median(own))))
    error = max(MEDIAN_ERROR * spread / math.sqrt(len(own)), 1e-3)
    return float(np.mean(own > effect / 2)), effect / error


def _excess(levels: FloatArray, row: int, seen: Observations, inside: slice) -> float:
    """What a stage works beyond the mean of all stages, as a share of the time of the stretch."""
    above, step_ms = (levels[row] - levels.mean(axis=0))[inside], seen.step_ms[inside]
    known = np.isfinite(above) & np.isfinite(step_ms)
    return float(above[known].sum() / step_ms[known].sum()) if step_ms[known].sum() > 0 else 0.0


def _segment(seen: Observations, roles: IntArray, stage: int, inside: slice) -> str:
    """The segment of compute that adds most to the stage's excess."""
    excess = {}
    for one in compute_cells(seen):
        spent = np.nan_to_num(one.per_step_ms()[:, inside])
        rest = (roles != stage) & (roles >= 0)
        excess[one.name] = float(np.median(spent[roles == stage]) - np.median(spent[rest]))
    return max(excess, key=lambda name: excess[name])


def _cannot_tell(one: UnevenStage, members: int, hosts: set[str]) -> Abstention:
    where = "a single rank" if members < 2 else f"{next(iter(hosts))} alone"
    reason = (
        f"stage {one.stage} takes x{one.ratio:.2f} of the other stages' time in compute, but it runs on {where}: "
        f"whether it has more work or a slow machine cannot be told"
    )
    return Abstention(SIGNAL, reason)


def _culprit(store: Store, attempt: Attempt, seen: Observations, one: UnevenStage) -> Culprit:
    steps = steps_of(one.raised.first, one.raised.last, seen)
    sure = 1 - 0.5 * math.exp(-max(one.raised.z - MIN_Z, 0.0) / 4)
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=round(min(sure, one.alike, 0.99), 3),
        severity=severity(one.lost_share),
        kind=CulpritKind.STAGE,
        cause=Cause.UNEVEN_STAGES,
        segment=one.segment,
        ratio=round(one.ratio, 4),
        steps=steps,
        pattern=one.raised.pattern,
        lost_share=one.lost_share,
        evidence=stage_evidence(store, attempt, seen, one.stage, steps),
        stage=one.stage,
    )
