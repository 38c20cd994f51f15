"""Who stands still between two looks, for how long, and how long that must be before it is called stuck."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..profiler.vocabulary import SegmentKind
from .graph import Operation, Wait, WaitGraph
from .mismatch import Root
from .pace import Pace
from .states import RankState, Snapshot
from .verdict import CulpritKind

STUCK_S = 7.0
"""In a job that has run, no segment that usually takes far less is this long without being stuck."""

PATIENCE_S = 30.0
"""What is slow by nature, or was never completed before, or is not in any segment, gets this time at least (or three
steps, if that is more)."""

USUAL_TIMES = 10
"""Loading data gets so many times what it usually takes; a checkpoint or an evaluation may well be another one."""

SLOW_KINDS = frozenset(
    {SegmentKind.INIT, SegmentKind.COMPILE, SegmentKind.CHECKPOINT, SegmentKind.EVAL, SegmentKind.DATA}
)
"""Work that may well take long once in a while, and make all others wait."""

OF_THE_PROGRAM = frozenset(
    {
        CulpritKind.MISMATCH,
        CulpritKind.MISSING_CALL,
        CulpritKind.ORDER_INVERSION,
        CulpritKind.P2P_CYCLE,
        CulpritKind.DEVICE_STUCK,
        CulpritKind.ITERATION_DESYNC,
        CulpritKind.DIVERGED,
    }
)
"""Roots that no patience cures: the program itself is stuck."""


@dataclass(frozen=True, slots=True)
class Stillness:
    """Two looks side by side. ``seen_twice``: ranks with two moments; ``moved``: those that did anything between;
    ``missed_s``: how long somebody who stands still has waited for a rank without data, seconds."""

    earlier: Snapshot
    later: Snapshot
    graph: WaitGraph
    pace: Pace
    seen_twice: frozenset[int]
    moved: frozenset[int]
    missed_s: Mapping[int, float]

    def has_moved(self, root: Root) -> bool:
        """Whether any rank of a root moved."""
        return not self.moved.isdisjoint(root.ranks)

    def is_stuck(self, root: Root) -> bool:
        """Whether a root has stood still for so long that it is stuck; a process that is gone always is."""
        states = [self.later.states.get(rank) for rank in root.ranks]
        if root.kind == CulpritKind.DEAD and all(state is not None and state.is_dead for state in states):
            return True
        if self.has_moved(root) or not self._was_so(root):
            return False
        if any(state is not None and state.rank not in self.seen_twice for state in states):
            return False
        return self.stood_s(root) >= self.needed_s(root)

    def _was_so(self, root: Root) -> bool:
        """Whether a device lagged behind those of its group at the earlier look too: hosts differ in when they look."""
        if root.kind != CulpritKind.DEVICE_STUCK or root.group is None or root.sequence is None:
            return True
        return any(state.completed(root.group) >= root.sequence for state in self.earlier.states.values())

    def stood_s(self, root: Root) -> float:
        """How long a root has stood still at least, seconds: in its own work not longer than anybody waits, and without
        data as long as any of its ranks is missed."""
        if root.kind == CulpritKind.HOST_STUCK:
            return min(self.longest_wait_s(), *(self._unmoved_s(self.later.states[rank]) for rank in root.ranks))
        silent = [self.missed_s.get(rank, 0.0) for rank in root.ranks if rank not in self.later.states]
        heard = [self._unmoved_s(self.later.states[rank]) for rank in root.ranks if rank in self.later.states]
        return min([*heard, *([max(silent)] if silent else [])])

    def _unmoved_s(self, state: RankState) -> float:
        """Since it last completed or began something; at least the time between the two looks."""
        before = self.earlier.states.get(state.rank)
        apart = 0.0 if before is None else (state.moment_ns - before.moment_ns) / 1e9
        ages = [age for flight in state.flights if (age := state.age_s(flight)) is not None]
        unchanged = self.pace.unchanged_s(state)
        if unchanged is None and not ages:  # it has done nothing since anybody looked, and has nothing in flight
            apart = max(apart, self.missed_s.get(state.rank, 0.0))
        known = [one for one in (unchanged, min(ages, default=None)) if one is not None]
        return max(apart, min(known, default=0.0))

    def needed_s(self, root: Root) -> float:
        """How long a root must stand still before it is called stuck, seconds."""
        step_s = self.pace.step_s()
        patience = max(PATIENCE_S, 3 * (step_s or 0.0))
        if root.kind in OF_THE_PROGRAM:
            return patience if step_s is None else STUCK_S
        return max((self._needed_by(self.later.states.get(rank), patience) for rank in root.ranks), default=patience)

    def _needed_by(self, state: RankState | None, patience: float) -> float:
        if state is None:
            return patience
        if state.process_state == "stopped":
            return STUCK_S
        work = state.innermost_work()
        usual = None if work is None else self.pace.segment_s(work.segment)
        if work is None or usual is None:
            return patience
        if work.kind == SegmentKind.DATA:
            return max(STUCK_S, USUAL_TIMES * usual)
        return max(patience if work.kind in SLOW_KINDS else STUCK_S, 2 * usual)

    def longest_wait_s(self) -> float:
        """The longest wait of a rank that stands still, seconds."""
        waits = (_wait_s(self.later, wait) for rank, own in self.graph.waits.items() for wait in own
                 if rank not in self.moved)  # fmt: skip
        return max(waits, default=0.0)


def watch(earlier: Snapshot, later: Snapshot, graph: WaitGraph, pace: Pace) -> Stillness:
    """Put two looks side by side; ``graph`` is the later one's."""
    pairs = [
        (before, state)
        for rank, state in later.states.items()
        if (before := earlier.states.get(rank)) is not None and before.moment_ns < state.moment_ns
    ]
    seen_twice = frozenset(state.rank for _, state in pairs)
    moved = frozenset(state.rank for before, state in pairs if _what_is_done(before) != _what_is_done(state))
    return Stillness(earlier, later, graph, pace, seen_twice, moved, _missed(later, graph, seen_twice - moved))


def _missed(later: Snapshot, graph: WaitGraph, waiters: frozenset[int]) -> dict[int, float]:
    """For each rank without data the longest wait for it; every operation is read once."""
    longest: dict[int, tuple[float, Operation]] = {}
    for waiter in waiters & graph.waiting():
        for wait in graph.waits[waiter]:
            age = _wait_s(later, wait)
            if age >= longest.get(id(wait.operation), (0.0, wait.operation))[0]:
                longest[id(wait.operation)] = age, wait.operation
    missed: dict[int, float] = {}
    for age, operation in longest.values():
        for rank in operation.absent:
            if rank not in later.states or not later.states[rank].flights:
                missed[rank] = max(age, missed.get(rank, 0.0))
    return missed


def _wait_s(later: Snapshot, wait: Wait) -> float:
    return later.states[wait.rank].age_s(wait.flight) or 0.0


def _what_is_done(state: RankState) -> tuple[object, ...]:
    flights = frozenset((one.segment, one.group, one.sequence, one.begun_ns) for one in state.flights)
    return (state.step, state.spans, tuple(sorted(state.progress.items())), flights)
