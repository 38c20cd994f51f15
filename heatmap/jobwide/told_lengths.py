"""Ranks that were given unequally many tokens, by what they tell: what that costs a job without pipeline stages."""

from __future__ import annotations

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Evidence
from ..asking import ask
from ..observations import Observations
from ..peers import column_median
from ..verdict import Cause, Culprit, CulpritKind, Pattern, severity
from .stretch import steps_of
from .work import compute_cells, work_ms

MIN_SHARE = 0.02
"""Share of the job's time from which on it is told."""

CONFIDENCE = 0.95
"""The tokens are told; that time goes with them is seen."""


def find_told_lengths(store: Store, attempt: Attempt, seen: Observations) -> Culprit | None:
    """The finding of the job, which names no rank; None where that costs little.

    All ranks meet at the end of a step, so it lasts as long as the one with the most tokens: (most / mean - 1) of the
    median rank's compute is lost. Never more than the longest compute would be shorter by if each rank's took for the
    mean number of tokens what it took for its own: with a slow rank it may be as long, or longer.
    """
    if seen.tokens is None or not seen.tokens.varies.any():
        return None
    rows = np.flatnonzero(seen.tokens.varies)
    each = seen.tokens.each[rows]
    known = np.flatnonzero(np.isfinite(each).sum(axis=0) > 1)
    total = float(np.nansum(seen.step_ms))
    if not len(known) or not total > 0:
        return None
    most, mean = np.nanmax(each[:, known], axis=0), np.nanmean(each[:, known], axis=0)
    work = work_ms(seen)[rows][:, known]
    evened = work * np.where(np.isfinite(each[:, known]), mean / each[:, known], 1.0)
    shorter = np.fmax.reduce(work, axis=0) - np.fmax.reduce(evened, axis=0)
    lost_ms = np.nan_to_num(np.clip(shorter, 0.0, column_median(work) * (most / mean - 1)))
    lost = float(np.minimum(lost_ms, np.nan_to_num(seen.step_ms[known])).sum()) / total
    if lost < MIN_SHARE:
        return None
    at = int(known[int(np.argmax(most / mean))])
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=CONFIDENCE,
        severity=severity(lost),
        kind=CulpritKind.JOB,
        cause=Cause.UNEVEN_INPUT,
        segment=max(compute_cells(seen), key=lambda one: float(np.nansum(one.total_ms))).name,
        ratio=round(float(np.mean(most / mean)), 4),
        steps=steps_of(int(known[0]), int(known[-1]), seen),
        pattern=Pattern.CHRONIC,
        lost_share=round(lost, 6),
        evidence=_evidence(store, attempt, seen, int(seen.ranks[rows[int(np.nanargmax(each[:, at]))]]), at),
    )


def _evidence(store: Store, attempt: Attempt, seen: Observations, rank: int, column: int) -> tuple[Evidence, ...]:
    """Tokens of the rank that had the most, in the column in which that stands out most, beside all others'."""
    first, last = steps_of(column, column, seen)

    def sql(who: str) -> str:
        return (
            f"SELECT avg(rank_tokens) FROM steps_all WHERE run = {literal(attempt.run)} "
            f"AND attempt = {attempt.attempt} AND step BETWEEN {first} AND {last} AND {who}"
        )

    own, others = ask(store, sql(f"rank = {rank}"), attempt), ask(store, sql(f"rank <> {rank}"), attempt)
    if own is None or others is None:
        return ()
    when = f"step {first}" if first == last else f"steps {first} to {last}"
    statement = f"in {when} rank {rank} was given {own:.1f} tokens a step, the mean of the others {others:.1f}"
    return (Evidence(statement, own, others, "steps", sql(f"rank = {rank}")),)
