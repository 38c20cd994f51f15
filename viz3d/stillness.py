"""Who stands still between two looks, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .graph import Operation, Wait, WaitGraph
from .mismatch import Root
from .pace import Pace
from .patience import Patience
from .states import RankState, Snapshot
from .verdict import CulpritKind


@dataclass(frozen=True, slots=True)
class Stillness:
    """Two looks side by side. ``seen_twice``: ranks with two moments; ``moved``: those that did anything between;
    ``missed_s``: how long somebody who stands still has waited for a rank without data, seconds. ``patience`` tells
    how long a root must stand still before it is called stuck."""

    earlier: Snapshot
    later: Snapshot
    graph: WaitGraph
    pace: Pace
    seen_twice: frozenset[int]
    moved: frozenset[int]
    missed_s: Mapping[int, float]
    patience: Patience

    def has_moved(self, root: Root) -> bool:
        """Whether any rank of a root moved."""
        return not self.moved.isdisjoint(root.ranks)

    def is_stuck(self, root: Root) -> bool:
        """Whether a root has stood still for so long that it is stuck; a process that is gone always is."""
        states = [self.later.states.get(rank) for rank in root.ranks]
        if root.kind == CulpritKind.DEAD and all(state is not None and state.is_dead for state in states):
            return True
        if self.has_moved(root) or not self.was_so(root):
            return False
        if any(state is not None and state.rank not in self.seen_twice for state in states):
            return False
        return self.stood_s(root) >= self.patience.needed_s(root)

    def was_so(self, root: Root) -> bool:
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
    moved = frozenset(state.rank for before, state in pairs if not _did_nothing(before, state))
    missed_s = _missed(later, graph, seen_twice - moved)
    return Stillness(earlier, later, graph, pace, seen_twice, moved, missed_s, Patience(later, graph, pace, moved))


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


def _did_nothing(before: RankState, state: RankState) -> bool:
    """Whether a rank is in all as it was: in its step, what it has completed, and what it has in flight."""
    if (before.step, before.spans, before.progress) != (state.step, state.spans, state.progress):
        return False
    return before.flights == state.flights or _in_flight(before) == _in_flight(state)


def _in_flight(state: RankState) -> frozenset[tuple[object, ...]]:
    return frozenset((one.segment, one.group, one.sequence, one.begun_ns) for one in state.flights)
