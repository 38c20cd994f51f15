"""Who waits for whom: ranks, the operations that they are in, and the members that have not joined those.

Ranks and operations are nodes; an edge goes from a rank to an operation that it has in flight, and from an operation
to the ranks that it lacks. That keeps the graph as small as what is in flight, however large the groups are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .operations import is_one_way
from .states import Flight, RankState, Snapshot


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
    """All waits of a snapshot, and the operations that everyone joined and nobody completed."""

    waits: dict[int, list[Wait]] = field(default_factory=dict)
    joined: dict[tuple[int, int], Operation] = field(default_factory=dict)

    def waiting(self) -> set[int]:
        """Ranks that have an operation in flight that lacks someone."""
        return set(self.waits)

    def edges(self, *, weak: bool = True) -> dict[int, set[int]]:
        """Rank -> ranks that it waits for. Costs members times waiters: for small parts of a job only."""
        return {
            rank: {absent for wait in waits if weak or not wait.weak for absent in wait.operation.absent} - {rank}
            for rank, waits in self.waits.items()
        }


def build_graph(
    snapshot: Snapshot,
    asynchronous: Iterable[str] = (),
    deviants: Mapping[tuple[int, int], tuple[int, ...]] | None = None,
) -> WaitGraph:
    """Graph of a snapshot. ``asynchronous`` are names of segments that ranks usually let run beside their work.

    ``deviants`` are members of a collective, by (group, sequence), that are in it with another operation than the rest:
    they have not joined what the others are in, and wait for nobody there. A rank whose process has ended or is
    stopped waits for nobody, whatever it has in flight: it is not there to wait.
    """
    beside = frozenset(asynchronous)
    graph = WaitGraph()
    operations: dict[tuple[int, int], Operation] = {}
    for rank in sorted(snapshot.states):
        state = snapshot.states[rank]
        if not state.is_present:
            continue
        for flight in state.flights:
            if not flight.communicates:
                continue
            apart = () if deviants is None else deviants.get((flight.group or 0, flight.sequence or 0), ())
            if rank in apart:
                continue
            operation = _operation(snapshot, state, flight, operations, apart)
            if operation is None:
                continue
            if operation.absent:
                wait = Wait(rank, flight, operation, is_weak(state, flight, beside))
                graph.waits.setdefault(rank, []).append(wait)
            else:
                graph.joined[operation.group, operation.sequence] = operation
    return graph


def is_weak(state: RankState, flight: Flight, beside: frozenset[str]) -> bool:
    """Whether an operation in flight may not hold its rank up: see `Wait`; those named in ``beside`` usually do not."""
    if flight.kind == "p2p" and flight.sends is not False:
        return True
    work = state.innermost_work()
    if work is None:
        return False
    return (flight.begun_ns or 0) < (work.begun_ns or 0) or flight.segment in beside or flight.kind == "p2p"


def _operation(
    snapshot: Snapshot,
    state: RankState,
    flight: Flight,
    known: dict[tuple[int, int], Operation],
    apart: tuple[int, ...],
) -> Operation | None:
    """The operation that a flight takes part in; None if its group is not known and it names no peer."""
    assert flight.group is not None
    assert flight.sequence is not None
    if flight.kind == "p2p" and flight.peer is not None:
        members = tuple(sorted((state.rank, flight.peer)))
        alone = () if _peer_joined(snapshot, state.rank, flight) else (flight.peer,)
        return Operation(flight.group, flight.sequence, flight.segment, members, alone)
    group = snapshot.groups.get(flight.group)
    if group is None:
        return None
    key = (flight.group, flight.sequence)
    if key not in known:
        absent = tuple(
            rank for rank in group.ranks if rank in apart or not _joined(snapshot, rank, flight.group, flight.sequence)
        )
        known[key] = Operation(flight.group, flight.sequence, flight.segment, group.ranks, absent)
    return known[key]


def _joined(snapshot: Snapshot, rank: int, group: int, sequence: int) -> bool:
    """Whether a rank has issued an operation. One without data is taken for absent: that is all that is known.

    Nor does the part of a process that has ended or is stopped count unless it completed: the rest needs it.
    """
    state = snapshot.states.get(rank)
    if state is None:
        return False
    done = state.issued(group) if state.is_present else state.completed(group)
    return done >= sequence


def _peer_joined(snapshot: Snapshot, rank: int, flight: Flight) -> bool:
    """Whether the other end of a message has begun its part: the k-th send belongs to the k-th receive.

    In a group of one direction the number issued tells. In one that carries both, only a matching operation in
    flight does: two ranks that both receive (or both send) have not met.
    """
    assert flight.group is not None
    assert flight.sequence is not None
    assert flight.peer is not None
    state = snapshot.states.get(flight.peer)
    if state is None or not state.is_present:
        return False
    toward = [other for other in state.flights if other.group == flight.group and other.peer == rank]
    same = [flight.sends is not None and other.sends == flight.sends for other in toward]
    if any(other.sequence == flight.sequence and not alike for other, alike in zip(toward, same, strict=True)):
        return True
    if any(same):
        return False
    group = snapshot.groups.get(flight.group)
    return group is not None and is_one_way(group.kind) and state.issued(flight.group) >= flight.sequence
