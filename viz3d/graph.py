"""Who waits for whom: ranks, the operations that they are in, and the members that have not joined those.

Ranks and operations are nodes; an edge goes from a rank to an operation that it has in flight, and from an operation
to the ranks that it lacks. That keeps the graph as small as what is in flight, however large the groups are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .snapshot import Flight, RankState, Snapshot


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
                wait = Wait(rank, flight, operation, _is_weak(state, flight, beside))
                graph.waits.setdefault(rank, []).append(wait)
            else:
                graph.joined[operation.group, operation.sequence] = operation
    return graph


def _is_weak(state: RankState, flight: Flight, beside: frozenset[str]) -> bool:
    if flight.is_send:
        return True
    work = state.innermost_work()
    if work is None:
        return False
    return (flight.begun_ns or 0) < (work.begun_ns or 0) or flight.segment in beside or flight.is_receive


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
    if any(other.is_send != flight.is_send and other.sequence == flight.sequence for other in toward):
        return True
    if any(other.is_send == flight.is_send for other in toward):
        return False
    group = snapshot.groups.get(flight.group)
    one_way = group is not None and any(word in group.kind for word in ("forward", "backward"))
    return one_way and state.issued(flight.group) >= flight.sequence


def components(edges: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components, those without a way out first (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for start in edges:
        if start in index:
            continue
        path = [(start, iter(edges.get(start, ())))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    path.append((successor, iter(edges.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    at = _last_index(stack, node)
                    part = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(part)
                    found.append(part)
    return found


def _last_index(stack: Sequence[int], node: int) -> int:
    at = len(stack) - 1
    while stack[at] != node:
        at -= 1
    return at


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the chains of waits end: ranks that wait for nobody, and knots of ranks that wait for each other."""

    ranks: tuple[int, ...]
    knots: tuple[tuple[int, ...], ...]


def find_ends(graph: WaitGraph) -> Ends:
    """Ends of all chains of waits: see `Ends`. A rank that nobody waits for and that waits for nobody is none."""
    ends = _ends(_number(graph))
    single = sorted(ranks[0] for ranks in ends if ranks[0] not in graph.waits)
    knots = sorted(tuple(ranks) for ranks in ends if ranks[0] in graph.waits)
    return Ends(tuple(single), tuple(knots))


def untie(graph: WaitGraph, snapshot: Snapshot, knot: tuple[int, ...]) -> tuple[int | None, list[tuple[int, ...]]]:
    """Leave out a knot's weak waits: the rank that is then free and stopped first, or the knots that remain."""
    held = WaitGraph()
    for rank in knot:
        strong = [wait for wait in graph.waits[rank] if not wait.weak]
        if strong:
            held.waits[rank] = strong
    numbered = _number(held, within=set(knot))
    for rank in knot:
        numbered.setdefault(rank, [])
    ends = _ends(numbered)
    free = [ranks[0] for ranks in ends if ranks[0] not in held.waits]
    if free:
        return min(free, key=lambda rank: _stalled_since(snapshot, rank)), []
    return None, [tuple(ranks) for ranks in ends]


def _ends(numbered: Mapping[int, list[int]]) -> list[list[int]]:
    """The ranks of every component that no edge leaves."""
    parts = components(numbered)
    home = {node: number for number, part in enumerate(parts) for node in part}
    ends = []
    for number, part in enumerate(parts):
        ranks = sorted(node for node in part if node >= 0)
        if ranks and all(home[successor] == number for node in part for successor in numbered.get(node, ())):
            ends.append(ranks)
    return ends


def _stalled_since(snapshot: Snapshot, rank: int) -> tuple[int, int]:
    """Moment at which a rank's innermost work began: the root of a stall is the first to stop moving."""
    state = snapshot.states.get(rank)
    work = state.innermost_work() if state is not None else None
    return (work.begun_ns if work is not None and work.begun_ns is not None else 2**63, rank)


def _number(graph: WaitGraph, within: set[int] | None = None) -> dict[int, list[int]]:
    """Edges rank -> operation -> rank, of the ranks ``within`` only if given; operations are numbered -1, -2, ..."""
    edges: dict[int, list[int]] = {}
    numbers: dict[int, int] = {}
    for rank, waits in graph.waits.items():
        own = edges.setdefault(rank, [])
        for wait in waits:
            number = numbers.get(id(wait.operation))
            if number is None:
                number = numbers[id(wait.operation)] = -1 - len(numbers)
                absent = [other for other in wait.operation.absent if within is None or other in within]
                edges[number] = absent
                for other in absent:
                    edges.setdefault(other, [])
            own.append(number)
    return edges


def waiters_of(graph: WaitGraph, roots: Iterable[int]) -> set[int]:
    """Ranks whose chain of waits reaches one of the roots; the roots themselves are not among them."""
    targets = set(roots)
    backwards: dict[int, list[int]] = {}
    for node, successors in _number(graph).items():
        for successor in successors:
            backwards.setdefault(successor, []).append(node)
    seen, todo = set(targets), list(targets)
    while todo:
        for node in backwards.get(todo.pop(), ()):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return {node for node in seen if node >= 0} - targets
