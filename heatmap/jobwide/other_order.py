"""Forwards and backwards that run in another order than the scheduled one, and since which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ..asking import ask
from ..detect import BoolArray
from ..observations import Observations
from ..peers import IntArray
from ..verdict import Evidence
from .actions import StageActions, action_name, observed_actions, place_sql
from .barrier_signs import MIN_ALIKE, Barrier, edge_of, longest_stretch, pattern_of


def other_order(store: Store, attempt: Attempt, seen: Observations, stages: Sequence[StageActions]) -> Barrier | None:
    """The stage that takes its actions in another order for the longest time; None where none does.

    ``stages`` hold a sample of the steps; where the order changed between two of these, it is looked for.
    """
    best: tuple[int, int, StageActions] | None = None
    for one in stages:
        stretch = longest_stretch(_differs(one))
        if stretch is not None and (best is None or stretch[1] - stretch[0] > best[1] - best[0]):
            best = *stretch, one
    if best is None:
        return None
    first, last, stage = best
    steps = _dated(store, attempt, seen, stage, first, last)
    inside = replace(stage, steps=stage.steps[first : last + 1], order=stage.order[:, first : last + 1])
    known = np.isfinite(inside.order).all(axis=2)
    usual = np.median(inside.order[known], axis=0)
    at = int(np.argmax(np.abs(usual - np.arange(len(usual)))))
    sql = place_sql(attempt, inside, at)
    ran = ask(store, sql, attempt)
    if ran is None:
        return None
    share = float((inside.order != np.arange(len(inside.keys))).any(axis=2)[known].mean())
    is_last = last + 1 == len(stage.steps)
    since = f" from step {steps[0]} on" if is_last else f" in steps {steps[0]} to {steps[1]}"
    since = "" if is_last and first == 0 else since
    statement = (
        f"stage {stage.stage} runs {action_name(stage.keys[at])} as number {ran:.1f} of its step{since}, the schedule "
        f"has it as number {at + 1}; {share:.0%} of the ranks and steps looked at take another order than the "
        f"scheduled one"
    )
    evidence = Evidence(statement, ran, float(at + 1), "events", sql)
    pattern = pattern_of(last, len(stage.steps))
    return Barrier(stage.keys[at][0], 0.0, 0.0, 0.9, steps, pattern, (evidence,))


def _differs(one: StageActions) -> BoolArray:
    """By step looked at, whether nearly all ranks take another order, [S]; a step of which nothing is known is none."""
    known = np.isfinite(one.order).all(axis=2)
    other = (one.order != np.arange(len(one.keys))).any(axis=2) & known
    result: BoolArray = other.sum(axis=0) >= MIN_ALIKE * np.maximum(known.sum(axis=0), 1)
    return result


def _dated(
    store: Store, attempt: Attempt, seen: Observations, stage: StageActions, first: int, last: int
) -> tuple[int, int]:
    """First and last step of the other order, of columns ``first`` to ``last`` of those looked at."""

    def looks(steps: IntArray) -> BoolArray:
        found = observed_actions(store, attempt, seen, {stage.stage: list(stage.keys)}, steps)
        shows = dict(zip(found[0].steps.tolist(), _differs(found[0]).tolist(), strict=True)) if found else {}
        return np.array([shows.get(step, False) for step in steps.tolist()], bool)

    begin, end = int(stage.steps[first]), int(stage.steps[last])
    if first > 0:
        between = seen.steps[(seen.steps > stage.steps[first - 1]) & (seen.steps < begin)]
        begin = edge_of(looks, between, is_start=True) or begin
    if last + 1 < len(stage.steps):
        between = seen.steps[(seen.steps > end) & (seen.steps < stage.steps[last + 1])]
        end = edge_of(looks, between, is_start=False) or end
    return begin, end
