"""Data that the whole job waits for: a finding that blames nobody, as all ranks that load have it alike."""

from __future__ import annotations

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import identifier
from ...profiler.vocabulary import SegmentKind
from ..asking import ask
from ..observations import Observations
from ..peers import STAGE_AXIS
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .evidence import table_of, total_sql, work_sql
from .loading import ALIKE, Loading, held_ms, loading, loading_cells
from .stretch import steps_of
from .work import is_waiting_known

SIGNAL = "data"

COSTLY_SHARE = 0.10
"""Share of the job's time from which on loading is a finding, however it is spread."""

STALLS_SHARE = 0.03
MIN_STALLS = 3
LONG_STALL = 10.0
"""The same of steps that stand out: so many of them, or one of so many steps' time (anything may hold up one step)."""

MIN_GROWTH = 1.5
MIN_GROWTH_SHARE = 0.02
"""Of loading that drifts: the last third's over the first's, and what the difference costs."""

NOTED_SHARE = 0.03
"""Share from which on its cost is told."""

FEW = 4
"""Of so many ranks, all load for as long as is said."""


def find_data_stalls(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """One finding of the job at most: loading costs much, stalls again and again, or takes longer and longer.

    None where waiting was not recorded: others may go on beside it, which is told. Where a single rank loads, or those
    of a single host of several, its machine may be what is slow: that is told, and the job not called healthy.
    """
    found = loading(seen)
    if found is None:
        return Findings()
    if not is_waiting_known(seen):
        return Findings(abstained=_not_told(found))
    lost = _lost(found, seen)
    if lost is None:
        return Findings(abstained=_noted(found))
    if (note := _cannot_tell(found, seen, lost)) is not None:
        return Findings(blocking=(note,))
    return Findings(culprits=(_culprit(store, attempt, seen, found, lost),))


def _lost(found: Loading, seen: Observations) -> float | None:
    """The share of the job's time that a finding is about; None where there is none."""
    if found.share >= COSTLY_SHARE:
        return found.share
    stalled_ms = found.stalls * float(np.nansum(seen.step_ms)) * seen.source.step_width
    is_long = stalled_ms >= LONG_STALL * float(np.nanmedian(seen.step_ms))
    if found.stalls >= STALLS_SHARE and (found.raised >= MIN_STALLS or is_long):
        return found.stalls
    drifts = found.pattern == Pattern.DRIFTING  # else a single step raises the third that it lies in
    if drifts and found.growth >= MIN_GROWTH and found.grown >= MIN_GROWTH_SHARE:
        return found.grown
    return None


def _not_told(found: Loading) -> tuple[Abstention, ...]:
    if found.share < MIN_GROWTH_SHARE:  # too little for any finding, whatever went on beside it
        return ()
    reason = (
        f"ranks load data for up to {found.share:.1%} of the job's time: whether the job waits for it was not judged, "
        f"as waiting was not recorded"
    )
    return (Abstention(SIGNAL, reason),)


def _noted(found: Loading) -> tuple[Abstention, ...]:
    if found.share < NOTED_SHARE:
        return ()
    reason = f"loading data takes {found.share:.1%} of the job's time on all ranks that load alike: no machine's fault"
    return (Abstention(SIGNAL, reason),)


def _cannot_tell(found: Loading, seen: Observations, lost: float) -> Abstention | None:
    """Why the data cannot be told from a machine: all that load for so long are one rank, or on one host of several."""
    if len(seen.ranks) == 1:
        return None
    held, total = held_ms(seen, loading_cells(seen), seen.step_ms), float(np.nansum(seen.step_ms))
    long = seen.ranks[np.nansum(held, axis=1) >= found.share / 2 * total]
    hosts = {seen.placement.host_of(int(rank)) for rank in long}
    if len(long) > 1 and (len(hosts) > 1 or len(set(seen.placement.hosts)) == 1):
        return None
    who = f"rank {int(long[0])}" if len(long) == 1 else f"{next(iter(hosts))}"
    reason = (
        f"only {who} loads data for so long, {lost:.1%} of the job's time: whether the data is slow or the machine "
        f"cannot be told"
    )
    return Abstention(SIGNAL, reason)


def _culprit(store: Store, attempt: Attempt, seen: Observations, found: Loading, lost: float) -> Culprit:
    grows = found.pattern == Pattern.DRIFTING
    lost = round(min(lost, 1.0), 6)
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=0.9,
        severity=severity(lost),
        kind=CulpritKind.JOB,
        cause=Cause.DATA_STALL,
        segment=max(loading_cells(seen), key=lambda one: float(np.nansum(one.total_ms))).name,
        ratio=round(found.growth if grows else 1 / max(1 - lost, 1e-3), 4),
        steps=steps_of(found.first, found.last, seen),
        pattern=found.pattern,
        lost_share=lost,
        evidence=_evidence(store, attempt, seen, found),
    )


def _evidence(store: Store, attempt: Attempt, seen: Observations, found: Loading) -> tuple[Evidence, ...]:
    """What nearly all ranks spend in the steps named, and the longest step beside the usual one."""
    condition = f"s.kind = '{SegmentKind.DATA}'"
    where = ""
    if found.stage is not None:
        condition += f" AND r.{identifier(seen.placement.stage_axis or STAGE_AXIS)} = {found.stage}"
        where = f" on stage {found.stage}"
    steps, count = steps_of(found.first, found.last, seen), len(found.rows)
    result = []
    sql = f"SELECT quantile_disc(ms, {ALIKE}) FROM ({total_sql(attempt, seen, steps, condition)})"
    if (own := ask(store, sql, attempt)) is not None:
        took_ms = float(np.nansum(seen.step_ms[found.first : found.last + 1])) * seen.source.step_width
        who = f"each of the {count} ranks that load data{where} spends at least"
        if count > FEW:
            who = f"three of four of the {count} ranks that load data{where} spend at least"
        elif count == 1:
            who = f"the only rank that loads data{where} spends"
        statement = f"{who} {own:.1f} ms loading in steps {steps[0]} to {steps[1]}, which took {took_ms:.1f} ms"
        result.append(Evidence(statement, own, None, table_of(seen), sql))
    peak = steps_of(found.peak, found.peak, seen)
    sql, usual = (
        f"SELECT median(ms) FROM ({work_sql(attempt, seen, span, condition)})"
        for span in (peak, steps_of(0, len(seen.steps) - 1, seen))
    )
    own, others = ask(store, sql, attempt), ask(store, usual, attempt)
    if own is not None and others is not None:
        which = f"step {peak[0]}" if peak[0] == peak[1] else f"steps {peak[0]} to {peak[1]}"
        statement = (
            f"in {which} the median of them loads for {own:.1f} ms a step, in the median step for {others:.1f} ms"
        )
        result.append(Evidence(statement, own, others, table_of(seen), sql))
    return tuple(result)
