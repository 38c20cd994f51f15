"""Who waits for whom: ranks, the operations that they are in, and the members that have not joined those.

Ranks and operations are nodes; an edge goes from a rank to an operation that it has in flight, and from an operation
to the ranks that it lacks. That keeps the graph as small as what is in flight, however large the groups are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .operations import is_one_way, synchronises
from .states import Flight, RankState, Snapshot
from .streams import Streams


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective, or one message of a point-to-point edge: ``members`` take part, ``absent`` have not joined."""

    group: int
    sequence: int
    segment: str
    members: tuple[int, ...]
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank has an operation in flight that lacks someone. A weak one may not hold the rank up: the operation was
    begun before the work that the rank is in, or is one that ranks usually let run beside their work."""

    rank: int
    flight: Flight
    operation: Operation
    weak: bool


@dataclass(slots=True)
class WaitGraph:
    """All waits of a snapshot, and the operations that lack nobody and have not completed.

    ``unheard`` and ``streams``: see `build_graph`.
    """

    waits: dict[int, list[Wait]] = field(default_factory=dict)
    joined: dict[tuple[int, int], Operation] = field(default_factory=dict)
    unheard: frozenset[int] = frozenset()
    streams: Streams = field(default_factory=Streams)

    def waiting(self) -> set[int]:
        """Ranks that have an operation in flight that lacks someone."""
        return set(self.waits)


def build_graph(
    snapshot: Snapshot,
    asynchronous: Iterable[str] = (),
    deviants: Mapping[tuple[int, int], tuple[int, ...]] | None = None,
    unheard: frozenset[int] = frozenset(),
    streams: Streams | None = None,
) -> WaitGraph:
    """Graph of a snapshot. ``asynchronous`` are names of segments that ranks usually let run beside their work.

    ``deviants`` are members of a collective, by (group, sequence), that are in it with another operation than the rest:
    they have not joined what the others are in, and wait for nobody there. A rank whose process has ended or is
    stopped waits for nobody, whatever it has in flight: it is not there to wait. Of a rank whose host runs ahead of its
    device only what holds it up counts: ``streams``, by default as the snapshot alone shows them. ``unheard`` are ranks
    that are taken to have joined whatever their peers are in: nothing is known of them, or of what they wait for, and
    somebody else may be the root.
    """
    beside = frozenset(asynchronous)
    graph = WaitGraph(unheard=unheard, streams=Streams.of(snapshot) if streams is None else streams)
    heads = graph.streams.holding
    scene = _Scene(snapshot, graph.streams, unheard)
    for rank in sorted(snapshot.states):
        state = snapshot.states[rank]
        if not state.is_present:
            continue
        for flight in heads.get(rank, state.flights):
            if not flight.communicates:
                continue
            apart = () if deviants is None else deviants.get((flight.group or 0, flight.sequence or 0), ())
            if rank in apart:
                continue
            operation = scene.operation(state, flight, apart)
            if operation is None:
                continue
            if operation.absent:
                wait = Wait(rank, flight, operation, rank not in heads and is_weak(state, flight, beside))
                graph.waits.setdefault(rank, []).append(wait)
            else:
                graph.joined[operation.group, operation.sequence] = operation
    return graph


def is_weak(state: RankState, flight: Flight, beside: frozenset[str]) -> bool:
    """Whether an operation in flight may not hold its rank up: see `Wait`; those named in ``beside`` usually do not."""
    if flight.waiting is not None:  # the black box says whether the rank waits for it now, or only posted it
        return not flight.waiting
    if flight.kind == "p2p" and flight.sends is not False:
        return True
    work = state.innermost_work()
    if work is None:
        return False
    return (flight.begun_ns or 0) < (work.begun_ns or 0) or flight.segment in beside or flight.kind == "p2p"


@dataclass(slots=True)
class _Scene:
    """A snapshot with what holds ranks up that run ahead, and the operations that were met."""

    snapshot: Snapshot
    streams: Streams
    unheard: frozenset[int]
    known: dict[tuple[int, int], Operation] = field(default_factory=dict)

    def operation(self, state: RankState, flight: Flight, apart: tuple[int, ...]) -> Operation | None:
        """The operation that a flight takes part in; None if its group is not known and it names no peer."""
        assert flight.group is not None
        assert flight.sequence is not None
        if flight.kind == "p2p" and flight.peer is not None:
            members = tuple(sorted((state.rank, flight.peer)))
            alone = () if self._peer_joined(state.rank, flight) else (flight.peer,)
            return Operation(flight.group, flight.sequence, flight.segment, members, alone)
        group = self.snapshot.groups.get(flight.group)
        if group is None:
            return None
        key = (flight.group, flight.sequence)
        if key not in self.known:
            absent = self._absent(group.ranks, flight, apart)
            self.known[key] = Operation(flight.group, flight.sequence, flight.segment, group.ranks, absent)
        return self.known[key]

    def _absent(self, members: tuple[int, ...], flight: Flight, apart: tuple[int, ...]) -> tuple[int, ...]:
        """Members that have not joined a collective. Where any has completed it that could not do so alone, all that
        have issued it have joined, whatever else they have in flight."""
        assert flight.group is not None
        assert flight.sequence is not None
        states = [self.snapshot.states[rank] for rank in members if rank in self.snapshot.states]
        if synchronises(flight.kind, flight.segment) and any(
            state.is_present and state.completed(flight.group) >= flight.sequence for state in states
        ):
            return tuple(
                state.rank
                for state in states
                if state.knows(flight.group) and state.issued(flight.group) < flight.sequence
            )
        return tuple(rank for rank in members if rank in apart or not self._joined(rank, flight.group, flight.sequence))

    def _joined(self, rank: int, group: int, sequence: int) -> bool:
        """Whether a rank has joined an operation. One without data is taken for absent unless it is excused.

        Nor does the part of a process that has ended or is stopped count unless it completed: the rest needs it. A
        rank that runs ahead has not joined what stands behind the head of its stream, though it was issued; what has a
        lower number than the head in the same group is not behind it. Of what it has issued it is taken to have joined
        what nothing places behind the head: its record is lost.
        """
        state = self.snapshot.states.get(rank)
        if state is None or rank in self.unheard:
            return rank in self.unheard
        if not state.is_present:
            return state.completed(group) >= sequence
        held = self.streams.holding.get(rank)
        if held is None or state.completed(group) >= sequence:
            return state.issued(group) >= sequence
        if sequence <= self.streams.unplaced.get(rank, {}).get(group, 0):
            return True
        return any(one.group == group and (one.sequence or 0) >= sequence for one in held)

    def _peer_joined(self, rank: int, flight: Flight) -> bool:
        """Whether the other end of a message has begun its part: the k-th send belongs to the k-th receive.

        In a group of one direction the number issued tells. In one that carries both, only a matching operation in
        flight does: two ranks that both receive (or both send) have not met. A peer that runs ahead has not come to
        what it issued: else the message would be complete.
        """
        assert flight.group is not None
        assert flight.sequence is not None
        assert flight.peer is not None
        state = self.snapshot.states.get(flight.peer)
        if state is None or flight.peer in self.unheard:
            return flight.peer in self.unheard
        if not state.is_present or flight.peer in self.streams.holding:
            return False
        toward = [other for other in state.flights if other.group == flight.group and other.peer == rank]
        same = [flight.sends is not None and other.sends == flight.sends for other in toward]
        if any(other.sequence == flight.sequence and not alike for other, alike in zip(toward, same, strict=True)):
            return True
        if any(same):
            return False
        group = self.snapshot.groups.get(flight.group)
        return group is not None and is_one_way(group.kind) and state.issued(flight.group) >= flight.sequence
