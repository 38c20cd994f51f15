"""From the ends of the chains of waits to accusations: what each root is stuck in, or what it left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..profiler.rendezvous import RENDEZVOUS
from ..profiler.vocabulary import SegmentKind
from .ends import Waiters, find_ends, untie
from .graph import Operation, Wait, WaitGraph
from .history import History
from .joined import judge_joined, minority, stands_in, told_held, unfinished
from .mismatch import Programs, Root
from .operations import synchronises
from .states import RankState, Snapshot
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
    waiting_for_nobody = [rank for rank in ends.ranks if rank not in accused]
    joined, covered = judge_joined(snapshot, graph, waiting_for_nobody, history.asynchronous())
    single = (_single(snapshot, rank, missed.get(rank)) for rank in waiting_for_nobody if rank not in covered)
    roots = [*mismatches, *joined, *single]
    accused |= set(ends.ranks)
    for knot in ends.knots:
        if not accused & set(knot):
            roots += _knot(snapshot, graph, history, knot)
    named = {rank for root in roots for rank in root.ranks}
    roots += _asymmetric(snapshot, graph, history.asynchronous(), named)
    if not roots:
        roots = _unfinished(graph, snapshot)
    waiters = Waiters.of(graph)
    counted = [replace(root, waiters=len(waiters.waiting_for(root.ranks))) for root in roots]
    return sorted(counted, key=lambda root: (-root.waiters, -root.confidence, root.ranks))


def _single(snapshot: Snapshot, rank: int, missed: Wait | None) -> Root:
    """A rank that others wait for and that waits for nobody; ``missed``: the first wait in which it is missed."""
    state = snapshot.states.get(rank)
    if state is None:
        return _silent(snapshot, rank, missed)
    if state.is_dead:
        return Root((rank,), CulpritKind.DEAD, 0.95, _segment(state), why="its process is gone without a word")
    if state.process_state == "exited" and missed is not None:
        flight, why = missed.flight, "it has ended, and the others still wait for it"
        return Root((rank,), CulpritKind.MISSING_CALL, 0.8, flight.segment, flight.group, flight.sequence, why=why)
    work = state.innermost_work()
    if state.process_state != "stopped" and (starting := _not_started(snapshot, rank, missed)) is not None:
        return starting
    if work is not None or state.process_state == "stopped":
        confidence = 0.95 if state.process_state in ("stopped", "disk-sleep") else 0.85
        why = f"its process is {_process(state)}"
        return Root((rank,), CulpritKind.HOST_STUCK, confidence, _segment(state), why=why)
    why = f"nothing is in flight, its process is {_process(state)}"
    return Root((rank,), CulpritKind.HOST_STUCK, 0.6, None, why=why)


def _not_started(snapshot: Snapshot, rank: int, missed: Wait | None) -> Root | None:
    """A rank that has not come to the rendezvous, or not out of its set-up; None for one that has."""
    process = _process(snapshot.states[rank])
    if missed is not None and missed.flight.segment == RENDEZVOUS:
        why = f"the others are in the rendezvous, and it has not come; its process is {process}"
        segment = _segment(snapshot.states[rank])
        return Root((rank,), CulpritKind.INIT, 0.85, segment, missed.flight.group, 1, why=why)
    if _is_starting(snapshot, rank):
        why = f"it has not begun its first step, its process is {process}"
        return Root((rank,), CulpritKind.INIT, 0.8, _segment(snapshot.states[rank]), why=why)
    return None


def _silent(snapshot: Snapshot, rank: int, missed: Wait | None) -> Root:
    """A rank without fresh data: where the others wait for it in their set-up, it did not come out of its own."""
    if missed is not None and _is_starting(snapshot, missed.rank):
        why = "there is no data of it, and the others wait for it in their set-up"
        return Root((rank,), CulpritKind.INIT, 0.6, missed.flight.segment, missed.flight.group, why=why)
    why = "there is no fresh data of it: it never started, its process is gone, or its host is"
    return Root((rank,), CulpritKind.DEAD, 0.5, why=why)


def _is_starting(snapshot: Snapshot, rank: int) -> bool:
    """Whether a rank is still in its set-up: before its first step, in work of that kind."""
    state = snapshot.states[rank]
    work = state.innermost_work()
    return state.step is None and work is not None and work.kind == SegmentKind.INIT


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
    return [_desync(snapshot, graph, history, circle) or _circle(graph, circle) for circle in circles]


def _desync(snapshot: Snapshot, graph: WaitGraph, history: History, circle: tuple[int, ...]) -> Root | None:
    """Ranks of a circle of collectives that count another step than most of it: they are not where the others are."""
    first = next((wait for rank in circle for wait in graph.waits[rank] if wait.flight.kind == "collective"), None)
    steps = {rank: snapshot.states[rank].step for rank in circle if rank in snapshot.states}
    few = minority(steps)
    if first is None or few is None:
        return None
    ranks, told = few
    why = f"ranks that wait for each other are in different steps: {told}"
    twice = history.repeated(min(step for step in steps.values() if step is not None)) & set(steps)
    if 0 < len(twice) < len(steps):  # no vote: they ran the step before, and do it again
        ranks, why = tuple(sorted(twice)), f"{why}; they have run a step twice"
    own = [wait for wait in graph.waits[ranks[0]] if not wait.weak] or [first]
    sure = 0.7 if len(ranks) < len(circle) else 0.4
    return Root(
        ranks, CulpritKind.ITERATION_DESYNC, sure, own[0].flight.segment, own[0].flight.group,
        own[0].flight.sequence, why=why,
    )  # fmt: skip


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
    waits = [
        wait for rank in knot for wait in graph.waits[rank]
        if wait.flight.kind == "collective" or wait.flight.sends is False
    ]  # fmt: skip
    operations = {
        id(wait.operation): wait.operation for wait in sorted(waits, key=lambda one: one.flight.begun_ns or 0)
    }
    checked: set[tuple[int, int]] = set()
    found: dict[int, Root] = {}
    for operation in operations.values():
        for rank in operation.absent:
            if rank not in inside or (rank, operation.group) in checked:
                continue
            if not snapshot.states[rank].knows(operation.group):
                continue
            if len(checked) == MAX_SUSPECTS:
                return _crosswise_or(graph, found)
            checked.add((rank, operation.group))
            if programs.went_past(rank, operation.group):
                why = f"it has issued {snapshot.states[rank].issued(operation.group)} operations there, others wait in "
                why += f"number {operation.sequence}, and it is already past that point of its step"
                found[rank] = Root(
                    (rank,), CulpritKind.MISSING_CALL, 0.8, operation.segment, operation.group, operation.sequence,
                    why=why,
                )  # fmt: skip
    return _crosswise_or(graph, found)


def _crosswise_or(graph: WaitGraph, missing: Mapping[int, Root]) -> list[Root]:
    """Calls that seem to be missing: one order inversion if they are crosswise, else each as it is."""
    crosswise = _inverted(graph, missing)
    return list(missing.values()) if crosswise is None else [crosswise]


def _inverted(graph: WaitGraph, found: Mapping[int, Root]) -> Root | None:
    """Calls that seem to be missing crosswise: each rank waits for one that waits in the call that another lacks.

    Neither left out a call, for neither can come to it: they issue the operations of their groups in another order.
    A rank that waits for those who wait for it in the call that it lacks itself needs no other to be stuck.
    """
    if len({root.group for root in found.values()}) < 2:
        return None
    stuck_in: dict[int, set[int]] = {}  # rank -> the groups in which it waits
    for rank, waits in graph.waits.items():
        stuck_in[rank] = {wait.operation.group for wait in waits}
    for rank, root in found.items():
        others = {one.group for one in found.values()} - {root.group}
        ahead = {absent for wait in graph.waits[rank] for absent in wait.operation.absent}
        theirs = [stuck_in.get(one, set()) for one in ahead]
        if any(root.group in groups for groups in theirs) or not any(others & groups for groups in theirs):
            return None
    told = "; ".join(f"rank {rank} waits elsewhere before {root.segment} #{root.sequence}" for rank, root in
                     list(found.items())[:4])  # fmt: skip
    ranks = tuple(sorted(found))
    own = next((wait.flight for wait in graph.waits[ranks[0]] if not wait.weak), None)
    why = f"each waits for ranks that wait for the other, which are operations in another order: {told}"
    return Root(ranks, CulpritKind.ORDER_INVERSION, 0.7, None if own is None else own.segment, why=why)


def _asymmetric(snapshot: Snapshot, graph: WaitGraph, beside: frozenset[str], accused: set[int]) -> list[Root]:
    """Ranks that stand in a synchronising collective which half of its members or more have completed."""
    roots = []
    for (group, sequence), operation in graph.joined.items():
        if not synchronises("collective", operation.segment):
            continue
        states = [snapshot.states[rank] for rank in operation.members if rank in snapshot.states]
        done = [state.rank for state in states if state.is_present and state.completed(group) >= sequence]
        if not done or 2 * len(done) < len(operation.members):
            continue
        held = tuple(
            state.rank for state in states
            if state.rank not in accused and snapshot.hosts.get(state.rank) not in snapshot.lagging
            and (flight := stands_in(state, beside)) is not None
            and (flight.group, flight.sequence) == (group, sequence)
        )  # fmt: skip
        if held:
            why = told_held(done, sequence)
            roots.append(Root(held, CulpritKind.DEVICE_STUCK, 0.7, operation.segment, group, sequence, why=why))
    return roots


def _unfinished(graph: WaitGraph, snapshot: Snapshot) -> list[Root]:
    """Operations that all members joined and none completes: nobody is at fault, the links between them may be."""
    return [
        unfinished(snapshot, operation.members, operation.segment, key)
        for key, operation in graph.joined.items()
        if not graph.unheard & set(operation.members)
        and not any(snapshot.states[rank].completed(key[0]) >= key[1] for rank in operation.members)
    ]


def group_name(snapshot: Snapshot, group: int | None) -> GroupName | None:
    """Name of a group by the store's id."""
    return None if group is None else snapshot.groups.get(group)
