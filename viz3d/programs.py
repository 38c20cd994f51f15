"""What ranks have issued at the points of their steps, against their own past and ranks in the same place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .history import History
from .mismatch import Root
from .places import Places
from .states import Flight, RankState, Snapshot
from .verdict import CulpritKind

MAX_ASKED = 512
"""So many ranks are held against their own steps."""

MAX_COMPARED = 64
"""So many ranks of a job without a past are compared with their peers."""


class Programs:
    """Who is past a point of its step that it usually reaches with more operations issued in some group."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self._snapshot, self._history = snapshot, history
        self._places = Places(snapshot)
        self._of_stage: dict[int, list[RankState]] = defaultdict(list)
        for rank, state in snapshot.states.items():
            self._of_stage[snapshot.stage_of(rank)].append(state)
        self._asked: set[int] = set()
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
        """The last number that a rank usually has issued in group ``other`` when it issues an operation of its own.

        Its own steps tell, for ranks of one stage may count differently; of very many ranks the first are asked.
        """
        if state.step is None or own.group is None or own.sequence is None:
            return None
        self._asked.add(state.rank)
        if len(self._asked) > MAX_ASKED:
            return None
        return self._history.expected_issued(state.rank, state.step, own.group, own.sequence, other)

    def issues_late(self, state: RankState, head: Flight) -> tuple[int, int] | None:
        """Of a rank that runs ahead: a collective or a send that it usually issues before the head of its stream, and
        has issued after it, as (group, number); None if there is none."""
        for other in self._places.groups_of(state.rank):
            number = 0 if other == head.group else _first_after(state, other, head)
            expected = self.expected(state, head, other) if number else None
            if expected is not None and 0 < number <= expected <= state.issued(other):
                return other, number
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
            there = self._places.group_at(theirs.rank, self._places.place(state.rank, group))
            here = self._places.group_at(theirs.rank, self._places.place(state.rank, own.group or 0))
            if theirs.rank in inside or there is None or here is None:
                continue
            if theirs.completed(here) < own.sequence <= theirs.issued(here):
                peers += 1
                ahead += theirs.issued(there) > state.issued(group)
        return 2 * ahead > peers


def _first_after(state: RankState, group: int, head: Flight) -> int:
    """The first number of a group, of collectives or sends, that is recorded as issued after the head of a rank's
    stream; 0 for none. When an operation was issued whose record is lost is not known."""
    own = [one for one in state.flights if one.group == group and one.sequence is not None]
    if not any(one.kind == "collective" or one.sends for one in own):
        return 0
    later = (one.sequence or 0 for one in own if (one.begun_ns or 0) > (head.begun_ns or 0))
    return min(later, default=0)


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
