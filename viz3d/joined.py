"""Operations that all members have joined and somebody does not complete: a device, the links, or the program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .graph import Operation, WaitGraph, is_weak
from .mismatch import Root
from .operations import synchronises
from .recovered import FEW, without_record
from .states import Flight, RankState, Snapshot
from .streams import Streams
from .verdict import CulpritKind, listed

Key = tuple[int, int]
"""Group and sequence number of an operation."""

HARDLY_ANY = 32
"""One silent member of so many or more is silent by chance. Of fewer it may as well be what the others wait for: ranks
fail in more ways than links do."""


def told_held(done: Sequence[int], sequence: int) -> str:
    """Why a rank that stands in a collective which others have completed is stuck on its device."""
    who = f"rank {done[0]} has" if len(done) == 1 else f"{len(done)} other members have"
    return f"{who} completed number {sequence} of the group, and it has not"


def stands_in(state: RankState, beside: frozenset[str], streams: Streams) -> Flight | None:
    """The operation that holds a rank up: the first of those begun inside its work, or of all without any work.

    What was begun before the work that the rank is in, or usually runs beside work, does not; nor what is known by its
    number alone, if no other waits for it. None too for a process that is not there to complete anything.
    """
    if not state.is_present:
        return None
    held = streams.holding.get(state.rank)
    if held is not None:
        return held[0]
    is_idle = state.innermost_work() is None
    flying = [
        one
        for one in state.flights
        if one.communicates and (is_idle or not (is_weak(state, one, beside) or (one.is_recovered and not one.waiting)))
    ]
    return min(flying, key=lambda flight: flight.begun_ns or 0, default=None)


def judge_joined(
    snapshot: Snapshot, graph: WaitGraph, ranks: Iterable[int], beside: frozenset[str]
) -> tuple[list[Root], set[int]]:
    """One root for each operation in which any of the ``ranks`` stands, although it lacks nobody; and the ranks that
    are covered by that. ``ranks`` wait for nobody."""
    inside: dict[Key, dict[int, Flight]] = defaultdict(dict)
    for rank in ranks:
        state = snapshot.states.get(rank)
        flight = None if state is None else stands_in(state, beside, graph.streams)
        if flight is not None:
            inside[flight.group or 0, flight.sequence or 0][rank] = flight
    standing = _standing(snapshot, graph) if graph.unheard else {}
    judged = (_judge(snapshot, graph, key, held, alone=[*standing] == [key[0]]) for key, held in inside.items())
    roots = [root for root in judged if root is not None]
    return roots, {rank for held in inside.values() for rank in held}


def _standing(snapshot: Snapshot, graph: WaitGraph) -> dict[int, int]:
    """Operations that lack nobody and that nobody has completed, but for those that another one holds up: the first
    number of each group.

    Who is in an operation that does not complete is missed in what comes after it. That is so of a member that is not
    heard of too: where it is missed for that, others, in groups of the same kind, wait for ranks that are heard of.
    """
    seen = snapshot.states
    operations = {id(wait.operation): wait.operation for own in graph.waits.values() for wait in own}
    later = {_place(snapshot, one) for one in operations.values() if any(rank in seen for rank in one.absent)}
    standing: dict[int, int] = {}
    for (group, sequence), one in graph.joined.items():
        if not graph.unheard.isdisjoint(one.members) and _place(snapshot, one) in later:
            continue
        if not any(seen[rank].completed(group) >= sequence for rank in one.members if rank in seen):
            standing[group] = min(sequence, standing.get(group, sequence))
    return standing


def _place(snapshot: Snapshot, operation: Operation) -> tuple[str, int, str]:
    """An operation as the other groups of its kind have it too."""
    name = snapshot.groups.get(operation.group)
    return "" if name is None else name.kind, operation.sequence, operation.segment


def _members(snapshot: Snapshot, graph: WaitGraph, key: Key, held: Mapping[int, Flight]) -> tuple[int, ...]:
    name, operation = snapshot.groups.get(key[0]), graph.joined.get(key)
    if name is not None:
        return name.ranks
    return operation.members if operation is not None else tuple(sorted(held))


def _judge(snapshot: Snapshot, graph: WaitGraph, key: Key, held: Mapping[int, Flight], *, alone: bool) -> Root | None:
    """What an operation that lacks nobody comes to; ``held`` are ranks that stand in it, each with its flight.

    Members that are not heard of may not have joined it. Where they are hardly any of a job that has run, and it is the
    only operation that nothing else holds up (``alone``), one of them is less likely to be the cause than to be silent
    by chance, and the links are suspected as where all are heard of.
    """
    group, sequence = key
    flight, ranks = next(iter(held.values())), tuple(sorted(held))
    members = _members(snapshot, graph, key, held)
    done = [rank for rank in members if rank in snapshot.states and snapshot.states[rank].completed(group) >= sequence]
    if done and 2 * len(done) >= len(members) and synchronises(flight.kind, flight.segment):
        why = told_held(done, sequence)
        return Root(ranks, CulpritKind.DEVICE_STUCK, 0.7, flight.segment, group, sequence, why=why)
    silent = tuple(sorted(graph.unheard.intersection(members)))
    if silent and not alone:
        return None
    known = tuple(rank for rank in members if rank not in silent)
    if silent and any(snapshot.states[rank].step is None for rank in known if rank in snapshot.states):
        return None  # it may never have come
    if not done:
        apart = _apart(snapshot, known, key)
        if apart is not None:
            return None if silent else apart
    return unfinished(snapshot, tuple(rank for rank in known if rank not in done), flight.segment, key, silent)


def judge_only(snapshot: Snapshot, graph: WaitGraph) -> Root | None:
    """The only operation that stands still, of which some members are not heard of; None if there are more."""
    standing = list(_standing(snapshot, graph).items())
    if len(standing) != 1:
        return None
    members = graph.joined[standing[0]].members
    flying = ((rank, one) for rank in members if rank in snapshot.states for one in snapshot.states[rank].flights)
    inside = {rank: one for rank, one in flying if (one.group, one.sequence) == standing[0]}
    return _judge(snapshot, graph, standing[0], inside, alone=True) if inside else None


def unfinished(
    snapshot: Snapshot, members: tuple[int, ...], segment: str, key: Key, silent: tuple[int, ...] = ()
) -> Root | None:
    """Everyone has joined and none completes. One that works on while all others sleep is in the library's hands.

    ``silent`` are further members, of which nothing is known. None where these are more than a few, or the records of
    several others are lost: then one of them may not be there, or have called something else.
    """
    every = len(members) + len(silent)
    states = {rank: snapshot.states[rank].process_state for rank in members if rank in snapshot.states}
    running = [rank for rank, state in states.items() if state == "running"]
    asleep = [rank for rank, state in states.items() if state == "sleeping"]
    but = f"; nothing is heard of rank {listed(silent)}, and it may be the reason" if silent else ""
    who = "everyone that is heard of" if silent else "everyone"
    is_one = len(running) == 1 and len(asleep) >= 2 and len(asleep) == len(members) - 1
    if is_one and len(silent) * FEW <= every:
        why = f"{who} has joined and none has completed; it runs inside the operation while the others sleep{but}"
        return Root(tuple(running), CulpritKind.LIBRARY, 0.3, segment, *key, why=why)
    if len(silent) * HARDLY_ANY > every or (len(silent) + len(without_record(snapshot, members, key))) * FEW > every:
        return None
    why = f"{who} has joined the operation, and it does not complete{but}"
    return Root(members, CulpritKind.NETWORK, 0.3, segment, *key, why=why)


def _apart(snapshot: Snapshot, members: Sequence[int], key: Key) -> Root | None:
    """Members that call the same operation from another step, or from another part of the program, than the rest."""
    steps: dict[int, int | None] = {}
    places: dict[int, str | None] = {}
    segment = None
    for rank in members:
        state = snapshot.states.get(rank)
        own = [] if state is None else [one for one in state.flights if (one.group, one.sequence) == key]
        if state is None or not own or not is_innermost(state, own[0]) or (own[0].is_recovered and not own[0].waiting):
            return None  # its step or its work may be a later one than the operation's
        steps[rank], segment = state.step, own[0].segment
        around = state.enclosing(own[0])
        places[rank] = None if around is None else around.segment
    one_stage = len({snapshot.stage_of(rank) for rank in members}) == 1  # stages call it from work of their own
    for values, kind, what in (
        (steps, CulpritKind.ITERATION_DESYNC, "step"),
        (places if one_stage else {}, CulpritKind.DIVERGED, "segment"),
    ):
        few = minority(values)
        if few is not None:
            ranks, told = few
            why = f"at number {key[1]} of the group members are in different {what}s: {told}"
            sure = 0.8 if len(ranks) < len(members) else 0.5
            return Root(ranks, kind, sure, segment, *key, why=why)
    return None


def minority(values: dict[int, int | None] | dict[int, str | None]) -> tuple[tuple[int, ...], str] | None:
    """Ranks whose value is not that of most, with the values in words; all of them where there is no majority.

    None where all are alike, or any value is not known.
    """
    counts = Counter(values.values())
    if len(counts) < 2 or None in counts:
        return None
    (first, most), (_, next_most) = counts.most_common(2)
    ranks = tuple(sorted(rank for rank, value in values.items() if most == next_most or value != first))
    return ranks, ", ".join(f"{number} in {value}" for value, number in counts.most_common(4))


def is_innermost(state: RankState, flight: Flight) -> bool:
    """Whether nothing else of the rank was begun after an operation."""
    return all((one.begun_ns or 0) <= (flight.begun_ns or 0) for one in state.flights)
