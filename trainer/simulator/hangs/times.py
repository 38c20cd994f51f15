"""When each call of a program would begin in a job that runs on: one pipeline, walked with a clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....profiler.vocabulary import SegmentKind
from ...schedule import virtual_stage
from ..costs import Costs
from ..effects import IntArray
from .program import Call, Op

LEAST_NS = 20_000.0
"""No call takes less, so that the order of calls shows in their times."""


def begin_times(programs: Sequence[Sequence[Call]], costs: Costs) -> IntArray:
    """Nanoseconds from the begin of the first step to that of each call, [P, N + 1]: the last one is the program's end.

    All stages of one pipeline, in programs that can run; padded with the end.
    """
    stages = len(programs)
    times = [[0.0] * (len(calls) + 1) for calls in programs]
    at, clock = [0] * stages, [0.0] * stages
    sent: dict[tuple[int, int, int], float] = {}  # (class of the receive, stage, number) -> when it arrives
    numbers: dict[tuple[int, int], int] = {}
    moved = True
    while moved:
        moved = _pass_world(programs, at, clock, times, costs)
        for stage, calls in enumerate(programs):
            while at[stage] < len(calls) and calls[at[stage]].op != Op.WORLD:
                call, number = calls[at[stage]], numbers.get((stage, calls[at[stage]].op), 0)
                arrival = sent.get((call.op, stage, number))
                if _is_receive(call) and arrival is None:
                    break
                clock[stage] = max(clock[stage], arrival or 0.0)
                times[stage][at[stage]] = clock[stage]
                clock[stage] += duration_ns(call, stage, stages, costs)
                if call.kind is SegmentKind.P2P and not _is_receive(call):
                    sent[call.op + 1, _receiver(call.op, stage, stages), number] = clock[stage] + costs.p2p_network_ns
                numbers[stage, call.op] = number + 1
                at[stage] += 1
                moved = True
    longest = max(len(calls) for calls in programs) + 1
    result = np.zeros((stages, longest), np.int64)
    for stage, own in enumerate(times):
        result[stage, : len(own)] = np.round(own)
        result[stage, len(own) - 1 :] = round(clock[stage])
    return result


def _pass_world(
    programs: Sequence[Sequence[Call]], at: list[int], clock: list[float], times: list[list[float]], costs: Costs
) -> bool:
    """Let all stages through a collective of the whole job, once all have come to it."""
    if not all(here < len(calls) and calls[here].op == Op.WORLD for here, calls in zip(at, programs, strict=True)):
        return False
    for stage, here in enumerate(at):
        times[stage][here] = clock[stage]
    end = max(clock) + max(costs.norm_ns, LEAST_NS)
    for stage in range(len(at)):
        clock[stage] = end
        at[stage] += 1
    return True


def _is_receive(call: Call) -> bool:
    return call.kind is SegmentKind.P2P and (call.op - 3) % 2 == 1


def _receiver(op: int, stage: int, stages: int) -> int:
    edge = (op - 3) // 2
    return (stage + (1 if edge % 2 == 0 else -1)) % stages


def duration_ns(call: Call, stage: int, stages: int, costs: Costs) -> float:
    """What a call takes by itself: work without what it encloses, an operation without waiting."""
    virtual = virtual_stage(stage, call.chunk or 0, stages)
    known = {
        "forward": lambda: costs.forward(virtual),
        "backward": lambda: costs.backward(virtual),
        "optimizer": lambda: costs.optimizer_ns,
        "data": lambda: costs.data_ns,
        "checkpoint": lambda: costs.checkpoint_ns,
        "dp_reduce_scatter": lambda: costs.reduce_scatter_ns,
        "dp_all_gather": lambda: costs.all_gather_ns,
    }
    taken = known[call.name]() if call.name in known else costs.tp_ns if call.op == Op.TP else 0.0
    return max(taken, LEAST_NS)
