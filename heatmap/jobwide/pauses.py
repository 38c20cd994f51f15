"""Checkpoint pauses that all hosts have alike: how much of the job's time they cost, and whether they became longer."""

from __future__ import annotations

import numpy as np

from ...collectors.store import Attempt, Store
from ...profiler.vocabulary import SegmentKind
from ..cells import SegmentCells
from ..observations import Observations
from ..peers import FloatArray, row_median
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .evidence import ask, table_of, total_sql
from .stretch import steps_of

SIGNAL = "checkpoint"

COSTLY_SHARE = 0.12
"""Share of the job's time from which on checkpoints are a finding: saved less often or aside, they cost less."""

NOTED_SHARE = 0.03
"""Share from which on their cost is told."""

MIN_GROWTH = 1.5
MIN_GROWTH_SHARE = 0.01
"""A checkpoint's time in the last third over that of the first, and what the difference costs."""

MIN_COLUMNS = 3
"""Columns with checkpoints that either end needs."""


def job_pauses(store: Store, attempt: Attempt, seen: Observations, cells: list[SegmentCells]) -> Findings:
    """One finding of the job at most: checkpoints cost much, or take longer than they did, on all hosts alike."""
    total = float(np.nansum(seen.step_ms))
    count = sum((one.count.sum(axis=0) for one in cells), np.zeros((len(seen.ranks), len(seen.steps))))
    spent = sum((np.nan_to_num(one.per_step_ms()) for one in cells), np.zeros(count.shape))
    writes = (count > 0).any(axis=1)
    if not writes.any() or not total > 0:
        return Findings()
    usual = row_median(spent[writes].T)
    share = float(usual.sum()) / total
    growth, extra = _growth(np.where(count > 0, spent, np.nan)[writes], count[writes], total)
    if share >= COSTLY_SHARE or (growth >= MIN_GROWTH and extra >= MIN_GROWTH_SHARE):
        lost = share if share >= COSTLY_SHARE else extra
        return Findings(culprits=(_culprit(store, attempt, seen, cells, lost, growth),))
    if share < NOTED_SHARE:
        return Findings()
    reason = (
        f"checkpoints take {share:.1%} of the job's time on all hosts alike: that is how often and how much is saved, "
        f"and no machine's fault"
    )
    return Findings(abstained=(Abstention(SIGNAL, reason),))


def _growth(spent: FloatArray, count: FloatArray, total: float) -> tuple[float, float]:
    """A checkpoint's time on the median rank late over early, and the share of the job's time that the growth costs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        each = row_median((spent / count).T)
    known = np.flatnonzero(np.isfinite(each))
    third = len(known) // 3
    if third < MIN_COLUMNS:
        return 1.0, 0.0
    early = float(np.median(each[known[:third]]))
    late = float(np.median(each[known[-third:]]))
    if early <= 0:
        return 1.0, 0.0
    often = row_median(np.where(np.isfinite(spent), count, 0.0).T)
    extra = np.maximum(np.nan_to_num(each) - early, 0.0) * often
    return late / early, float(extra.sum()) / total


def _culprit(
    store: Store, attempt: Attempt, seen: Observations, cells: list[SegmentCells], lost: float, growth: float
) -> Culprit:
    steps = steps_of(0, len(seen.steps) - 1, seen)
    lost = round(min(lost, 1.0), 6)
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=0.9,
        severity=severity(lost),
        kind=CulpritKind.JOB,
        cause=Cause.CHECKPOINT,
        segment=max(cells, key=lambda one: float(np.nansum(one.total_ms))).name,
        ratio=round(growth, 4),
        steps=steps,
        pattern=Pattern.DRIFTING if growth >= MIN_GROWTH else Pattern.INTERMITTENT,
        lost_share=lost,
        evidence=_evidence(store, attempt, seen, steps),
    )


def _evidence(store: Store, attempt: Attempt, seen: Observations, steps: tuple[int, int]) -> tuple[Evidence, ...]:
    sql = f"SELECT median(ms) FROM ({total_sql(attempt, seen, steps, f's.kind = {SegmentKind.CHECKPOINT.value!r}')})"
    value = ask(store, attempt, sql)
    if value is None:
        return ()
    steps_ms = float(np.nansum(seen.step_ms)) * seen.source.step_width
    statement = (
        f"the median rank spends {value:.1f} ms in checkpoints in steps {steps[0]} to {steps[1]}, which took "
        f"{steps_ms:.1f} ms"
    )
    return (Evidence(statement, value, None, table_of(seen), sql),)
