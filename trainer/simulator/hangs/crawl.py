"""A job that crawls: one rank works many times slower than it did, and all others wait for it most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....profiler.errors import UsageError
from ...schedule import virtual_stage
from ..costs import Costs
from ..effects import IntArray
from ..faults import Fault
from ..job import SimulatedJob
from .program import Call, Op
from .times import LEAST_NS, begin_times, duration_ns

Programs = list[list[Call]]


def crawl(job: SimulatedJob, fault: Fault, base: Programs) -> tuple[Programs, IntArray, IntArray]:
    """Programs, when their calls begin [programs, N + 1], and who runs which [P, T, G], of a job with a slow rank.

    The slow rank's pipeline keeps its pace; its tensor-parallel peers do their own work at the usual one and wait in
    the collective after it; other replicas run at the usual pace up to the gradients, where they wait. One program
    for each stage of the slow pipeline, one for each of the others, and one for the peers.
    """
    assert fault.factor is not None
    grid, stages = job.grid, job.grid.stages
    if len(fault.ranks) != 1:
        raise UsageError(f"The fault {fault.text!r} names several ranks: name one.")
    [rank] = fault.ranks
    stage, tp, replica = int(grid.stage[rank]), int(grid.tp[rank]), int(grid.replica[rank])
    slow = begin_times(base, _slowed(job.costs, stage, stages, job.chunks, fault.factor))
    fast = begin_times(base, job.costs)
    others = [_coupled(calls, slow[row], fast[row]) for row, calls in enumerate(base)]
    times = np.stack([*slow, *others, _peers(base[stage], stage, stages, slow[stage], job.costs)])
    which = np.broadcast_to(stages + np.arange(stages)[:, None, None], grid.rank.shape).copy()
    which[:, :, replica] = np.arange(stages)[:, None]
    which[stage, :, replica] = 2 * stages
    which[stage, tp, replica] = stage
    return [*base, *base, base[stage]], times, which


def _slowed(costs: Costs, stage: int, stages: int, chunks: int, factor: float) -> Costs:
    """Costs in which the compute of one stage takes ``factor`` times as long."""
    virtual = range(stages * chunks)
    slow = {virtual_stage(stage, chunk, stages) for chunk in range(chunks)}
    forward = tuple(costs.forward(one) * (factor if one in slow else 1) for one in virtual)
    backward = tuple(costs.backward(one) * (factor if one in slow else 1) for one in virtual)
    return replace(costs, forward_ns=forward, backward_ns=backward)


def _coupled(calls: Sequence[Call], slow: IntArray, fast: IntArray) -> IntArray:
    """Times of a replica that runs at its own pace from each step's begin up to its first collective with the slow
    one, begins that one early, and is held to the slow one's times from there on."""
    times, first, is_free = slow.copy(), 0, True
    for at, call in enumerate(calls):
        if at == 0 or call.step != calls[at - 1].step:
            first, is_free = at, True
        if is_free:
            times[at] = min(int(slow[first] + fast[at] - fast[first]), int(slow[at]))
        if call.op in (Op.DP, Op.WORLD) and call.name != "dp_all_gather":
            is_free = False
    return times


def _peers(calls: Sequence[Call], stage: int, stages: int, slow: IntArray, costs: Costs) -> IntArray:
    """Times of the slow rank's tensor-parallel peers: as its own, but for the collective after each piece of work."""
    times = slow.copy()
    for at in range(1, len(calls)):
        if calls[at].op == Op.TP and calls[at - 1].op == Op.WORK:
            taken = max(duration_ns(calls[at - 1], stage, stages, costs), LEAST_NS)
            times[at] = min(int(slow[at - 1] + taken), int(slow[at]))
    return times
