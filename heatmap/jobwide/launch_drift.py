"""Pauses of the hosts that grow and come by turns, told by how ranks launch alone: garbage that nobody recorded.

The sign of MegaScale (NSDI '24, section 6.3): the launches of the reduce-scatter spread out with the steps, and the
last to launch is now this rank, now that one. Unequal micro-batches or a slow network do that too; there, work or
waiting of the replica that is late shows it. Here the time is missing from the spans of one of its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import SegmentKind
from ..asking import ask
from ..launches import MOST_OFTEN, Launches, launched, launches_of
from ..observations import Observations
from ..peers import FloatArray, column_median, row_median
from ..source import Source
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .replicas import replicas_of
from .work import is_waiting_known

SIGNAL = "gc"

MIN_STEPS = 30
"""As many as healthy needs: of fewer that is told already."""

MIN_MEMBERS = 4
"""Ranks of a group: of fewer, one is the last more often than not by chance."""

MIN_RATIO = 1.5
"""Median spread of the last third of the steps over that of the first."""

MIN_SHARE = 0.02
"""What the spread grows by, over the usual step."""

MIN_LOST = 0.01
"""What steps became longer by, and launches further apart, over the time of all steps."""

UNRECORDED = 0.5
"""Share of a spread that is missing from the spans of a rank of the replica that is last, in the median case."""


@dataclass(frozen=True, slots=True)
class LaunchDrift:
    """Median spread of the launches in the first and the last third of the steps, ms; the last third's first step."""

    early_ms: float
    late_ms: float
    last_third: int
    often: float
    lost_share: float


def find_launch_drift(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """One finding of the job at most; none where collections were recorded, which are judged by themselves.

    Where ranks launch such a collective and what it takes to judge that is missing, it is told what.
    """
    has_gc = any(one.kind == SegmentKind.GC and one.count.sum() > 0 for one in seen.cells)
    if has_gc or not seen.cells:
        return Findings()
    if seen.source.source == Source.ROLLUPS:
        return _not_judged(launched(store, attempt), "that takes spans, and rollups were read")
    is_long = len(seen.steps) >= MIN_STEPS
    launches = launches_of(store, attempt, (int(seen.steps[0]), int(seen.steps[-1]))) if is_long else None
    if launches is None:
        return Findings()
    if not is_waiting_known(seen):
        return _not_judged(launches.segment, "waiting was not recorded")
    if not launches.are_known(MIN_MEMBERS):
        return _not_judged(launches.segment, "the hosts' clocks are not aligned")
    found = launch_drift(launches, seen)
    return Findings() if found is None else Findings(culprits=(_culprit(store, attempt, seen, launches, found),))


def _not_judged(segment: str | None, why: str) -> Findings:
    if segment is None:
        return Findings()
    reason = f"whether launches of {segment} spread out, as by collections that nobody recorded, was not judged: {why}"
    return Findings(abstained=(Abstention(SIGNAL, reason),))


def launch_drift(launches: Launches, seen: Observations) -> LaunchDrift | None:
    """Whether launches spread out more and more, by turns, by what no span shows; None where not."""
    rows = launches.inside(seen.steps, MIN_MEMBERS)
    usual = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else np.nan
    if not usual > 0 or len(rows.step) == 0:
        return None
    column = np.searchsorted(seen.steps, rows.step)
    third = len(seen.steps) // 3
    parts = [column < third, (column >= third) & (column < len(seen.steps) - third), column >= len(seen.steps) - third]
    if not all(part.any() for part in parts):
        return None
    early, middle, late = (float(np.median(rows.spread_ms[part])) for part in parts)
    if not early < middle < late or late < MIN_RATIO * early or late - early < MIN_SHARE * usual:
        return None
    often = rows.most_often(parts[2])
    if often > max(MOST_OFTEN, 1.5 / rows.median_members):
        return None
    lost = _lost_share(rows, column, seen, early, third)
    if lost < MIN_LOST or _unrecorded_share(rows, column, parts[2], seen) < UNRECORDED:
        return None
    return LaunchDrift(early, late, int(seen.steps[len(seen.steps) - third]), often, lost)


def _lost_share(rows: Launches, column: np.ndarray, seen: Observations, early: float, third: int) -> float:
    """By how much steps became longer, at most by how much further apart the median group launches."""
    groups, inverse = np.unique(rows.group, return_inverse=True)
    spread = np.full((len(groups), len(seen.steps)), np.nan)
    spread[inverse, column] = rows.spread_ms
    wider = np.maximum(np.nan_to_num(column_median(spread)) - early, 0.0)
    longer = np.maximum(np.nan_to_num(seen.step_ms) - float(np.nanmedian(seen.step_ms[:third])), 0.0)
    return round(float(np.minimum(wider, longer).sum()) / float(np.nansum(seen.step_ms)), 6)


def _unrecorded_share(rows: Launches, column: np.ndarray, late: np.ndarray, seen: Observations) -> float:
    """Median over the late launches of what is missing from a rank's spans in the replica that is last, over the
    spread."""
    missing = unrecorded_ms(seen)
    replica = replicas_of(seen)
    row = np.minimum(np.searchsorted(seen.ranks, rows.last_rank), len(seen.ranks) - 1)
    known = late & (seen.ranks[row] == rows.last_rank) & (replica[row] >= 0) & (rows.spread_ms > 0)
    shares = []
    for at in np.flatnonzero(known).tolist():
        own = missing[replica == replica[row[at]], column[at]]
        shares.append(float(np.nanmax(own)) / rows.spread_ms[at] if np.isfinite(own).any() else 0.0)
    return float(np.median(shares)) if shares else 0.0


def unrecorded_ms(seen: Observations) -> FloatArray:
    """Time of each step that is in no span of work or waiting, beyond the rank's usual and the step's, [R, S]."""
    busy = np.nan_to_num(seen.waits_ms) if seen.waits_ms is not None else np.zeros((len(seen.ranks), len(seen.steps)))
    for one in seen.cells:
        busy = busy + np.nan_to_num(one.per_step_ms())
    left = seen.step_ms - busy
    left = left - row_median(left)[:, None]
    result: FloatArray = left - column_median(left)
    return result


def _culprit(store: Store, attempt: Attempt, seen: Observations, launches: Launches, found: LaunchDrift) -> Culprit:
    last = int(seen.steps[-1])
    sql = f"{launches.spread_sql(attempt, found.last_third, last)} WHERE members >= {MIN_MEMBERS}"
    own = ask(store, sql, attempt)
    statement = (
        f"launches of {launches.segment} lie {found.late_ms if own is None else own:.2f} ms apart in the median group "
        f"from step {found.last_third} on, {found.early_ms:.2f} ms in the first third of the steps, and no rank is the "
        f"last in more than {found.often:.0%} of them; a rank of the replica that is late has that time in no span"
    )
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=0.6,
        severity=severity(found.lost_share),
        kind=CulpritKind.JOB,
        cause=Cause.GC_DRIFT,
        segment=launches.segment,
        ratio=round(found.late_ms / max(found.early_ms, 1e-6), 4),
        steps=(int(seen.steps[0]), last),
        pattern=Pattern.DRIFTING,
        lost_share=found.lost_share,
        evidence=(Evidence(statement, own, found.early_ms, "events_aligned", sql),),
    )
