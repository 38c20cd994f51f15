"""The numbers behind what is said of a stage or of the whole job, each asked from the store by SQL."""

from __future__ import annotations

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import identifier, literal
from ...collectors.verdicts import Evidence
from ..asking import ask
from ..detect import BoolArray
from ..observations import Observations
from ..peers import STAGE_AXIS
from ..source import Source
from .replicas import ReplicaWork


def table_of(seen: Observations) -> str:
    """The table that the observations were taken from."""
    return "rank_windows" if seen.source.source == Source.ROLLUPS else "events"


def work_sql(attempt: Attempt, seen: Observations, steps: tuple[int, int], condition: str) -> str:
    """Own time per step in milliseconds, ``ms``, by rank and step (or window) of the segments that meet a condition.

    It may speak of the segment ``s`` and of the rank's place ``r``.
    """
    first, last = steps
    attempt_is = f"x.run = {literal(attempt.run)} AND x.attempt = {attempt.attempt}"
    joined = "JOIN segments s USING (run, attempt, segment) LEFT JOIN ranks r USING (run, attempt, rank)"
    if seen.source.source != Source.ROLLUPS:
        return (
            f"SELECT x.rank, x.step, sum(x.self_ns) / 1e6 AS ms FROM events x {joined} WHERE {attempt_is} "
            f"AND x.status = 'ok' AND x.step BETWEEN {first} AND {last} AND {condition} GROUP BY x.rank, x.step"
        )
    width = seen.source.step_width
    in_window = f"least({width}, {last} - x.first_step + 1)"  # the last window may not be complete yet
    return (
        f"SELECT x.rank, x.first_step, sum(x.self_sum_ns) / {in_window} / 1e6 AS ms FROM rank_windows x {joined} "
        f"WHERE {attempt_is} AND x.window_steps = {width} AND x.first_step BETWEEN {first} AND {last} "
        f"AND {condition} GROUP BY x.rank, x.first_step"
    )


def stage_evidence(
    store: Store, attempt: Attempt, seen: Observations, stage: int, steps: tuple[int, int]
) -> tuple[Evidence, ...]:
    """Compute of the stage's median rank beside the other stages', and of its fastest rank beside their slowest."""
    axis = f"r.{identifier(seen.placement.stage_axis or STAGE_AXIS)}"
    result = []
    for own_of, others_of, text in (
        ("median", "median", "the median rank of stage {stage} computes {own:.2f} ms a step, that of the other stages "
                             "{others:.2f} ms"),
        ("min", "max", "even the fastest rank of stage {stage} computes {own:.2f} ms a step, the slowest of the others "
                       "{others:.2f} ms"),
    ):  # fmt: skip

        def sql(condition: str, pick: str) -> str:
            work = work_sql(attempt, seen, steps, f"s.kind = 'compute' AND {condition}")
            return f"SELECT {pick}(ms) FROM (SELECT rank, median(ms) AS ms FROM ({work}) GROUP BY rank)"

        own = ask(store, sql(f"{axis} = {stage}", own_of), attempt)
        others = ask(store, sql(f"{axis} <> {stage}", others_of), attempt)
        if own is not None and others is not None and (own_of == "median" or own > others):
            statement = text.format(stage=stage, own=own, others=others)
            result.append(Evidence(statement, own, others, table_of(seen), sql(f"{axis} = {stage}", own_of)))
    return tuple(result)


def total_sql(attempt: Attempt, seen: Observations, steps: tuple[int, int], condition: str) -> str:
    """Own time in milliseconds, ``ms``, by rank, over all the steps; the condition as in `work_sql`."""
    table, own, when = "events", "self_ns", f"x.status = 'ok' AND x.step BETWEEN {steps[0]} AND {steps[1]}"
    if seen.source.source == Source.ROLLUPS:
        table, own = "rank_windows", "self_sum_ns"
        when = f"x.window_steps = {seen.source.step_width} AND x.first_step BETWEEN {steps[0]} AND {steps[1]}"
    return (
        f"SELECT x.rank, sum(x.{own}) / 1e6 AS ms FROM {table} x JOIN segments s USING (run, attempt, segment) "
        f"LEFT JOIN ranks r USING (run, attempt, rank) WHERE x.run = {literal(attempt.run)} "
        f"AND x.attempt = {attempt.attempt} AND {when} AND {condition} GROUP BY x.rank"
    )


def replica_evidence(
    store: Store, attempt: Attempt, seen: Observations, work: ReplicaWork, where: tuple[int, int], remark: str
) -> tuple[Evidence, ...]:
    """The replica and the column (positions) where it stands out most: each of its stages beside the same stages of
    the other replicas. ``remark`` ends each statement."""
    replica, column = where
    numbers = np.unique(work.replica[(work.replica >= 0) & (work.stage >= 0)])
    members = work.replica == numbers[replica]
    first = int(seen.steps[column])
    steps = first, first + seen.source.step_width - 1
    text = f"step {first}" if seen.source.step_width == 1 else f"steps {steps[0]} to {steps[1]}"
    result = []
    for stage in np.unique(work.stage[members])[:MOST_STAGES].tolist():

        def sql(rows: BoolArray) -> str:
            ranks = ", ".join(str(int(rank)) for rank in seen.ranks[rows])
            inner = work_sql(attempt, seen, steps, f"s.kind = 'compute' AND x.rank IN ({ranks})")
            return f"SELECT median(ms) FROM ({inner})"

        here, others = members & (work.stage == stage), ~members & (work.stage == stage)
        own, peers = ask(store, sql(here), attempt), ask(store, sql(others), attempt)
        if own is None or peers is None:
            continue
        rank = int(seen.ranks[here][0])
        statement = (
            f"in {text} the replica of rank {rank} computes {own:.2f} ms a step on stage {stage}, the other replicas "
            f"{peers:.2f} ms there; {remark}"
        )
        result.append(Evidence(statement, own, peers, table_of(seen), sql(here)))
    return tuple(result)


MOST_STAGES = 2
"""Stages that are shown: two on different machines that agree are the point."""
