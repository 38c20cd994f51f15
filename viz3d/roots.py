"""From the ends of the chains of waits to accusations: what each root is stuck in, or what it left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .ends import Waiters, find_ends, untie
from .graph import Operation, Wait, WaitGraph
from .history import History
from .mismatch import Programs, Root
from .operations import synchronises
from .states import Flight, RankState, Snapshot
from .verdict import CulpritKind, GroupName

MAX_SUSPECTS = 64
"""So many ranks of a knot are held against their history; a knot of more is named as it is."""


def name_roots(snapshot: Snapshot, graph: WaitGraph, history: History, mismatches: Sequence[Root] = ()) -> list[Root]:
    """All roots of a snapshot in which nothing moves; the one with the most waiters first.

    ``mismatches`` are what `find_mismatches` gave; the graph was built with them.
    """
    ends = find_ends(graph)
    accused = {rank for root in mismatches for rank in root.ranks}
    missed = _first_missed(graph)
    single = (_single(snapshot, rank, missed.get(rank)) for rank in ends.ranks if rank not in accused)
    roots = [*mismatches, *single]
    accused |= set(ends.ranks)
    for knot in ends.knots:
        if not accused & set(knot):
            roots += _knot(snapshot, graph, history, knot)
    if not roots:
        roots = _asymmetric(snapshot, graph) or _unfinished(graph, snapshot)
    waiters = Waiters.of(graph)
    counted = [replace(root, waiters=len(waiters.waiting_for(root.ranks))) for root in roots]
    return sorted(counted, key=lambda root: (-root.waiters, -root.confidence, root.ranks))


def _single(snapshot: Snapshot, rank: int, missed: Wait | None) -> Root:
    """A rank that others wait for and that waits for nobody; ``missed``: the first wait in which it is missed."""
    state = snapshot.states.get(rank)
    if state is None:
        why = "there is no fresh data of it: it never started, its process is gone, or its host is"
        return Root((rank,), CulpritKind.DEAD, 0.5, why=why)
    if state.is_dead:
        return Root((rank,), CulpritKind.DEAD, 0.95, _segment(state), why="its process is gone without a word")
    if state.process_state == "exited" and missed is not None:
        flight, why = missed.flight, "it has ended, and the others still wait for it"
        return Root((rank,), CulpritKind.MISSING_CALL, 0.8, flight.segment, flight.group, flight.sequence, why=why)
    work = state.innermost_work()
    if work is not None or state.process_state == "stopped":
        confidence = 0.95 if state.process_state in ("stopped", "disk-sleep") else 0.85
        why = f"its process is {_process(state)}"
        return Root((rank,), CulpritKind.HOST_STUCK, confidence, _segment(state), why=why)
    flying = [flight for flight in state.flights if flight.communicates]
    if flying:
        return _in_operation(snapshot, rank, min(flying, key=lambda flight: flight.begun_ns or 0))
    why = f"nothing is in flight, its process is {_process(state)}"
    return Root((rank,), CulpritKind.HOST_STUCK, 0.6, None, why=why)


def _in_operation(snapshot: Snapshot, rank: int, flight: Flight) -> Root:
    """A rank that is in an operation which lacks nobody, and nothing else."""
    passed = _passed_by(snapshot, flight)
    if passed:
        kind, confidence, why = CulpritKind.DEVICE_STUCK, 0.7, _HELD.format(passed, flight.sequence)
    else:
        why = "everyone has joined the operation that it is in, and it does not complete"
        kind, confidence = CulpritKind.NETWORK, 0.3
    return Root((rank,), kind, confidence, flight.segment, flight.group, flight.sequence, why=why)


_HELD = "{} members have completed number {} of the group, and it has not"


def _passed_by(snapshot: Snapshot, flight: Flight) -> int:
    """How many members have completed a synchronising operation that a rank still has in flight; 0 if not most."""
    name = snapshot.groups.get(flight.group or 0)
    if name is None or flight.group is None or flight.sequence is None or not synchronises(flight.kind, flight.segment):
        return 0
    states = [snapshot.states[rank] for rank in name.ranks if rank in snapshot.states]
    done = sum(state.completed(flight.group) >= flight.sequence for state in states)
    return done if 2 * done >= len(name.ranks) else 0


def _process(state: RankState) -> str:
    return state.process_state or "in an unknown state"


def _segment(state: RankState) -> str | None:
    work = state.innermost_work()
    return None if work is None else work.segment


def _first_missed(graph: WaitGraph) -> dict[int, Wait]:
    """For every rank that is missed somewhere the wait for it that began first."""
    earliest: dict[int, Wait] = {}  # by operation
    for waits in graph.waits.values():
        for wait in waits:
            known = earliest.setdefault(id(wait.operation), wait)
            if _begun_ns(wait) < _begun_ns(known):
                earliest[id(wait.operation)] = wait
    first: dict[int, Wait] = {}
    for wait in sorted(earliest.values(), key=_begun_ns):
        for rank in wait.operation.absent:
            first.setdefault(rank, wait)
    return first


def _begun_ns(wait: Wait) -> int:
    return wait.flight.begun_ns or 0


def _knot(snapshot: Snapshot, graph: WaitGraph, history: History, knot: tuple[int, ...]) -> list[Root]:
    """Ranks that wait for each other: someone left out a call, someone is only held up in appearance, or a circle."""
    missing = _missing_calls(snapshot, graph, history, knot)
    if missing:
        return missing
    free, circles = untie(graph, snapshot, knot)
    if free is not None:
        state = snapshot.states[free]
        confidence = 0.7 if state.innermost_work() is not None else 0.4
        why = "what it has in flight runs beside its work and does not hold it up"
        return [Root((free,), CulpritKind.HOST_STUCK, confidence, _segment(state), why=why)]
    return [_circle(graph, circle) for circle in circles]


def _circle(graph: WaitGraph, circle: tuple[int, ...]) -> Root:
    inside = set(circle)
    within: dict[int, list[int]] = {}  # operation -> its absent members in the circle; each operation is read once
    waits = [
        wait
        for rank in circle
        for wait in graph.waits[rank]
        if not wait.weak and _absent_in(wait.operation, inside, within)
    ]
    kinds = {wait.flight.kind for wait in waits}
    kind = CulpritKind.P2P_CYCLE if kinds == {"p2p"} else CulpritKind.ORDER_INVERSION
    steps = [
        f"rank {wait.rank} waits in {wait.flight.segment} #{wait.flight.sequence} for rank "
        f"{', '.join(str(rank) for rank in _absent_in(wait.operation, inside, within)[:4])}"
        for wait in waits[:8]
    ]
    return Root(circle, kind, 0.6, waits[0].flight.segment if waits else None, why="; ".join(steps))


def _absent_in(operation: Operation, inside: set[int], known: dict[int, list[int]]) -> list[int]:
    if id(operation) not in known:
        known[id(operation)] = sorted(inside.intersection(operation.absent))
    return known[id(operation)]


def _missing_calls(snapshot: Snapshot, graph: WaitGraph, history: History, knot: tuple[int, ...]) -> list[Root]:
    """Ranks of a knot that went past an operation without it, while others wait for them there.

    A rank's own earlier steps tell how many operations of the one group come before the operation of the other group
    that it is in now; where there are none, ranks that hold the same place in other groups do.
    """
    inside = set(knot)
    programs = Programs(snapshot, history)
    waits = [wait for rank in knot for wait in graph.waits[rank] if wait.flight.kind == "collective"]
    operations = {
        id(wait.operation): wait.operation for wait in sorted(waits, key=lambda one: one.flight.begun_ns or 0)
    }
    checked: set[tuple[int, int]] = set()
    found: dict[int, Root] = {}
    for operation in operations.values():
        for rank in operation.absent:
            if rank not in inside or (rank, operation.group) in checked:
                continue
            if len(checked) == MAX_SUSPECTS:
                return list(found.values())
            checked.add((rank, operation.group))
            if programs.went_past(rank, operation.group):
                why = f"it has issued {snapshot.states[rank].issued(operation.group)} operations there, others wait in "
                why += f"number {operation.sequence}, and it is already past that point of its step"
                found[rank] = Root(
                    (rank,), CulpritKind.MISSING_CALL, 0.8, operation.segment, operation.group, operation.sequence,
                    why=why,
                )  # fmt: skip
    return list(found.values())


def _asymmetric(snapshot: Snapshot, graph: WaitGraph) -> list[Root]:
    """Members that have not completed a synchronising collective which most others have: stuck on their device."""
    roots = []
    for (group, sequence), operation in graph.joined.items():
        if not synchronises("collective", operation.segment):
            continue
        held = tuple(
            rank for rank in operation.members
            if any(flight.group == group and flight.sequence == sequence for flight in snapshot.states[rank].flights)
        )  # fmt: skip
        done = [rank for rank in operation.members if snapshot.states[rank].completed(group) >= sequence]
        if held and len(done) > len(held):
            why = _HELD.format(len(done), sequence)
            roots.append(Root(held, CulpritKind.DEVICE_STUCK, 0.7, operation.segment, group, sequence, why=why))
    return roots


def _unfinished(graph: WaitGraph, snapshot: Snapshot) -> list[Root]:
    """Operations that all members joined and none completes: nobody is at fault, the links between them may be."""
    stuck = [
        operation
        for (group, sequence), operation in graph.joined.items()
        if not any(snapshot.states[rank].completed(group) >= sequence for rank in operation.members)
    ]
    why = "all members have joined and none has completed"
    return [Root(one.members, CulpritKind.NETWORK, 0.3, one.segment, one.group, one.sequence, why=why) for one in stuck]


def group_name(snapshot: Snapshot, group: int | None) -> GroupName | None:
    """Name of a group by the store's id."""
    return None if group is None else snapshot.groups.get(group)
