"""Operations that all members have joined and somebody does not complete: a device, the links, or the program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from .graph import WaitGraph, is_weak
from .mismatch import Root
from .operations import synchronises
from .recovered import FEW, without_record
from .states import Flight, RankState, Snapshot
from .streams import Streams
from .verdict import CulpritKind


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
    inside: dict[tuple[int, int], dict[int, Flight]] = defaultdict(dict)
    for rank in ranks:
        state = snapshot.states.get(rank)
        flight = None if state is None else stands_in(state, beside, graph.streams)
        if flight is not None:
            inside[flight.group or 0, flight.sequence or 0][rank] = flight
    judged = (_judge(snapshot, graph, key, held) for key, held in inside.items())
    roots = [root for root in judged if root is not None]
    return roots, {rank for held in inside.values() for rank in held}


def _judge(snapshot: Snapshot, graph: WaitGraph, key: tuple[int, int], held: dict[int, Flight]) -> Root | None:
    """What an operation that lacks nobody comes to; ``held`` are ranks that stand in it, each with its flight."""
    group, sequence = key
    flight, ranks = next(iter(held.values())), tuple(sorted(held))
    name, operation = snapshot.groups.get(group), graph.joined.get(key)
    members = name.ranks if name is not None else operation.members if operation is not None else ranks
    done = [rank for rank in members if rank in snapshot.states and snapshot.states[rank].completed(group) >= sequence]
    if done and 2 * len(done) >= len(members) and synchronises(flight.kind, flight.segment):
        why = told_held(done, sequence)
        return Root(ranks, CulpritKind.DEVICE_STUCK, 0.7, flight.segment, group, sequence, why=why)
    if graph.unheard & set(members):
        return None
    if not done:
        apart = _apart(snapshot, members, key)
        if apart is not None:
            return apart
    return unfinished(snapshot, tuple(rank for rank in members if rank not in done), flight.segment, key)


def unfinished(snapshot: Snapshot, members: tuple[int, ...], segment: str, key: tuple[int, int]) -> Root | None:
    """Everyone has joined and none completes. One that works on while all others sleep is in the library's hands.

    None where the records of several of them are lost: then one may have called something else there.
    """
    states = {rank: snapshot.states[rank].process_state for rank in members if rank in snapshot.states}
    running = [rank for rank, state in states.items() if state == "running"]
    asleep = [rank for rank, state in states.items() if state == "sleeping"]
    if len(running) == 1 and len(asleep) >= 2 and len(asleep) == len(members) - 1:
        why = "all members have joined and none has completed; it runs inside the operation while the others sleep"
        return Root(tuple(running), CulpritKind.LIBRARY, 0.3, segment, *key, why=why)
    if len(without_record(snapshot, members, key)) * FEW > len(members):
        return None
    why = "everyone has joined the operation, and it does not complete"
    return Root(members, CulpritKind.NETWORK, 0.3, segment, *key, why=why)


def _apart(snapshot: Snapshot, members: Sequence[int], key: tuple[int, int]) -> Root | None:
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
