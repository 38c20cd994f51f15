"""Checkpoint pauses that all hosts have alike: how much of the job's time they cost, and whether they became longer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import SegmentKind
from ..asking import ask
from ..cells import SegmentCells
from ..observations import Observations
from ..peers import FloatArray, row_median
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .evidence import table_of, total_sql
from .stretch import steps_of

SIGNAL = "checkpoint"

COSTLY_SHARE = 0.12
"""Share of the job's time from which on checkpoints are a finding: saved less often or aside, they cost less."""

NOTED_SHARE = 0.03
"""Share from which on their cost is told."""

MIN_GROWTH = 1.5
MIN_GROWTH_SHARE = 0.01
"""A checkpoint's time in the last third over that of the first, and what the difference costs."""

MOST_SAVE = 0.9
"""Share of the ranks from which on all save."""

MIN_COLUMNS = 3
"""Columns with checkpoints that either end needs, and columns without that tell the usual step."""


def job_pauses(store: Store, attempt: Attempt, seen: Observations, cells: list[SegmentCells]) -> Findings:
    """One finding of the job at most: checkpoints cost much, or take longer than they did, on all hosts alike."""
    total = float(np.nansum(seen.step_ms))
    count = sum((one.count.sum(axis=0) for one in cells), np.zeros((len(seen.ranks), len(seen.steps))))
    spent = sum((np.nan_to_num(one.per_step_ms()) for one in cells), np.zeros(count.shape))
    writes = np.asarray((count > 0).any(axis=1), np.bool_)
    if not writes.any() or not total > 0:
        return Findings()
    usual, saving = row_median(spent[writes].T), int(writes.sum())
    if saving < MOST_SAVE * len(writes):
        if (note := _one_host_saves(seen, writes, float(usual.sum()) / total)) is not None:
            return Findings(blocking=(note,))
        usual = _held(usual, np.asarray((count > 0).any(axis=0), np.bool_), seen.step_ms)
    share = float(usual.sum()) / total
    growth, extra = _growth(np.where(count > 0, spent, np.nan)[writes], count[writes], total)
    who = "all hosts alike" if saving >= MOST_SAVE * len(writes) else f"the {saving} ranks that save"
    if share >= COSTLY_SHARE or (growth >= MIN_GROWTH and min(extra, share) >= MIN_GROWTH_SHARE):
        lost = share if share >= COSTLY_SHARE else min(extra, share)
        return Findings(culprits=(_culprit(store, attempt, seen, cells, lost, growth, saving),))
    if share < NOTED_SHARE:
        return Findings()
    reason = (
        f"checkpoints take {share:.1%} of the job's time on {who}: that is how often and how much is saved, and no "
        f"machine's fault"
    )
    return Findings(abstained=(Abstention(SIGNAL, reason),))


def _held(usual: FloatArray, saves: npt.NDArray[np.bool_], step_ms: FloatArray) -> FloatArray:
    """What checkpoints of a few ranks hold up the job by, ms by column: at most what steps with one are longer by.

    Nothing where no column is without one: others may go on meanwhile.
    """
    without = step_ms[~saves & np.isfinite(step_ms)]
    if len(without) < MIN_COLUMNS:
        return np.zeros(len(usual))
    longer = np.maximum(np.nan_to_num(step_ms) - float(np.median(without)), 0.0)
    held: FloatArray = np.where(saves, np.minimum(usual, longer), 0.0)
    return held


def _one_host_saves(seen: Observations, writes: npt.NDArray[np.bool_], share: float) -> Abstention | None:
    """That one host of several alone saves, and not that of the first rank, whose task it usually is."""
    hosts = {seen.placement.host_of(int(rank)) for rank in seen.ranks[writes]}
    if share < NOTED_SHARE or len(hosts) > 1 or len(set(seen.placement.hosts)) < 2 or writes[0]:
        return None
    reason = (
        f"only {next(iter(hosts))} saves checkpoints, and spends {share:.1%} of the job's time in them: whether that "
        f"is its task or its storage is slow cannot be told"
    )
    return Abstention(SIGNAL, reason)


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
    store: Store,
    attempt: Attempt,
    seen: Observations,
    cells: list[SegmentCells],
    lost: float,
    growth: float,
    saving: int,
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
        evidence=_evidence(store, attempt, seen, steps, saving),
    )


def _evidence(
    store: Store, attempt: Attempt, seen: Observations, steps: tuple[int, int], saving: int
) -> tuple[Evidence, ...]:
    sql = f"SELECT median(ms) FROM ({total_sql(attempt, seen, steps, f's.kind = {SegmentKind.CHECKPOINT.value!r}')})"
    value = ask(store, sql, attempt)
    if value is None:
        return ()
    steps_ms = float(np.nansum(seen.step_ms)) * seen.source.step_width
    statement = (
        f"the median of the {saving} ranks that save spends {value:.1f} ms in checkpoints in steps {steps[0]} to "
        f"{steps[1]}, which took {steps_ms:.1f} ms"
    )
    return (Evidence(statement, value, None, table_of(seen), sql),)
