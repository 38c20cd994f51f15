"""What ranks have issued at the points of their steps, against their own past and ranks in the same place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .history import History
from .mismatch import Root
from .places import Place, Places
from .states import Flight, RankState, Snapshot
from .verdict import CulpritKind

MAX_ASKED = 512
"""So many ranks are held against their own steps."""

MAX_WITNESSES = 8
"""So many ranks of a group or a stage are looked at for one that contradicts."""

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
        self._is_spent = self._has_past = False
        self._compared = 0

    @property
    def is_spent(self) -> bool:
        """Whether there were more ranks to ask than are asked, and asking tells anything."""
        return self._is_spent and self._has_past

    @property
    def asked(self) -> int:
        """How many ranks were held against their own steps."""
        return len(self._asked)

    def went_past(self, rank: int, group: int, *, receives_tell: bool = False) -> bool:
        """Whether a rank is at a point of its step that it usually reaches with more operations issued in ``group``.

        Its earlier steps tell how many, if this one began like them but for ``group``; else ranks that hold the same
        place in other groups do. A rank that is in no collective is at the point of what it receives, if
        ``receives_tell``: not where a message of its own is what it lacks, for that may come later than usual.
        """
        state = self._snapshot.states[rank]
        flying = [one for one in state.flights if one.communicates and one.group != group]
        collectives = [one for one in flying if one.kind == "collective"]
        for own in collectives:
            expected = self.expected(state, own, group)
            if expected is not None and self._began_as_usual(state, own, group):
                return state.issued(group) < expected
            self._compared += 1
            if self._compared <= MAX_COMPARED and self._peers_are_ahead(state, group, own):
                return True
        received = [one for one in flying if one.sends is False] if receives_tell and not collectives else []
        for own in received:
            expected = self.expected(state, own, group)
            if expected is not None and self._began_as_usual(state, own, group):
                return state.issued(group) < expected
        return False

    def _began_as_usual(self, state: RankState, own: Flight, but: int) -> bool:
        """Whether nothing tells that a rank's step began otherwise than usual, operations of group ``but`` aside."""
        before = state.before(own)
        return self._history.begins_as_usual(state.rank, state.step or 0, own, before, but) is not False

    def expected(self, state: RankState, own: Flight, other: int) -> int | None:
        """The last number that a rank usually has issued in group ``other`` when it issues an operation of its own.

        Its own steps tell, for ranks of one stage may count differently; of very many ranks the first are asked.
        """
        if state.step is None or own.group is None or own.sequence is None:
            return None
        if state.rank not in self._asked and len(self._asked) >= MAX_ASKED:
            self._is_spent = True
            return None
        self._asked.add(state.rank)
        expected = self._history.expected_issued(state.rank, state.step, own.group, own.sequence, other)
        self._has_past |= expected is not None
        return expected

    def issues_late(self, state: RankState, head: Flight) -> list[tuple[int, int]]:
        """Of a rank that runs ahead: collectives and sends that it usually issues before the head of its stream, and
        has issued after it, the first of each group, as (group, number) in the order of their issue.

        None of them where the head may be another operation than its number says: one more than usual in this step
        moves all numbers of its group.
        """
        late = []
        for other in self._places.groups_of(state.rank):
            number = 0 if other == head.group else _first_after(state, other, head)
            expected = self.expected(state, head, other) if number else None
            if expected is not None and 0 < number <= expected <= state.issued(other):
                late.append((other, number))
        begun_ns = {(one.group, one.sequence): one.begun_ns or 0 for one in state.flights}
        late.sort(key=lambda one: (begun_ns.get(one, 0), one))
        return late if late and self.is_at_its_point(state.rank, head) else []

    def is_at_its_point(self, rank: int, flight: Flight) -> bool:
        """Whether nothing tells that an operation in flight is not the one that its number is in usual steps."""
        state, past = self._snapshot.states[rank], self._history
        step, group, number = state.step or 0, flight.group or 0, flight.sequence or 0
        if past.expected_segment(rank, step, group, number) not in (None, flight.segment):
            return False
        usual = past.expected_size(rank, step, group, number)
        if None not in (usual, flight.size_bytes) and usual != flight.size_bytes:
            return False
        return past.begins_as_usual(rank, step, flight, state.before(flight)) is not False

    def place(self, rank: int, group: int) -> Place:
        """What a group is to a rank: the same for all ranks that run its program."""
        return self._places.place(rank, group)

    def is_contradicted(
        self, state: RankState, head: Flight, late: tuple[int, int], heads: Mapping[int, Sequence[Flight]]
    ) -> bool:
        """Whether another rank of the stage, in the same step, has come to the ``late`` operation in the usual order.

        Ranks of a stage run one program. Where the program itself has one operation more than usual in this step, all
        of them count more than usual, and nobody contradicts.
        """
        places = self.place(state.rank, head.group or 0), self.place(state.rank, late[0])
        near = dict.fromkeys(
            rank for group in (late[0], head.group or 0) if (name := self._snapshot.groups.get(group)) is not None
            for rank in name.ranks[:MAX_WITNESSES]
        )  # fmt: skip
        stage = self._of_stage[self._snapshot.stage_of(state.rank)]
        peers = dict.fromkeys((*near, *(one.rank for one in stage[:MAX_WITNESSES])))
        return any(
            self._came_as_usual(self._snapshot.states[rank], heads[rank][0], places, late[1])
            for rank in peers
            if rank != state.rank and rank in heads and self._snapshot.states[rank].step == state.step
            and self._snapshot.stage_of(rank) == self._snapshot.stage_of(state.rank)
        )  # fmt: skip

    def _came_as_usual(self, state: RankState, head: Flight, places: Sequence[Place], number: int) -> bool:
        """Whether a rank has issued a number at the second place no later than its head, and before that as many
        operations in both places as is usual there."""
        counts = []
        for place in places:
            group = self._places.group_at(state.rank, place)
            if group is None:
                return False
            counts.append(_last_before(state, group, head))
            if group == head.group:
                continue
            if counts[-1] is None or self.expected(state, head, group) != counts[-1]:
                return False
        is_head = self._places.place(state.rank, head.group or 0) == places[1] and head.sequence == number
        came = is_head or (counts[1] or 0) >= number
        return came and self.is_at_its_point(state.rank, head)

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


def _last_before(state: RankState, group: int, head: Flight) -> int | None:
    """The last number of a group that a rank issued before the head of its stream; None where a record is lost, so
    that it may be another."""
    done = state.completed(group)
    flying = sorted((one.sequence or 0, one.begun_ns or 0) for one in state.flights if one.group == group)
    if [number for number, _ in flying] != list(range(done + 1, state.issued(group) + 1)):
        return None
    return max((number for number, begun_ns in flying if begun_ns < (head.begun_ns or 0)), default=done)


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
