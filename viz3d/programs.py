"""What ranks have issued at the points of their steps, against their own past and ranks in the same place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .history import History
from .mismatch import Root
from .states import Flight, RankState, Snapshot
from .verdict import CulpritKind

MAX_COMPARED = 64
"""So many ranks of a job without a past are compared with their peers."""


class Programs:
    """Who is past a point of its step that it usually reaches with more operations issued in some group.

    What is usual is asked of the store once for all ranks of a stage: they run one program, and count alike.
    """

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self._snapshot, self._history = snapshot, history
        self._group_of: dict[tuple[int, str], int] = {}
        self._groups_of: dict[int, list[int]] = defaultdict(list)
        for number, name in snapshot.groups.items():
            for member in name.ranks:
                self._group_of[member, name.kind] = number
                self._groups_of[member].append(number)
        self._of_stage: dict[int, list[RankState]] = defaultdict(list)
        for rank, state in snapshot.states.items():
            self._of_stage[snapshot.stage_of(rank)].append(state)
        self._known: dict[tuple[object, ...], int | None] = {}
        self._compared = 0

    def went_past(self, rank: int, group: int) -> bool:
        """Whether a rank is at a point of its step that it usually reaches with more operations issued in ``group``.

        Its earlier steps tell how many; where there are none, ranks that hold the same place in other groups do.
        """
        state = self._snapshot.states[rank]
        for own in state.flights:
            if own.group is None or own.sequence is None or own.group == group or own.kind != "collective":
                continue
            expected = self.expected(state, own, group)
            if expected is not None:
                return state.issued(group) < expected
            self._compared += 1
            if self._compared <= MAX_COMPARED and self._peers_are_ahead(state, group, own):
                return True
        return False

    def expected(self, state: RankState, own: Flight, other: int) -> int | None:
        """The last number that a rank usually has issued in group ``other`` when it issues an operation of its own."""
        if state.step is None or own.group is None or own.sequence is None:
            return None
        key = (self._place(state.rank, own.group), own.segment, own.sequence, self._place(state.rank, other))
        if self._known.get(key) is None:
            self._known[key] = self._history.expected_issued(state.rank, state.step, own.group, own.sequence, other)
        return self._known[key]

    def _place(self, rank: int, group: int) -> tuple[object, ...]:
        """What a group is to a rank: the same for all ranks of a stage."""
        name = self._snapshot.groups.get(group)
        if name is None:
            return (group,)
        stages = {self._snapshot.stage_of(member) for member in name.ranks[:2]} if len(name.ranks) == 2 else set()
        return (self._snapshot.stage_of(rank), name.kind, *sorted(stages))

    def issues_late(self, state: RankState, own: Flight) -> Flight | None:
        """An operation that a rank has issued after one of its own, and usually issues before it; None if none."""
        begun_ns = own.begun_ns or 0
        for other in self._groups_of[state.rank]:
            if other == own.group:
                continue
            after = [one for one in state.flights if one.group == other and (one.begun_ns or 0) > begun_ns]
            first = min(after, key=lambda one: one.sequence or 0, default=None)
            if first is None or first.sequence is None or first.kind != "collective":
                continue
            expected = self.expected(state, own, other)
            if expected is not None and first.sequence <= expected:
                return first
        return None

    def _peers_are_ahead(self, state: RankState, group: int, own: Flight) -> bool:
        """Whether most ranks of the same stage that stand at the same point, in ``own``, issued more in such groups.

        Ranks that have completed it went on since, and ranks that have not come to it yet may still issue more
        before it.
        """
        groups = self._snapshot.groups
        name, own_name = groups.get(group), groups.get(own.group or 0)
        if name is None or own_name is None or own.sequence is None:
            return False
        inside = frozenset(name.ranks)
        ahead = peers = 0
        for theirs in self._of_stage[self._snapshot.stage_of(state.rank)]:
            there = self._group_of.get((theirs.rank, name.kind))
            here = self._group_of.get((theirs.rank, own_name.kind))
            if theirs.rank in inside or there is None or here is None:
                continue
            if theirs.completed(here) < own.sequence <= theirs.issued(here):
                peers += 1
                ahead += theirs.issued(there) > state.issued(group)
        return 2 * ahead > peers


def find_skipped(snapshot: Snapshot, history: History, ranks: Iterable[int]) -> list[Root]:
    """Ranks, of the given ones, that left out a collective although their group still seems in step.

    Only groups in which the rank has something in flight are looked at: for others its progress may be older than
    what is in flight.
    """
    roots = []
    programs = Programs(snapshot, history)
    for rank in ranks:
        state = snapshot.states.get(rank)
        flights = [] if state is None else [flight for flight in state.flights if flight.kind == "collective"]
        for group in dict.fromkeys(flight.group for flight in flights if flight.group is not None):
            if programs.went_past(rank, group):
                first = min((flight for flight in flights if flight.group == group), key=lambda one: one.sequence or 0)
                why = "it is past a point of its step that it usually reaches with one operation more in the group"
                roots.append(
                    Root((rank,), CulpritKind.MISSING_CALL, 0.8, first.segment, group, first.sequence, why=why)
                )
                break
    return roots
