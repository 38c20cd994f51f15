"""Ranks whose program differs from their peers': another operation at the same number, or one left out before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .history import History
from .operations import takes_equal_parts
from .recovered import without_record
from .states import Snapshot
from .streams import Streams
from .verdict import CulpritKind


@dataclass(frozen=True, slots=True)
class Root:
    """One accusation, before its evidence is gathered. ``group`` is the store's id of the group concerned.

    ``is_suspicion``: something else is not explained by it, so that nobody is accused on it. ``is_alone``: nothing but
    its own past speaks against it, so that it is one beside any firm root. ``exit_code``: of a process that ended.
    """

    ranks: tuple[int, ...]
    kind: CulpritKind
    confidence: float
    segment: str | None = None
    group: int | None = None
    sequence: int | None = None
    waiters: int = 0
    why: str = ""
    is_suspicion: bool = False
    is_alone: bool = False
    exit_code: int | None = None


def find_mismatches(snapshot: Snapshot, history: History, streams: Streams | None = None) -> list[Root]:
    """Members of a collective that are in it under different names: the ones that history or the majority contradicts.

    A rank whose operation is the one that should come next left out the one before it.
    """
    heads = (Streams.of(snapshot) if streams is None else streams).recorded
    names: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for state in snapshot.states.values():
        for flight in heads.get(state.rank, state.flights):
            is_told = flight.communicates and flight.kind == "collective" and not flight.is_recovered
            if is_told and state.is_present:
                assert flight.group is not None
                assert flight.sequence is not None
                names[flight.group, flight.sequence][flight.segment].append(state.rank)
    roots = []
    for (group, sequence), by_name in names.items():
        if len(by_name) > 1:
            roots.append(_mismatch(snapshot, history, group, sequence, by_name))
            continue
        [segment] = by_name
        equal = takes_equal_parts("collective", segment)
        root = _of_another_size(snapshot, history, group, sequence, segment) if equal else None
        if root is not None:
            roots.append(root)
    return roots


def _of_another_size(snapshot: Snapshot, history: History, group: int, sequence: int, segment: str) -> Root | None:
    """Members of one operation whose payloads differ: those of whom their own past, or else the majority, says that it
    is not the usual one. Who has completed it counts too: a library may end only the rank that got too much."""
    name = snapshot.groups.get(group)
    ranks = snapshot.states if name is None else name.ranks
    sizes = {
        state.rank: flight.size_bytes
        for state in (snapshot.states[rank] for rank in ranks if rank in snapshot.states)
        for flight in state.flights
        if (flight.group, flight.sequence) == (group, sequence) and flight.size_bytes is not None
    }
    if len(set(sizes.values())) < 2:
        if name is None or set(sizes) >= set(name.ranks):
            return None
        completed = history.sizes(group, sequence)
        sizes |= {rank: size for rank, (other, size) in completed.items() if other == segment and rank not in sizes}
    counts = Counter(sizes.values())
    if len(counts) < 2:
        return _unlike_its_past(snapshot, history, (group, sequence), segment, sizes)
    (size, most), (_, next_most) = counts.most_common(2)
    steps = {rank: snapshot.states[rank].step for rank in sizes if rank in snapshot.states}
    asked = [(rank, step) for rank, step in steps.items() if step is not None][:4]
    votes = Counter(
        known for rank, step in asked if (known := history.expected_size(rank, step, group, sequence)) is not None
    )
    right = votes.most_common(1)[0][0] if votes else size if most > next_most else None
    few = {rank for rank, own in sizes.items() if own != right}
    told = ", ".join(f"rank {rank}: {own:,} bytes" for rank, own in sorted(sizes.items())[:8])
    why = f"at number {sequence} of the group the members give operations of different sizes: {told}"
    sure = 0.85 if len(few) < len(sizes) else 0.5
    return Root(tuple(sorted(few)), CulpritKind.MISMATCH, sure, segment, group, sequence, why=why)


def _unlike_its_past(
    snapshot: Snapshot, history: History, key: tuple[int, int], segment: str, sizes: Mapping[int, int]
) -> Root | None:
    """The only member whose record of an operation that all have joined is there, if it gives as much as it never did
    at that point of its steps. Of several that do so alike the program has changed, and they agree. Where its step has
    not begun as usual, the number tells no point of it."""
    name = snapshot.groups.get(key[0])
    if len(sizes) != 1 or name is None or len(without_record(snapshot, name.ranks, key)) != len(name.ranks) - 1:
        return None
    [(rank, size)] = sizes.items()
    step = snapshot.states[rank].step if rank in snapshot.states else None
    usual = None if step is None else history.expected_size(rank, step, *key)
    if step is None or usual is None or usual == size or not _is_at_its_point(snapshot, history, rank, key):
        return None
    why = f"at number {key[1]} of the group rank {rank} gives {size:,} bytes, in its last steps {usual:,} each"
    return Root((rank,), CulpritKind.MISMATCH, 0.6, segment, *key, why=why, is_alone=True)


def _is_at_its_point(snapshot: Snapshot, history: History, rank: int, key: tuple[int, int]) -> bool:
    """Whether nothing tells that a rank's step began otherwise than usual before an operation that is in flight."""
    state = snapshot.states[rank]
    flight = next((one for one in state.flights if (one.group, one.sequence) == key), None)
    if flight is None or state.step is None:
        return False
    return history.begins_as_usual(rank, state.step, flight, state.before(flight)) is not False


def _mismatch(snapshot: Snapshot, history: History, group: int, sequence: int, by_name: dict[str, list[int]]) -> Root:
    votes: Counter[str] = Counter()
    follows: Counter[str] = Counter()
    for ranks in by_name.values():
        for rank in ranks[:4]:
            step = snapshot.states[rank].step
            if step is not None:
                votes.update(filter(None, [history.expected_segment(rank, step, group, sequence)]))
                follows.update(filter(None, [history.expected_segment(rank, step, group, sequence + 1)]))
    right = max(votes, key=lambda name: votes[name], default=None)
    if right not in by_name:
        largest = sorted(by_name, key=lambda name: -len(by_name[name]))
        clear = len(by_name[largest[0]]) > len(by_name[largest[1]])
        right = largest[0] if clear else None
    deviants = tuple(sorted(rank for name, ranks in by_name.items() if name != right for rank in ranks))
    told = ", ".join(f"rank {', '.join(map(str, ranks[:4]))} in {name}" for name, ranks in sorted(by_name.items()))
    if right is not None and all(name == right or name in follows for name in by_name):
        why = f"at number {sequence} of the group {told}: it left out {right} and is one operation ahead"
        return Root(deviants, CulpritKind.MISSING_CALL, 0.85, right, group, sequence, why=why)
    why = f"at number {sequence} of the group {told}"
    around = _places(snapshot, by_name, group, sequence)
    if around is not None:
        kind, why = CulpritKind.DIVERGED, f"{why}, called from {around}"
    else:
        kind = CulpritKind.MISMATCH
    confidence = 0.5 if right is None else 0.8
    segment = next(name for name in sorted(by_name) if name != right)
    return Root(deviants, kind, confidence, segment, group, sequence, why=why)


def _places(snapshot: Snapshot, by_name: dict[str, list[int]], group: int, sequence: int) -> str | None:
    """From which work ranks called the operations of different names, in words; None unless it differs with the name.

    Ranks of a group that are in different parts of the program took different branches; else only the call differs.
    """
    places: dict[str, set[str]] = {}
    for name, ranks in by_name.items():
        for rank in ranks:
            state = snapshot.states[rank]
            flight = next(one for one in state.flights if (one.group, one.sequence) == (group, sequence))
            around = state.enclosing(flight)
            if around is None:
                return None
            places.setdefault(name, set()).add(around.segment)
    every = [segment for own in places.values() for segment in own]
    if len(set(every)) < len(every):
        return None
    return ", ".join(f"{' and '.join(sorted(own))} ({name})" for name, own in sorted(places.items()))


def deviants(mismatches: Iterable[Root]) -> Mapping[tuple[int, int], tuple[int, ...]]:
    """Who is in a collective with another operation than the rest, by (group, sequence): for `build_graph`."""
    return {
        (root.group, root.sequence): root.ranks
        for root in mismatches
        if root.group is not None and root.sequence is not None
    }
