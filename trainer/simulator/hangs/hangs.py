"""A job that hangs, as a scene: which rank runs which program, who stands where, and when each got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....profiler.vocabulary import SegmentKind
from ..effects import IntArray
from ..fault_effects import check_fault
from ..faults import Fault, FaultKind
from ..job import SimulatedJob
from .ahead import IN_STEP, Lead, issue_times, issued
from .case import Plan
from .causes import plan_of
from .closure import close
from .crawl import crawl
from .program import PHASES, SETUP, Call, Op, Programs, Shape, step_calls
from .times import begin_times

APART_NS = 1_000
"""Calls of one rank begin so far apart at least, so that their order shows."""


@dataclass(frozen=True, slots=True)
class Look:
    """Where every rank is at a moment, [P, T, G] each: its program, the calls in it that its device and its host are
    in, whole steps done before; and when its program began, nanoseconds after the begin of the scene's step."""

    which: IntArray
    at: IntArray
    host: IntArray
    steps: IntArray
    origin_ns: IntArray


@dataclass(frozen=True, slots=True)
class HangScene:
    """Who stands where in a job that does not go on (or, without a fault that stops it, in one that does).

    ``which`` [P, T, G] is every rank's program, ``at`` [P, T, G] the call in which its device ends up and ``host``
    [P, T, G] the one that its host does; ``begin`` and ``issue`` [programs, N] when each call begins on the device and
    is issued, nanoseconds after the begin of step ``step``, and ``step_ns`` how long a step takes; programs of a job
    that goes on begin ``before_ns`` earlier, with the step before. ``lead`` is how far hosts may be ahead. Until the
    hang everything runs on time. ``plan`` holds the truth.
    """

    job: SimulatedJob
    fault: Fault | None
    step: int
    programs: Programs
    which: IntArray
    at: IntArray
    host: IntArray
    begin: IntArray
    issue: IntArray
    step_ns: int
    before_ns: int
    lead: Lead
    plan: Plan

    @property
    def is_starting(self) -> bool:
        """Whether the job has not begun its first step."""
        return self.fault is not None and self.fault.kind is FaultKind.INIT

    @property
    def moves(self) -> bool:
        """Whether the job goes on, and only its pace may be another."""
        return _moves(self.fault)

    @property
    def stands_at_ns(self) -> IntArray:
        """When each rank has come to a stand, device and host, nanoseconds after the begin of the fault's step,
        [P, T, G]."""
        return np.maximum(self.begin[self.which, self.at], self.issue[self.which, self.host])

    @property
    def stall_ns(self) -> int:
        """When the last rank has come to a stand, nanoseconds after the begin of the fault's step."""
        return int(self.stands_at_ns.max())

    def look(self, since_ns: int | IntArray) -> Look:
        """Where the ranks are at a moment, which counts from the begin of the fault's step and may be negative; or at
        a moment for each rank, [P, T, G]."""
        since = np.broadcast_to(np.asarray(since_ns, np.int64), self.at.shape)
        runs_on = np.full(since.shape, self.moves) | ((since < 0) & (not self.is_starting))
        whole, inside = np.divmod(since, self.step_ns)
        usual = self.which if self.moves else np.arange(self.at.shape[0])[:, None, None]
        which = np.where(runs_on, usual, self.which)
        inside = np.where(runs_on, inside + self.before_ns, since)
        end = self.begin.shape[1]
        at = np.minimum(self._reached(self.begin, which, inside), np.where(runs_on, end, self.at))
        host = np.minimum(self._reached(self.issue, which, inside), np.where(runs_on, end, self.host))
        steps = self.step + np.where(runs_on, whole - self.moves, 0)
        return Look(which, at, np.maximum(at, host), steps, since - inside)

    @staticmethod
    def _reached(times: IntArray, which: IntArray, moment: IntArray) -> IntArray:
        """The last call of each rank's program that begins no later than its moment, [P, T, G]."""
        result = np.zeros(which.shape, np.int64)
        for row in np.unique(which):
            mine = which == row
            result[mine] = np.maximum(np.searchsorted(times[row], moment[mine], side="right") - 1, 0)
        return result

    def final(self) -> Look:
        """Where the ranks stand once nothing moves."""
        steps = np.full(self.at.shape, self.step, np.int64)
        return Look(self.which, self.at, self.host, steps, np.zeros_like(steps))


def hang_scene(job: SimulatedJob, fault: Fault | None, step: int = 0, lead: Lead = IN_STEP) -> HangScene:
    """The scene of a fault of a kind that hangs a job, or seems to; of None, that of a healthy job around ``step``.

    Raises UsageError for a fault that the job has no place for.
    """
    if fault is not None:
        check_fault(fault, job)
    base = _base_programs(job, fault)
    stages = len(base)
    moves = _moves(fault)
    if fault is not None and moves:
        base, times, which = crawl(job, fault, base)
        plan = Plan(truth=())
    else:
        times = begin_times(base, job.costs)
        plan = Plan(truth=()) if fault is None else plan_of(job, fault, base)
        which = np.broadcast_to(np.arange(stages)[:, None, None], job.grid.rank.shape).copy()
    second_ns, third_ns = (_begin_of(step, base, times) for step in (1, 2))
    for number, marked in enumerate(plan.runs):
        which[marked] = stages + number
    programs = Programs.of([*base, *plan.programs], job.recv_ahead)
    last = np.array([len(one) - 1 for one in programs.calls])[which]
    at = close(programs, which, _limited(job, last, plan.limits), job.grid.dp_size, plan.frozen)
    host = issued(programs, which, at, _limited(job, last, plan.stops), lead)
    begin = np.full(programs.op.shape, np.iinfo(np.int64).max // 4)
    issue = begin.copy()
    for row, origin in enumerate([*range(len(base)), *plan.stages]):
        own, usual = programs.calls[row], base[origin]
        begin[row, : len(own)] = _times_of(own, usual, times[origin].tolist())
        launched = issue_times(usual, times[origin].tolist(), lead)
        issue[row, : len(own)] = _times_of(own, usual, [*launched, int(times[origin][len(usual)])])
    first = fault.first_step if fault is not None else step
    # Of a job that goes on the middle one of three steps is looked at: hosts are ahead in it, and get beyond it.
    step_ns, before_ns = (third_ns - second_ns, second_ns) if moves else (second_ns, 0)
    return HangScene(job, fault, first, programs, which, at, host, begin, issue, step_ns, before_ns, lead, plan)


def _begin_of(step: int, base: Sequence[Sequence[Call]], times: IntArray) -> int:
    """When the last of the programs begins a step."""
    first = (next(i for i, one in enumerate(calls) if one.step == step) for calls in base)
    return int(max(times[row, at] for row, at in enumerate(first)))


def _moves(fault: Fault | None) -> bool:
    return fault is None or fault.kind is FaultKind.CRAWLING


def _limited(job: SimulatedJob, last: IntArray, limits: Mapping[int, int]) -> IntArray:
    """The last calls of all ranks, of some lower."""
    limit, grid = last.copy(), job.grid
    for rank, own in limits.items():
        limit[grid.stage[rank], grid.tp[rank], grid.replica[rank]] = own
    return limit


def _base_programs(job: SimulatedJob, fault: Fault | None) -> list[list[Call]]:
    """Three steps of every stage; of a job that is still starting, its set-up before them."""
    shape = Shape(
        tp=job.grid.width,
        world=job.world_size,
        layers=job.costs.tp_pairs,
        phase=fault.segment if fault is not None and fault.segment in PHASES else None,
    )
    start = []
    if fault is not None and fault.kind is FaultKind.INIT:
        start = [
            Call(SETUP, SegmentKind.INIT, Op.WORK, 0),
            Call("world_all_reduce", SegmentKind.COLLECTIVE, Op.WORLD, 0, SETUP),
        ]
    return [
        start + [call for number in range(3) for call in step_calls(job.schedule, stage, shape, number)]
        for stage in range(job.grid.stages)
    ]


def _times_of(calls: Sequence[Call], base: Sequence[Call], times: Sequence[int]) -> list[int]:
    """When the calls of a variant of a program begin: as in the program itself, but always after the call before."""
    known: dict[tuple[Call, int], int] = {}
    seen: dict[Call, int] = {}
    for at, call in enumerate(base):
        seen[call] = seen.get(call, 0) + 1
        known[call, seen[call]] = times[at]
    result: list[int] = []
    seen = {}
    for call in calls:
        seen[call] = seen.get(call, 0) + 1
        before = result[-1] + APART_NS if result else 0
        last = times[len(base)] if call.name == "end" else before
        result.append(max(before, known.get((call, seen[call]), last)))
    return result
