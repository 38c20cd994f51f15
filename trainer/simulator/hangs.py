"""A job that hangs, as a scene: which rank runs which program, who stands where, and when each got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...profiler.vocabulary import SegmentKind
from .effects import IntArray
from .fault_effects import check_fault
from .faults import Fault, FaultKind
from .hang_case import Plan
from .hang_causes import plan_of
from .hang_closure import close
from .hang_program import SETUP, Call, Op, Programs, Shape, step_calls
from .hang_times import begin_times
from .job import SimulatedJob


@dataclass(frozen=True, slots=True)
class Look:
    """Where every rank is at a moment, [P, T, G] each: its program, the call in it, whole steps done before."""

    which: IntArray
    at: IntArray
    steps: IntArray


@dataclass(frozen=True, slots=True)
class HangScene:
    """Who stands where in a job that does not go on (or, without a fault, in one that does).

    ``which`` [P, T, G] is every rank's program, ``at`` [P, T, G] the call in which it ends up; ``begin`` [programs, N]
    when each call begins, nanoseconds after the begin of step ``step``, and ``step_ns`` how long a step takes. Until
    the hang everything runs on time. ``plan`` holds the truth.
    """

    job: SimulatedJob
    fault: Fault | None
    step: int
    programs: Programs
    which: IntArray
    at: IntArray
    begin: IntArray
    step_ns: int
    plan: Plan

    @property
    def is_starting(self) -> bool:
        """Whether the job has not begun its first step."""
        return self.fault is not None and self.fault.kind is FaultKind.INIT

    @property
    def stall_ns(self) -> int:
        """When the last rank has come to a stand, nanoseconds after the begin of the fault's step."""
        return int(self.begin[self.which, self.at].max())

    def look(self, since_ns: int) -> Look:
        """Where the ranks are at a moment, which counts from the begin of the fault's step and may be negative."""
        whole, inside = divmod(since_ns, self.step_ns)
        if self.fault is None or (whole < 0 and not self.is_starting):
            which = np.broadcast_to(np.arange(self.at.shape[0])[:, None, None], self.at.shape)
            last = np.full_like(self.at, self.begin.shape[1])
        else:
            whole, inside, which, last = 0, since_ns, self.which, self.at
        reached = np.stack([np.searchsorted(row, inside, side="right") - 1 for row in self.begin])
        at = np.minimum(np.maximum(reached, 0)[which], last)
        return Look(which, at, np.full(self.at.shape, self.step + whole, np.int64))

    def final(self) -> Look:
        """Where the ranks stand once nothing moves."""
        return Look(self.which, self.at, np.full(self.at.shape, self.step, np.int64))


def hang_scene(job: SimulatedJob, fault: Fault | None, step: int = 0) -> HangScene:
    """The scene of a fault of a kind that hangs a job; of None, that of a healthy job around ``step``.

    Raises UsageError for a fault that the job has no place for.
    """
    if fault is not None:
        check_fault(fault, job)
    base = _base_programs(job, fault)
    stages = len(base)
    times = begin_times(base, job.costs)
    second = [next(i for i, call in enumerate(calls) if call.step == 1) for calls in base]
    step_ns = int(max(times[stage, at] for stage, at in enumerate(second)))
    plan = Plan(truth=()) if fault is None else plan_of(job, fault, base)
    which = np.broadcast_to(np.arange(stages)[:, None, None], job.grid.rank.shape).copy()
    for number, marked in enumerate(plan.runs):
        which[marked] = stages + number
    programs = Programs.of([*base, *plan.programs], job.recv_ahead)
    limit = np.array([len(one) - 1 for one in programs.calls])[which]
    for rank, last in plan.limits.items():
        limit[job.grid.stage[rank], job.grid.tp[rank], job.grid.replica[rank]] = last
    at = close(programs, which, limit, job.grid.dp_size, plan.frozen)
    begin = np.full(programs.op.shape, np.iinfo(np.int64).max // 4)
    for row, stage in enumerate([*range(stages), *plan.stages]):
        own = programs.calls[row]
        begin[row, : len(own)] = _times_of(own, base[stage], times[stage])
    first = fault.first_step if fault is not None else step
    return HangScene(job, fault, first, programs, which, at, begin, step_ns, plan)


def _base_programs(job: SimulatedJob, fault: Fault | None) -> list[list[Call]]:
    """Two steps of every stage; of a job that is still starting, its set-up before them."""
    shape = Shape(
        tp=job.grid.width,
        world=job.world_size,
        layers=job.costs.tp_pairs,
        checkpoint=fault is not None and fault.segment == "checkpoint",
    )
    start = []
    if fault is not None and fault.kind is FaultKind.INIT:
        start = [
            Call(SETUP, SegmentKind.INIT, Op.WORK, 0),
            Call("world_all_reduce", SegmentKind.COLLECTIVE, Op.WORLD, 0, SETUP),
        ]
    return [
        start + [call for number in (0, 1) for call in step_calls(job.schedule, stage, shape, number)]
        for stage in range(job.grid.stages)
    ]


def _times_of(calls: Sequence[Call], base: Sequence[Call], times: IntArray) -> list[int]:
    """When the calls of a variant of a program begin: as in the program itself, but never before the call before."""
    known: dict[tuple[Call, int], int] = {}
    seen: dict[Call, int] = {}
    for at, call in enumerate(base):
        seen[call] = seen.get(call, 0) + 1
        known[call, seen[call]] = int(times[at])
    result: list[int] = []
    seen = {}
    for call in calls:
        seen[call] = seen.get(call, 0) + 1
        before = result[-1] if result else 0
        last = int(times[len(base)]) if call.name == "end" else before
        result.append(max(before, known.get((call, seen[call]), last)))
    return result
