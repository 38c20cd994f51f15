"""Ranks that wait for each other: someone left out a call or took it late, counts another step, or a true circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .ends import find_ends, untie
from .graph import Operation, Wait, WaitGraph
from .history import History
from .joined import minority
from .mismatch import Root
from .order import out_of_order
from .programs import MAX_ASKED, MAX_WITNESSES, Programs
from .states import Snapshot
from .unsent import find_unsent
from .verdict import CulpritKind

MAX_CROSSWISE = 256
"""More calls that seem to be missing are not held against each other."""

ENOUGH_ASKED = 16
"""Of a knot of more ranks than are asked, no more than so many once a missing call is found."""


def judge_knot(snapshot: Snapshot, graph: WaitGraph, history: History, knot: tuple[int, ...]) -> list[Root]:
    """Ranks that wait for each other: someone left out a call, someone is only held up in appearance, or a circle."""
    programs = Programs(snapshot, history)
    missing = _missing_calls(snapshot, graph, programs, knot)
    if missing:
        return _replica(snapshot, missing) or missing
    unsent = find_unsent(snapshot, graph, history, knot, only_shifted=True)
    if unsent is not None:
        return [unsent]
    late = out_of_order(snapshot, graph, programs, knot)
    if late is not None:
        return [replace(late, is_suspicion=False)]  # the circle is seen, and somebody has made it
    if all(_may_be_held(snapshot, graph, rank) for rank in knot):
        return [replace(_circle(graph, knot, weak=True), confidence=0.4, is_suspicion=True)]
    roots = _as_it_is(snapshot, graph, history, programs, knot)
    return [_unasked(root) for root in roots] if programs.is_spent else roots


def _unasked(root: Root) -> Root:
    """What remains of a root where not all ranks could be asked: one of the others may have left out a call."""
    why = f"{root.why}; only {MAX_ASKED:,} ranks were asked for their usual steps"
    return replace(root, confidence=min(root.confidence, 0.4), why=why, is_suspicion=True)


def _as_it_is(
    snapshot: Snapshot, graph: WaitGraph, history: History, programs: Programs, knot: tuple[int, ...]
) -> list[Root]:
    """What a knot comes to of which the steps before tell nothing: who is held up in appearance only, or circles."""
    free, circles = untie(graph, snapshot, knot)
    if free:
        why = "what it has in flight runs beside its work and does not hold it up"
        return [_free(snapshot, rank, why, is_suspicion=len(free) > 1) for rank in free]
    roots = []
    for circle in circles:
        told = find_unsent(snapshot, graph, history, circle) or _desync(snapshot, graph, history, circle)
        roots += [told] if told else [_circle(graph, seen) for seen in _as_seen(snapshot, graph, programs, circle)]
    return roots


def _as_seen(
    snapshot: Snapshot, graph: WaitGraph, programs: Programs, circle: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """What remains of a circle without the waits for ranks that may have joined: nothing tells how far they are in that
    group, and by their own steps they have come to it before they came to where they wait."""
    inside = set(circle)
    known: dict[int, Operation] = {}
    seen = WaitGraph()
    for rank in circle:
        for wait in graph.waits[rank]:
            one = wait.operation
            if id(one) not in known:
                absent = [peer for peer in one.absent if peer in inside]
                seen_to_lack = [peer for peer in absent if not _may_be_in(snapshot, graph, programs, peer, one)]
                known[id(one)] = replace(one, absent=tuple(seen_to_lack))
            if not wait.weak and known[id(one)].absent:
                seen.waits.setdefault(rank, []).append(replace(wait, operation=known[id(one)]))
    return find_ends(seen).knots


def _may_be_in(snapshot: Snapshot, graph: WaitGraph, programs: Programs, rank: int, operation: Operation) -> bool:
    """Whether a rank that waits elsewhere has usually issued an operation there, and its records in the group are lost:
    those of others are not."""
    state, group = snapshot.states[rank], operation.group
    if state.knows(group) or not state.progress:
        return False
    usual = (programs.expected(state, wait.flight, group) for wait in graph.waits[rank] if not wait.weak)
    return any(number is not None and number >= operation.sequence for number in usual)


def _may_be_held(snapshot: Snapshot, graph: WaitGraph, rank: int) -> bool:
    """Whether a rank has sends in flight and nothing else, and it is not known if it waits for them."""
    waits = graph.waits[rank]
    has_work = rank in snapshot.states and snapshot.states[rank].innermost_work() is not None
    return not has_work and all(one.weak and one.flight.sends and one.flight.waiting is None for one in waits)


def _free(snapshot: Snapshot, rank: int, why: str, *, is_suspicion: bool) -> Root:
    """A rank of a knot that nothing holds up; a suspicion where it cannot be told which of several stopped first."""
    state = snapshot.states[rank]
    confidence = 0.7 if state.innermost_work() is not None and not is_suspicion else 0.4
    return Root((rank,), CulpritKind.HOST_STUCK, confidence, state.works_in, why=why, is_suspicion=is_suspicion)


def _desync(snapshot: Snapshot, graph: WaitGraph, history: History, circle: tuple[int, ...]) -> Root | None:
    """Ranks of a circle of collectives that count another step than most of it: they are not where the others are."""
    first = next((wait for rank in circle for wait in graph.waits[rank] if wait.flight.kind == "collective"), None)
    steps = {rank: snapshot.states[rank].step for rank in circle if rank in snapshot.states}
    few = minority(steps)
    if first is None or few is None:
        return None
    ranks, told = few
    why = f"ranks that wait for each other are in different steps: {told}"
    are_ahead = not graph.streams.holding.keys().isdisjoint(circle)  # then steps differ by how far each host is
    twice = history.repeated(min(step for step in steps.values() if step is not None)) & set(steps)
    if 0 < len(twice) < len(steps):  # no vote: they ran the step before, and do it again
        ranks, why = tuple(sorted(twice)), f"{why}; they have run a step twice"
    elif are_ahead:
        return None
    own = [wait for wait in graph.waits[ranks[0]] if not wait.weak] or [first]
    sure = 0.7 if len(ranks) < len(circle) else 0.4
    return Root(
        ranks, CulpritKind.ITERATION_DESYNC, sure, own[0].flight.segment, own[0].flight.group,
        own[0].flight.sequence, why=why,
    )  # fmt: skip


def _circle(graph: WaitGraph, circle: tuple[int, ...], *, weak: bool = False) -> Root:
    """Ranks that wait for each other, edge by edge; ``weak``: by what may not hold them up, too."""
    inside = set(circle)
    within: dict[int, list[int]] = {}  # operation -> its absent members in the circle; each operation is read once
    waits = [
        wait
        for rank in circle
        for wait in graph.waits[rank]
        if (weak or not wait.weak) and _absent_in(wait.operation, inside, within)
    ]
    kinds = {wait.flight.kind for wait in waits}
    kind = CulpritKind.P2P_CYCLE if kinds == {"p2p"} else CulpritKind.ORDER_INVERSION
    steps = [
        f"rank {wait.rank} waits in {wait.flight.segment} #{wait.flight.sequence} for rank "
        f"{', '.join(str(rank) for rank in _absent_in(wait.operation, inside, within)[:4])}"
        for wait in waits[:8]
    ]
    segment = min((wait.flight.segment for wait in waits), default=None)
    return Root(circle, kind, 0.6, segment, why="; ".join(steps))


def _absent_in(operation: Operation, inside: set[int], known: dict[int, list[int]]) -> list[int]:
    if id(operation) not in known:
        known[id(operation)] = sorted(inside.intersection(operation.absent))
    return known[id(operation)]


def _missing_calls(snapshot: Snapshot, graph: WaitGraph, programs: Programs, knot: tuple[int, ...]) -> list[Root]:
    """Ranks of a knot that went past an operation without it, while others wait for them there.

    A rank's own earlier steps tell how many operations of the one group come before the operation of the other group
    that it is in now; where there are none, ranks that hold the same place in other groups do. Somebody must have come
    as usual to where it is missed: where the whole job has one operation more than usual, nobody has left out any.
    """
    inside = set(knot)
    waits = [
        wait for rank in knot for wait in graph.waits[rank]
        if wait.flight.kind == "collective" or wait.flight.sends is False
    ]  # fmt: skip
    waiting: dict[int, list[Wait]] = {}  # operation -> who waits in it
    for wait in sorted(waits, key=lambda one: one.flight.begun_ns or 0):
        waiting.setdefault(id(wait.operation), []).append(wait)
    checked: set[tuple[int, int]] = set()
    found: dict[int, Root] = {}
    operations, is_large = list(waiting.values()), len(knot) > MAX_ASKED
    if is_large:  # not all are asked: what most have joined was left out by those who lack
        operations.sort(key=lambda own: len(own[0].operation.absent) / len(own[0].operation.members))
    for own in operations:
        operation, is_message = own[0].operation, own[0].flight.kind == "p2p"
        for rank in operation.absent:
            if rank not in inside or (rank, operation.group) in checked:
                continue
            if is_large and found and programs.asked >= ENOUGH_ASKED:
                break
            checked.add((rank, operation.group))
            state = snapshot.states[rank]
            if (
                state.knows(operation.group)
                and programs.went_past(rank, operation.group, receives_tell=not is_message)
                and any(programs.is_at_its_point(wait.rank, wait.flight) for wait in own[:MAX_WITNESSES])
            ):
                why = f"it has issued {state.issued(operation.group)} operations there, others wait in number "
                why += f"{operation.sequence}, and it is already past that point of its step"
                found[rank] = Root(
                    (rank,), CulpritKind.MISSING_CALL, 0.8, operation.segment, operation.group, operation.sequence,
                    why=why,
                )  # fmt: skip
    return _crosswise_or(graph, found)


def _replica(snapshot: Snapshot, missing: Sequence[Root]) -> list[Root] | None:
    """Calls that a whole replica seems to have left out: it counts another step than the others. None if it is none."""
    ranks = {rank for root in missing for rank in root.ranks}
    if any(root.kind != CulpritKind.MISSING_CALL for root in missing):
        return None
    for axis in snapshot.axes:
        index = {snapshot.coordinates.get(rank, {}).get(axis) for rank in ranks}
        if len(index) > 1 or None in index:
            continue
        there = {rank for rank in snapshot.states if snapshot.coordinates.get(rank, {}).get(axis) in index}
        if 1 < len(there) < len(snapshot.states) and _are_elsewhere(snapshot, there):
            first = missing[0]
            why = f"all ranks that hold index {index.pop()} on {axis} are past {first.segment} without it: "
            why += "they are not in the step in which the others are"
            return [replace(first, ranks=tuple(sorted(there)), kind=CulpritKind.ITERATION_DESYNC, why=why)]
    return None


def _are_elsewhere(snapshot: Snapshot, ranks: set[int]) -> bool:
    """Whether ranks count one step, or are in one piece of work, and none of the others is."""
    ways = [(state.rank in ranks, state.step, state.works_in) for state in snapshot.states.values()]
    for at in (1, 2):
        own, others = ({way[at] for way in ways if way[0] is inside} for inside in (True, False))
        if len(own) == 1 and own.isdisjoint(others):
            return True
    return False


def _crosswise_or(graph: WaitGraph, missing: Mapping[int, Root]) -> list[Root]:
    """Calls that seem to be missing: one order inversion if they are crosswise, else each as it is."""
    crosswise = _inverted(graph, missing)
    return list(missing.values()) if crosswise is None else [crosswise]


def _inverted(graph: WaitGraph, found: Mapping[int, Root]) -> Root | None:
    """Calls that seem to be missing crosswise: each rank waits for one that waits in the call that another lacks.

    Neither left out a call, for neither can come to it: they issue the operations of their groups in another order.
    A rank that waits for those who wait for it in the call that it lacks itself needs no other to be stuck.
    """
    if len({root.group for root in found.values()}) < 2 or len(found) > MAX_CROSSWISE:
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
