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
from .operations import is_one_way
from .states import Flight, RankState, Snapshot

LOST = "an operation whose record is lost"
"""Name of an operation that is known by its number alone."""

WITNESSES = 2
"""So many ranks of a stage are asked whether one operation usually ends before another begins; they run one program."""


def in_order(state: RankState) -> list[Flight]:
    """Operations in flight that can hold a rank up (a send holds nobody up), in the order in which they were issued."""
    return [one for one in _issued(state) if one.sends is not True]


def _issued(state: RankState) -> list[Flight]:
    return sorted((one for one in state.flights if one.communicates), key=lambda one: one.begun_ns or 0)


@dataclass(frozen=True, slots=True)
class Streams:
    """By rank whose host runs ahead: the head of its stream, and what its host itself waits for.

    ``holding`` has, in place of the head, an operation before it that is not complete and of which the record is lost.
    """

    recorded: Mapping[int, tuple[Flight, ...]] = field(default_factory=dict)
    holding: Mapping[int, tuple[Flight, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, history: History | None = None) -> Streams:
        """The streams of all ranks of a snapshot."""
        order = _Order(snapshot, history or NoHistory())
        found = ((state, order.held(state)) for state in snapshot.states.values())
        recorded = {state.rank: held for state, held in found if held is not None}
        holding = {rank: (order.put_back(snapshot.states[rank], held[0]), *held[1:]) for rank, held in recorded.items()}
        return cls(recorded, holding)


@dataclass(slots=True)
class _Order:
    """What may be taken for granted of operations that a rank issued one after the other."""

    snapshot: Snapshot
    history: History
    _told: dict[tuple[object, ...], list[bool]] = field(default_factory=dict)

    def held(self, state: RankState) -> tuple[Flight, ...] | None:
        """The head of a stream and what the host waits for; None where nothing shows that the host is ahead."""
        flying = in_order(state)
        own = takewhile(lambda one: one.waiting is not True, flying)
        head = next((one for one in own if self._passed_by(state, one)), None)
        if head is None:
            if not _is_ahead(state, flying):
                return None
            head = flying[0]
        behind = (one for one in flying if one.waiting is True and one is not head)
        return head, *(one for one in behind if self._needs(state, head, one) is not True)

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
            is_lost = group != head.group and first <= issued and (group, first) not in recorded
            if is_lost and self._is_collective(group) and self._comes_before(state, group, first, head):
                return replace(head, segment=LOST, kind="collective", group=group, sequence=first, peer=None)
        return head

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

    def _comes_before(self, state: RankState, group: int, sequence: int, head: Flight) -> bool:
        """Whether a rank usually has issued an operation of a group when it issues the head."""
        if state.step is None or head.group is None or head.sequence is None:
            return False
        usual = self.history.expected_issued(state.rank, state.step, head.group, head.sequence, group)
        return usual is not None and usual >= sequence

    def _needs(self, state: RankState, first: Flight, second: Flight) -> bool | None:
        """Whether, by their past, ranks of the stage begin the second operation only when the first has ended."""
        if state.step is None or first.group is None or second.group is None:
            return None
        kinds = (self.snapshot.groups.get(first.group), self.snapshot.groups.get(second.group))
        key = (
            self.snapshot.stage_of(state.rank), *(one and one.kind for one in kinds),
            first.segment, first.microbatch, second.segment, second.microbatch,
        )  # fmt: skip
        told = self._told.setdefault(key, [])
        if len(told) < WITNESSES:
            own = self.history.ends_before(
                state.rank, state.step, (first.group, first.sequence or 0), (second.group, second.sequence or 0)
            )
            if own is None:
                return all(told) if told else None
            told.append(own)
        return all(told)


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
