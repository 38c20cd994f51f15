"""A barrier that crept in: the observed order against the schedule, collectives it does not have, and common starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ..asking import ask
from ..observations import Observations
from ..peers import column_median
from ..source import Source
from ..synchrony import fit_slope
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .actions import COMPUTE, Key, StageActions, action_name, idle_sql, observed_actions, place_sql, scheduled_compute
from .stretch import steps_of

SIGNAL = "barrier"

MIN_SHARE = 0.02
"""Share of the step's time that is lost."""

MIN_OTHER_ORDER = 0.8
"""Share of ranks and steps that take the actions in another order than the scheduled one."""

MAX_SLOPE = -0.9
MIN_EXPLAINED = 0.8
"""Of idle time on lateness: who is ready later waits less, by as much, where all are held until the last one."""

MIN_REPLICAS = 3

WITHIN_ONE_LAYER = ("tp", "cp", "ep", "pp")
"""Axes of collectives that belong to a layer or a stage: the schedule of actions does not list those."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """What holds all back: words, the place in the schedule, share of the time lost, and evidence."""

    segment: str
    lost_share: float
    confidence: float
    evidence: tuple[Evidence, ...]


def find_barrier(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """One finding of the job for each way in which the ranks wait for what the schedule does not ask for."""
    scheduled = scheduled_compute(store, attempt)
    if not scheduled or not seen.cells:
        return Findings()
    if seen.source.source == Source.ROLLUPS:
        reason = "the order of actions was not held against the schedule: that takes spans, and rollups were read"
        return Findings(abstained=(Abstention(SIGNAL, reason),))
    stages = observed_actions(store, attempt, seen, scheduled)
    found = [_other_order(store, attempt, stages), _extra_collective(store, attempt, seen)]
    found.append(_common_starts(store, attempt, seen, stages))
    culprits = tuple(_culprit(one, seen) for one in found if one is not None)
    return Findings(culprits=culprits, abstained=tuple(_no_clocks(stages)))


def _no_clocks(stages: Sequence[StageActions]) -> list[Abstention]:
    if not stages or all(np.isfinite(one.uncertainty_ms) for one in stages):
        return []
    reason = "whether ranks of several hosts begin at the same moment cannot be told: their clocks are not aligned"
    return [Abstention(SIGNAL, reason)]


def _other_order(store: Store, attempt: Attempt, stages: Sequence[StageActions]) -> Barrier | None:
    """Stages that take their forwards and backwards in another order than the scheduled one."""
    worst: tuple[float, StageActions] | None = None
    for one in stages:
        known = np.isfinite(one.order).all(axis=2)
        other = (one.order != np.arange(len(one.keys))).any(axis=2)[known]
        if known.any() and float(other.mean()) >= MIN_OTHER_ORDER and (worst is None or other.mean() > worst[0]):
            worst = float(other.mean()), one
    if worst is None:
        return None
    share, stage = worst
    usual = np.median(stage.order[np.isfinite(stage.order).all(axis=2)], axis=0)
    at = int(np.argmax(np.abs(usual - np.arange(len(usual)))))
    sql = place_sql(attempt, stage, at)
    ran = ask(store, sql, attempt)
    if ran is None:
        return None
    statement = (
        f"stage {stage.stage} runs {action_name(stage.keys[at])} as number {ran:.1f} of its step, the schedule has it "
        f"as number {at + 1}; {share:.0%} of the ranks and steps looked at take another order than the scheduled one"
    )
    evidence = Evidence(statement, ran, float(at + 1), "events", sql)
    return Barrier(stage.keys[at][0], 0.0, 0.9, (evidence,))


def _extra_collective(store: Store, attempt: Attempt, seen: Observations) -> Barrier | None:
    """A collective between the first and the last compute of a step which the schedule does not have."""
    sql = _collectives_sql(attempt, seen)
    rows = store.query(f"{sql} ORDER BY waited_ms DESC LIMIT 1", attempt=attempt).to_pylist()
    usual = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else np.nan
    if not rows or not usual > 0:
        return None
    row = rows[0]
    lost, alike = float(row["waited_ms"]) / usual, int(row["ranks"]) / len(seen.ranks)
    if not (lost >= MIN_SHARE and alike >= MIN_OTHER_ORDER):
        return None
    name = str(row["name"])
    statement = (
        f"{name} runs {row['often']:.1f} times a step between forwards and backwards, where the schedule has no such "
        f"collective; the median rank waits {row['waited_ms']:.2f} ms a step for it"
    )
    one = f"SELECT waited_ms FROM ({sql}) WHERE name = {literal(name)}"
    evidence = Evidence(statement, ask(store, one, attempt), None, "events", one)
    return Barrier(name, round(min(lost, 1.0), 6), 0.95, (evidence,))


def _collectives_sql(attempt: Attempt, seen: Observations) -> str:
    """Name, ranks, times a step and median wait a step of collectives inside the compute of a step.

    Where no wait was recorded, one that overlaps with the rank's own compute is taken as not waited for.
    """
    first, last = int(seen.steps[0]), int(seen.steps[-1])
    layers = ", ".join(literal(axis) for axis in WITHIN_ONE_LAYER)
    when = f"x.run = {literal(attempt.run)} AND x.attempt = {attempt.attempt} AND x.step BETWEEN {first} AND {last}"
    joined = "FROM events x JOIN segments s USING (run, attempt, segment)"
    columns = "x.rank, x.step, x.start_ns, x.start_ns + x.duration_ns AS end_ns"
    return f"""
        WITH works AS (SELECT {columns} {joined} WHERE {when} AND s.kind = 'compute' AND s.name IN {COMPUTE}),
        calls AS (SELECT {columns}, s.name, x.exposed_ns {joined}
                  WHERE {when} AND s.kind = 'collective' AND coalesce(s.axis, '') NOT IN ({layers})
                      AND NOT contains(s.name, 'reduce_scatter') AND NOT contains(s.name, 'all_gather')),
        inside AS (SELECT c.* FROM calls c JOIN (SELECT rank, step, min(start_ns) AS first_ns, max(start_ns) AS last_ns
                                                 FROM works GROUP BY rank, step) w
                   ON w.rank = c.rank AND w.step = c.step AND c.start_ns > w.first_ns AND c.end_ns <= w.last_ns),
        waits AS (SELECT c.rank, c.step, c.name, coalesce(any_value(c.exposed_ns),
                      CASE count(w.rank) WHEN 0 THEN c.end_ns - c.start_ns ELSE 0 END) AS waited_ns
                  FROM inside c LEFT JOIN works w ON w.rank = c.rank AND w.step = c.step
                      AND w.start_ns < c.end_ns AND w.end_ns > c.start_ns
                  GROUP BY c.rank, c.step, c.name, c.start_ns, c.end_ns)
        SELECT name, count(DISTINCT rank) AS ranks, median(often) AS often, median(waited_ms) AS waited_ms FROM (
            SELECT rank, step, name, count(*) AS often, sum(waited_ns) / 1e6 AS waited_ms
            FROM waits GROUP BY rank, step, name) GROUP BY name"""


def _common_starts(
    store: Store, attempt: Attempt, seen: Observations, stages: Sequence[StageActions]
) -> Barrier | None:
    """Actions that all replicas begin together, however early each was ready for it, with nothing recorded between."""
    usual = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else np.nan
    best: tuple[float, list[int], StageActions] | None = None
    for one in stages:
        if len(one.ranks) < MIN_REPLICAS or not np.isfinite(one.uncertainty_ms):
            continue
        least = MIN_SHARE / len(one.keys)
        costly = (at for at in range(1, len(one.keys)) if _mean_idle(one, at) >= least * usual)
        places = [at for at in costly if not _opens_chunk(one.keys, at) and _is_held(one, at)]
        idle = sum(_mean_idle(one, at) for at in places)
        if places and (best is None or idle > best[0]):
            best = idle, places, one
    if best is None or not usual > 0 or best[0] / usual < MIN_SHARE:
        return None
    idle, places, stage = best
    widest = max(places, key=lambda at: _mean_idle(stage, at))
    sql = idle_sql(attempt, stage, widest)
    own = ask(store, sql, attempt)
    if own is None:
        return None
    statement = (
        f"the replicas of stage {stage.stage} begin {action_name(stage.keys[widest])} at the same moment, though they "
        f"were ready at different ones and nothing that was recorded keeps them: {own:.2f} ms of a step are idle there "
        f"on average, {idle:.2f} ms at the {len(places)} such places"
    )
    evidence = Evidence(statement, own, 0.0, "events", sql)
    return Barrier(stage.keys[widest][0], round(min(idle / usual, 1.0), 6), 0.8, (evidence,))


def _mean_idle(one: StageActions, at: int) -> float:
    """Mean idle time before an action in ms; 0 where it is not known."""
    known = one.idle_ms[:, :, at][np.isfinite(one.idle_ms[:, :, at])]
    return float(known.mean()) if len(known) else 0.0


def _opens_chunk(keys: Sequence[Key], at: int) -> bool:
    """Whether an action is the first forward of its chunk, which waits for its weights."""
    return all(key[1] != keys[at][1] for key in keys[:at])


def _is_held(one: StageActions, at: int) -> bool:
    """Whether idle time before an action falls with how late a rank was ready, by as much."""
    idle = one.idle_ms[:, :, at]
    ready = one.start_ms[:, :, at] - idle
    late, short = (values - column_median(values) for values in (_known(ready), _known(idle)))
    if not np.isfinite(late).any() or float(np.nanstd(late)) <= 2 * one.uncertainty_ms:
        return False
    slope = fit_slope(late, short)
    return slope is not None and slope.value <= MAX_SLOPE and slope.explained >= MIN_EXPLAINED


def _known(values: np.ndarray) -> np.ndarray:
    """Columns in which every rank is known; the others are taken out."""
    return values[:, np.isfinite(values).all(axis=0)]


def _culprit(one: Barrier, seen: Observations) -> Culprit:
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=one.confidence,
        severity=severity(one.lost_share),
        kind=CulpritKind.JOB,
        cause=Cause.BARRIER,
        segment=one.segment,
        ratio=round(1 / max(1 - one.lost_share, 1e-3), 4),
        steps=steps_of(0, len(seen.steps) - 1, seen),
        pattern=Pattern.CHRONIC,
        lost_share=one.lost_share,
        evidence=one.evidence,
    )
