"""How long a schedule takes with given costs, and the share of it in which stages stand idle: the pipeline's bubble."""

from __future__ import annotations

from collections.abc import Mapping

from ..profiler.vocabulary import ActionKind
from .schedule import COMPUTE, Schedule, walk


def step_time(schedule: Schedule, costs: Mapping[ActionKind, float]) -> float:
    """Time from the first action's begin to the last one's end, each stage strictly in its order.

    ``costs`` is the time that an action of a kind takes; none for those that it does not name. Raises ValueError where
    the schedule deadlocks.
    """
    ended = [[0.0] * len(actions) for actions in schedule]
    for stage, position in walk(schedule):
        action = schedule[stage][position]
        ready = max((ended[other][place] for other, place in action.depends_on), default=0.0)
        free = ended[stage][position - 1] if position else 0.0
        ended[stage][position] = max(ready, free) + costs.get(action.kind, 0.0)
    return max(times[-1] for times in ended)


def bubble(schedule: Schedule, costs: Mapping[ActionKind, float]) -> float:
    """Idle time of a step over the time that a stage computes, the mean of all stages; transfers count as idle."""
    busy = [sum(costs[action.kind] for action in actions if action.kind in COMPUTE) for actions in schedule]
    return step_time(schedule, costs) * len(schedule) / sum(busy) - 1


def ideal_bubble(stages: int, chunks: int, microbatches: int) -> float:
    """(p - 1) / (v m), of the time that a stage computes: with free transfers and stages of equal work.

    Narayanan et al. 2021, section 2.2: the same for GPipe and 1F1B; v chunks on a stage divide it.
    """
    return (stages - 1) / (chunks * microbatches)
