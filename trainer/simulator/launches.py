"""When hosts that run ahead issued the work of a job that runs on: ``enqueue_ns`` of its spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .effects import BoolArray, IntArray
from .hangs.ahead import LAUNCH_NS, Lead
from .hangs.program import Call, Op, Shape, step_calls
from .job import SimulatedJob
from .spans import Spans

NOT_ISSUED = -1
"""In place of a moment: what runs on the host itself, and what is in no stage's program."""

Key = tuple[str, int | None, int | None, str | None]


def issue_order(job: SimulatedJob, stage: int, slots: Sequence[tuple[Spans, int]]) -> tuple[IntArray, list[Call]]:
    """The place of each slot (a segment's spans and the number of the repetition) in the program of a stage's step,
    [slots], or NOT_ISSUED; and that program."""
    shape = Shape(job.grid.width, job.world_size, job.costs.tp_pairs)
    calls = step_calls(job.schedule, stage, shape, 0)
    places: dict[Key, list[int]] = defaultdict(list)
    for at, call in enumerate(calls):
        places[call.name, call.microbatch, call.chunk, call.parent].append(at)
    alike: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for slot, (spans, repeat) in enumerate(slots):
        numbering = spans.numbering
        number = 0 if numbering is None else numbering.place + repeat * numbering.stride
        parent = spans.parent if spans.group == "tp" else None
        alike[spans.segment, spans.microbatch, spans.chunk, parent].append((number, slot))
    order = np.full(len(slots), NOT_ISSUED, np.int64)
    for key, own in alike.items():
        for (_, slot), at in zip(sorted(own), places.get(key, ()), strict=False):
            order[slot] = at
    return order, calls


def enqueued(
    job: SimulatedJob, stage: int, slots: Sequence[tuple[Spans, int]], start: IntArray, end: IntArray,
    present: BoolArray, lead: Lead,
) -> IntArray:  # fmt: skip
    """When the host issued what stands in each slot, [S, n, slots] like ``start`` and ``end``, nanoseconds; what is not
    ``present`` counts as done with the call before it. NOT_ISSUED where no host ran ahead of it."""
    order, calls = issue_order(job, stage, slots)
    begin, done = (np.full((*start.shape[:2], len(calls)), NOT_ISSUED, np.int64) for _ in range(2))
    known = np.flatnonzero(order >= 0)
    for values, own in ((begin, start), (done, end)):
        values[..., order[known]] = np.where(present[..., known], own[..., known], NOT_ISSUED)
        for at in range(1, len(calls)):
            values[..., at] = np.where(values[..., at] == NOT_ISSUED, values[..., at - 1], values[..., at])
    issued = launches(calls, begin, done, lead)
    result = np.full_like(start, NOT_ISSUED)
    result[..., known] = issued[..., order[known]]
    return result


def launches(calls: Sequence[Call], begin: IntArray, end: IntArray, lead: Lead) -> IntArray:
    """When a host issues each call of some steps in a row, [S, n, calls] like ``begin`` and ``end``: when the device
    does them, nanoseconds.

    It goes on from call to call until ``lead.in_flight`` operations are under way, or it needs a result; never later
    than the device begins, and one after the other. `hangs.ahead.issue_times` is the same for the step of a hang.
    """
    steps, ranks, _ = begin.shape
    held = lead.barriers([*calls, *calls])[len(calls) :]
    operations: list[npt.NDArray[np.int64]] = []  # when each is done, [n]
    issued = np.empty_like(begin)
    last = np.full(ranks, np.iinfo(np.int64).min // 2)
    for step in range(steps):
        for at, call in enumerate(calls):
            earliest = last + LAUNCH_NS
            if held[at]:
                earliest = np.maximum(earliest, begin[step, :, at])
            if len(operations) >= lead.in_flight:
                earliest = np.maximum(earliest, operations[-lead.in_flight])
            elif step == 0:  # how far it was ahead before is not known
                earliest = begin[step, :, at]
            last = np.minimum(earliest, begin[step, :, at])
            issued[step, :, at] = last
            if call.op != Op.WORK:
                operations.append(end[step, :, at])
    for step, at in ((step, at) for step in reversed(range(steps)) for at in reversed(range(len(calls)))):
        if at + 1 < len(calls):
            issued[step, :, at] = np.minimum(issued[step, :, at], issued[step, :, at + 1] - 1)
        elif step + 1 < steps:
            issued[step, :, at] = np.minimum(issued[step, :, at], issued[step + 1, :, 0] - 1)
    return issued
