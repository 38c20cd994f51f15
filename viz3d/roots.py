"""From the ends of the chains of waits to accusations: what each root is stuck in, or what it left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..profiler.rendezvous import RENDEZVOUS
from ..profiler.vocabulary import SegmentKind
from .ends import Waiters, find_ends
from .graph import Operation, Wait, WaitGraph
from .history import History
from .joined import HARDLY_ANY, judge_joined, judge_only, stands_in, told_held, unfinished
from .knots import judge_knot
from .mismatch import Root
from .operations import synchronises
from .states import RankState, Snapshot
from .verdict import CulpritKind, GroupName

LINKS = frozenset({CulpritKind.NETWORK, CulpritKind.LIBRARY})
"""Roots that are a suspicion at best: all have joined an operation, and nothing says why it does not complete."""

MAX_COUNTED = 256
"""The waiters of so many roots are counted one by one."""


def name_roots(snapshot: Snapshot, graph: WaitGraph, history: History, mismatches: Sequence[Root] = ()) -> list[Root]:
    """All roots of a snapshot in which nothing moves; the one with the most waiters first.

    ``mismatches`` are what `find_mismatches` gave; the graph was built with them.
    """
    ends = find_ends(graph)
    accused = {rank for root in mismatches for rank in root.ranks}
    missed = _first_missed(graph)
    waiting_for_nobody = [rank for rank in ends.ranks if rank not in accused]
    joined, covered = judge_joined(snapshot, graph, waiting_for_nobody, history.asynchronous())
    single = _by_silent_host(
        snapshot, (_single(snapshot, rank, missed.get(rank)) for rank in waiting_for_nobody if rank not in covered)
    )
    roots = [*mismatches, *joined, *single]
    accused |= set(ends.ranks)
    for knot in ends.knots:
        if not accused & set(knot):
            judged = judge_knot(snapshot, graph, history, knot)
            roots += judged
            accused |= {rank for root in judged for rank in root.ranks}
    named = {rank for root in roots for rank in root.ranks}
    roots += _asymmetric(snapshot, graph, history.asynchronous(), named)
    if not roots:
        roots = _unfinished(graph, snapshot)
    if any(not (root.is_alone or root.is_suspicion or root.kind in LINKS) for root in roots):
        roots = [replace(root, is_suspicion=True) if root.is_alone else root for root in roots]
    counted = _counted(roots, Waiters.of(graph))
    return sorted(counted, key=lambda root: (-root.waiters, -root.confidence, root.ranks))


def _counted(roots: Sequence[Root], waiters: Waiters) -> list[Root]:
    """Roots with how many ranks wait for each; of very many, how many wait for any of them."""
    if len(roots) <= MAX_COUNTED:
        return [replace(root, waiters=len(waiters.waiting_for(root.ranks))) for root in roots]
    together = len(waiters.waiting_for(rank for root in roots for rank in root.ranks))
    return [replace(root, waiters=together) for root in roots]


def _by_silent_host(snapshot: Snapshot, roots: Iterable[Root]) -> Iterator[Root]:
    """Ranks that fell silent with all others of their host are one root, with those that nobody is seen to wait for."""
    heard = {snapshot.hosts.get(rank) for rank in snapshot.states}
    gone: set[str] = set()
    for root in roots:
        host = snapshot.hosts.get(root.ranks[0])
        if root.kind != CulpritKind.DEAD or root.ranks[0] in snapshot.states or host is None or host in heard:
            yield root
        elif host not in gone:
            gone.add(host)
            ranks = tuple(rank for rank in snapshot.missing if snapshot.hosts.get(rank) == host)
            why = f"nothing is heard of {host} any more" if len(ranks) > 1 else root.why
            yield replace(root, ranks=ranks, why=why)


def _single(snapshot: Snapshot, rank: int, missed: Wait | None) -> Root:
    """A rank that others wait for and that waits for nobody; ``missed``: the first wait in which it is missed."""
    state = snapshot.states.get(rank)
    if state is None:
        return _silent(snapshot, rank, missed)
    if state.is_dead:
        return Root((rank,), CulpritKind.DEAD, 0.95, state.works_in, why="its process is gone without a word")
    if state.process_state == "exited" and missed is not None:
        flight, why = missed.flight, "it has ended, and the others still wait for it"
        return Root((rank,), CulpritKind.MISSING_CALL, 0.8, flight.segment, flight.group, flight.sequence, why=why)
    work = state.innermost_work()
    if state.process_state != "stopped" and (starting := _not_started(snapshot, rank, missed)) is not None:
        return starting
    if work is not None or state.process_state == "stopped":
        confidence = 0.95 if state.process_state in ("stopped", "disk-sleep") else 0.85
        why = f"its process is {_process(state)}"
        return Root((rank,), CulpritKind.HOST_STUCK, confidence, state.works_in, why=why)
    why, is_open = f"nothing is in flight, its process is {_process(state)}", False
    if missed is not None and (is_open := lacks_number(snapshot, rank, missed.operation)):
        why += ", and nothing tells how far it is where the others wait for it"
    return Root((rank,), CulpritKind.HOST_STUCK, 0.3 if is_open else 0.6, None, why=why, is_suspicion=is_open)


def lacks_number(snapshot: Snapshot, rank: int, operation: Operation) -> bool:
    """Whether a rank that others wait for may be in the operation: it has nothing in flight, and its number in the
    group, in which others have completed operations before, is lost. In a small group chance does not lose it."""
    state = snapshot.states.get(rank)
    if (
        len(operation.members) < HARDLY_ANY
        or state is None
        or not state.is_present
        or state.flights
        or not state.progress
        or state.knows(operation.group)
    ):
        return False
    others = (snapshot.states.get(other) for other in operation.members if other != rank)
    return any(other is not None and other.completed(operation.group) > 0 for other in others)


def _not_started(snapshot: Snapshot, rank: int, missed: Wait | None) -> Root | None:
    """A rank that has not come to the rendezvous, or not out of its set-up; None for one that has."""
    process = _process(snapshot.states[rank])
    if missed is not None and missed.flight.segment == RENDEZVOUS:
        why = f"the others are in the rendezvous, and it has not come; its process is {process}"
        segment = snapshot.states[rank].works_in
        return Root((rank,), CulpritKind.INIT, 0.85, segment, missed.flight.group, 1, why=why)
    if _is_starting(snapshot, rank):
        why = f"it has not begun its first step, its process is {process}"
        return Root((rank,), CulpritKind.INIT, 0.8, snapshot.states[rank].works_in, why=why)
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
            and (flight := stands_in(state, beside, graph.streams)) is not None
            and (flight.group, flight.sequence) == (group, sequence)
        )  # fmt: skip
        if held:
            why = told_held(done, sequence)
            roots.append(Root(held, CulpritKind.DEVICE_STUCK, 0.7, operation.segment, group, sequence, why=why))
    return roots


def _unfinished(graph: WaitGraph, snapshot: Snapshot) -> list[Root]:
    """Operations that all members joined and none completes: nobody is at fault, the links between them may be."""
    found = [unfinished(snapshot, one.members, one.segment, (one.group, one.sequence)) for one in held(graph, snapshot)]
    if not found and graph.unheard:
        found = [judge_only(snapshot, graph)]
    return [root for root in found if root is not None]


def held(graph: WaitGraph, snapshot: Snapshot) -> list[Operation]:
    """Operations that all members are seen to have joined and none has completed."""
    return [
        operation
        for (group, sequence), operation in graph.joined.items()
        if not graph.unheard & set(operation.members)
        and not any(snapshot.states[rank].completed(group) >= sequence for rank in operation.members)
    ]


def group_name(snapshot: Snapshot, group: int | None) -> GroupName | None:
    """Name of a group by the store's id."""
    return None if group is None else snapshot.groups.get(group)
