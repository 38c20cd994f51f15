"""What holds a rank up whose host runs ahead of its device: the first operation of its stream that is not complete.

A host that uses a GPU issues operations and goes on. All that it issued after the first incomplete one has not begun on
the device, whatever the others did about it, and tells nothing of who waits for whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ..profiler.vocabulary import SegmentKind
from .history import History, NoHistory
from .operations import is_one_way, sends
from .places import Place, Places
from .states import Flight, RankState, Snapshot

LOST = "an operation whose record is lost"
"""Name of an operation that is known by its number alone."""


def in_order(state: RankState) -> list[Flight]:
    """Operations in flight that can hold a rank up (a send holds nobody up), in the order in which they were issued."""
    return [one for one in _issued(state) if one.sends is not True]


def _issued(state: RankState) -> list[Flight]:
    return sorted((one for one in state.flights if one.communicates), key=lambda one: one.begun_ns or 0)


@dataclass(frozen=True, slots=True)
class Streams:
    """By rank whose host runs ahead: the head of its stream, and what its host waits for beside it.

    There are none where communication is timed on the host's clock: then hosts do it themselves, as with gloo.

    ``holding`` has, in place of the head, an operation before it that is not complete and of which the record is lost.
    ``unplaced``, by rank and group: see `_Order.unplaced`.
    """

    recorded: Mapping[int, tuple[Flight, ...]] = field(default_factory=dict)
    holding: Mapping[int, tuple[Flight, ...]] = field(default_factory=dict)
    unplaced: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, history: History | None = None) -> Streams:
        """The streams of all ranks of a snapshot."""
        past = history or NoHistory()
        if past.runs_ahead() is False:
            return cls()
        order = _Order(snapshot, past)
        found = ((state, order.held(state)) for state in snapshot.states.values())
        recorded = {state.rank: held for state, held in found if held is not None}
        asked = {rank: step for rank in recorded if (step := order.asks_of(snapshot.states[rank])) is not None}
        past.read_ahead(asked)
        holding = {rank: (order.put_back(snapshot.states[rank], held[0]), *held[1:]) for rank, held in recorded.items()}
        unplaced = {rank: order.unplaced(snapshot.states[rank], held[0]) for rank, held in recorded.items()}
        return cls(recorded, holding, {rank: own for rank, own in unplaced.items() if own})


@dataclass(slots=True)
class _Order:
    """What may be taken for granted of operations that a rank issued one after the other."""

    snapshot: Snapshot
    history: History
    _told: dict[tuple[object, ...], bool | None] = field(default_factory=dict)
    _places: Places | None = None

    @property
    def places(self) -> Places:
        """The places of the snapshot's ranks, made when they are first needed."""
        if self._places is None:
            self._places = Places(self.snapshot)
        return self._places

    def held(self, state: RankState) -> tuple[Flight, ...] | None:
        """The head of a stream, and what the host waits for beside it; None where nothing shows that it is ahead."""
        flying = in_order(state)
        own = takewhile(lambda one: one.waiting is not True, flying)
        if not _is_ahead(state, flying) and not any(self._passed_by(state, one) for one in own):
            return None
        awaited = (one for one in flying[1:] if one.waiting is True)
        return flying[0], *(one for one in awaited if not self._needs(state, flying[0], one))

    def _passed_by(self, state: RankState, head: Flight) -> bool:
        """Whether the host has issued what usually begins after the end of an operation that is not complete."""
        for later in _issued(state):
            if (later.begun_ns or 0) <= (head.begun_ns or 0) or later is head:
                continue
            if later.kind == "p2p" and head.kind == "p2p" and not _depends(head, later):
                continue
            if later.waiting is True and _is_in_compute(state, later):
                continue
            if later.waiting is not True and later.kind == "collective" and head.kind == "collective":
                continue  # `_is_ahead` tells
            if self._needs(state, head, later):
                return True
        return False

    def put_back(self, state: RankState, head: Flight) -> Flight:
        """The head, or an operation before it that is not complete either and of which the record is lost."""
        own = state.completed(head.group or 0) + 1
        if head.group in state.progress and own < (head.sequence or 0) and self._counts_in_order(head):
            return replace(head, segment=LOST, sequence=own)
        recorded = {(one.group, one.sequence) for one in state.flights}
        for group, (issued, completed) in state.progress.items():
            first = completed + 1
            if group == head.group or first > issued or (group, first) in recorded:
                continue
            if self._comes_before(state, group, first, head) and (lost := self._lost(state, head, group, first)):
                return lost
        return head

    def asks_of(self, state: RankState) -> int | None:
        """The step of a rank whose past `put_back` or `unplaced` may ask for, since records of it are lost."""
        recorded = {(one.group, one.sequence) for one in state.flights}
        is_short = any(
            (group, number) not in recorded
            for group, (issued, completed) in state.progress.items() for number in (completed + 1,) if number <= issued
        )  # fmt: skip
        return state.step if is_short else None

    def unplaced(self, state: RankState, head: Flight) -> dict[int, int]:
        """By group: up to which number a rank has issued operations without a record, of which it is not known whether
        they are complete, or behind the head.

        Numbers of a group are issued one after the other, so that the first on record tells of those before it, also
        where nothing says how far the rank is in the group.
        """
        first: dict[int, int] = {}
        for one in state.flights:
            if one.group is not None and one.sequence is not None:
                first[one.group] = min(one.sequence, first.get(one.group, one.sequence))
        found = {group: number - 1 for group, number in first.items() if group not in state.progress}
        for group, (issued, completed) in state.progress.items():
            last = min(issued, first.get(group, issued + 1) - 1)
            if completed < last and self._comes_before(state, group, completed + 1, head) is None:
                found[group] = last
        return found

    def _lost(self, state: RankState, head: Flight, group: int, sequence: int) -> Flight | None:
        """An operation of which the record is lost, if it is one that can hold a rank up; None for a send."""
        name = self.snapshot.groups.get(group)
        lost = replace(head, segment=LOST, kind="collective", group=group, sequence=sequence, peer=None)
        if name is None or self._is_collective(group):
            return None if name is None else lost
        usual = self.history.expected_segment(state.rank, state.step or 0, group, sequence)
        if usual is None or sends("p2p", usual) is not False or len(name.ranks) != 2:
            return None
        peer = next(rank for rank in name.ranks if rank != state.rank)
        return replace(lost, kind="p2p", segment=usual, peer=peer)

    def _counts_in_order(self, head: Flight) -> bool:
        """Whether operations of the head's group complete in the order of their numbers: not of both directions."""
        name = self.snapshot.groups.get(head.group or 0)
        return head.kind == "collective" or (name is not None and is_one_way(name.kind))

    def _is_collective(self, group: int) -> bool:
        """Whether anybody has a collective of a group in flight."""
        name = self.snapshot.groups.get(group)
        states = (self.snapshot.states.get(rank) for rank in (() if name is None else name.ranks))
        flights = (one for state in states if state is not None for one in state.flights)
        return any(one.group == group and one.kind == "collective" for one in flights)

    def _comes_before(self, state: RankState, group: int, sequence: int, head: Flight) -> bool | None:
        """Whether a rank usually has issued an operation of a group when it issues the head; None: not known."""
        if state.step is None or head.group is None or head.sequence is None:
            return None
        usual = self.history.expected_issued(state.rank, state.step, head.group, head.sequence, group)
        return None if usual is None else usual >= sequence

    def _needs(self, state: RankState, first: Flight, second: Flight) -> bool | None:
        """Whether, by their past, ranks of the stage begin the second operation only when the first has ended."""
        if first.group is None or second.group is None:
            return None
        places = self.places.place(state.rank, first.group), self.places.place(state.rank, second.group)
        key = (*places, first.segment, first.microbatch, second.segment, second.microbatch)
        if key not in self._told:
            numbers = first.sequence or 0, second.sequence or 0
            answers = (self._ask(rank, places, numbers) for rank in self.places.witnesses(state.rank))
            known = [one for one in answers if one is not None]
            self._told[key] = all(known) if known else None
        return self._told[key]

    def _ask(self, rank: int, places: tuple[Place, Place], numbers: tuple[int, int]) -> bool | None:
        """The same of the operations with these numbers in the groups of another rank of the stage."""
        state = self.snapshot.states.get(rank)
        groups = [self.places.group_at(rank, place) for place in places]
        if state is None or state.step is None or groups[0] is None or groups[1] is None:
            return None
        return self.history.ends_before(rank, state.step, (groups[0], numbers[0]), (groups[1], numbers[1]))


def _depends(received: Flight, sent: Flight) -> bool:
    """Whether a message may be made of another: what is received for a micro-batch is worked on and sent on."""
    return (
        received.sends is False and sent.sends is True
        and received.microbatch is not None and received.microbatch == sent.microbatch
    )  # fmt: skip


def _is_in_compute(state: RankState, flight: Flight) -> bool:
    work = state.enclosing(flight)
    return work is not None and work.kind == SegmentKind.COMPUTE


def _is_ahead(state: RankState, flying: Sequence[Flight]) -> bool:
    """Whether a rank has issued collectives behind the first operation that is not complete, without waiting for them.

    Where nothing says whether it waits, its own work does: operations inside work may be awaited one by one.
    """
    if len(flying) < 2 or flying[0].waiting is True:
        return False
    if all(one.waiting is None for one in flying) and state.innermost_work() is not None:
        return False
    return any(one.kind == "collective" and one.waiting is not True for one in flying[1:])
