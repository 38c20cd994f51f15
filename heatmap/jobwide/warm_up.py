"""A warm-up that cost the job a notable share of its time: first steps that are long and get shorter, on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.tables.schemas import RANKS_PER_BLOCK
from ..asking import ask
from ..observations import Observations
from ..peers import FloatArray, IntArray
from ..verdict import Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity

MIN_STEPS = 3
"""One or two slow first steps are what every job has."""

MIN_RATIO = 2.0
"""A step of the warm-up over the usual one."""

MIN_DECAY = 2.0
"""Excess of the first step over that of the last step of the warm-up: what stays equally slow is no warm-up."""

MIN_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Steps ``first`` to ``last``; ``usual_ms`` is the median step after them."""

    first: int
    last: int
    ratio: float
    usual_ms: float
    lost_share: float


def find_warm_up(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """One finding of the job at most; none where only later steps were asked for."""
    rows = store.query(_steps_sql(attempt), attempt=attempt)
    steps = rows["step"].to_numpy().astype(np.int64)
    found = warm_up(steps, rows["ms"].to_numpy(zero_copy_only=False).astype(float))
    if found is None or (seen.asked is not None and seen.asked[0] > found.first):
        return Findings()
    return Findings(culprits=(_culprit(store, attempt, found),))


def warm_up(steps: IntArray, step_ms: FloatArray) -> WarmUp | None:
    """The warm-up of steps [S] with their times [S]; None where it is short, cheap, or no warm-up at all."""
    known = np.isfinite(step_ms)
    steps, step_ms = steps[known], step_ms[known]
    if len(steps) < 4 * MIN_STEPS:
        return None
    usual = float(np.median(step_ms[len(steps) // 4 :]))
    usual_again = step_ms <= MIN_RATIO * usual
    count = int(np.argmax(usual_again)) if usual_again.any() else len(steps)
    if not MIN_STEPS <= count <= len(steps) // 4:
        return None
    excess = step_ms[:count] - usual
    lost = float(excess.sum() / step_ms.sum())
    if lost < MIN_SHARE or excess[0] < MIN_DECAY * excess[-1]:
        return None
    ratio = float(step_ms[:count].mean()) / usual
    return WarmUp(int(steps[0]), int(steps[count - 1]), ratio, usual, round(lost, 6))


def _steps_sql(attempt: Attempt) -> str:
    """The median rank's time of every step; of a fleet, of its first block of ranks: all meet in every step."""
    return (
        f"SELECT step, median(duration_ns) / 1e6 AS ms FROM steps WHERE run = {literal(attempt.run)} "
        f"AND attempt = {attempt.attempt} AND rank < {RANKS_PER_BLOCK} AND duration_ns IS NOT NULL "
        f"GROUP BY step ORDER BY step"
    )


def _culprit(store: Store, attempt: Attempt, found: WarmUp) -> Culprit:
    sql = f"SELECT avg(ms) FROM ({_steps_sql(attempt)}) WHERE step BETWEEN {found.first} AND {found.last}"
    own = ask(store, sql, attempt)
    statement = f"steps {found.first} to {found.last} take {own:.1f} ms on average, the median step after them "
    statement += f"{found.usual_ms:.1f} ms"
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=0.9,
        severity=severity(found.lost_share),
        kind=CulpritKind.JOB,
        cause=Cause.WARM_UP,
        segment="step",
        ratio=round(found.ratio, 4),
        steps=(found.first, found.last),
        pattern=Pattern.ONE_OFF,
        lost_share=found.lost_share,
        evidence=(Evidence(statement, own, round(found.usual_ms, 6), "steps", sql),),
    )
