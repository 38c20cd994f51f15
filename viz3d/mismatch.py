"""Ranks whose program differs from their peers': another operation at the same number, or one left out before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .history import History
from .states import Flight, RankState, Snapshot
from .streams import recorded
from .verdict import CulpritKind


@dataclass(frozen=True, slots=True)
class Root:
    """One accusation, before its evidence is gathered. ``group`` is the store's id of the group concerned."""

    ranks: tuple[int, ...]
    kind: CulpritKind
    confidence: float
    segment: str | None = None
    group: int | None = None
    sequence: int | None = None
    waiters: int = 0
    why: str = ""


def find_mismatches(snapshot: Snapshot, history: History) -> list[Root]:
    """Members of a collective that are in it under different names: the ones that history or the majority contradicts.

    A rank whose operation is the one that should come next left out the one before it.
    """
    names: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for state in snapshot.states.values():
        for flight in recorded(state) or state.flights:
            if flight.communicates and flight.kind == "collective" and state.is_present:
                assert flight.group is not None
                assert flight.sequence is not None
                names[flight.group, flight.sequence][flight.segment].append(state.rank)
    roots = []
    for (group, sequence), by_name in names.items():
        if len(by_name) > 1:
            roots.append(_mismatch(snapshot, history, group, sequence, by_name))
            continue
        root = _of_another_size(snapshot, history, group, sequence, next(iter(by_name)))
        if root is not None:
            roots.append(root)
    return roots


def _of_another_size(snapshot: Snapshot, history: History, group: int, sequence: int, segment: str) -> Root | None:
    """Members of one operation whose payloads differ: those of whom their own past, or else the majority, says that it
    is not the usual one. Who has completed it counts too: a library may end only the rank that got too much."""
    sizes = {
        state.rank: flight.size_bytes
        for state in snapshot.states.values()
        for flight in state.flights
        if (flight.group, flight.sequence) == (group, sequence) and flight.size_bytes is not None
    }
    if len(set(sizes.values())) < 2:
        name = snapshot.groups.get(group)
        if name is None or set(sizes) >= set(name.ranks):
            return None
        completed = history.sizes(group, sequence)
        sizes |= {rank: size for rank, (other, size) in completed.items() if other == segment and rank not in sizes}
    counts = Counter(sizes.values())
    if len(counts) < 2:
        return None
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


class Programs:
    """What ranks have issued at the points of their steps, against their own past and ranks in the same place."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        self._snapshot, self._history = snapshot, history
        self._group_of: dict[tuple[int, str], int] = {
            (member, name.kind): number for number, name in snapshot.groups.items() for member in name.ranks
        }
        self._of_stage: dict[int, list[RankState]] = defaultdict(list)
        for rank, state in snapshot.states.items():
            self._of_stage[snapshot.stage_of(rank)].append(state)

    def went_past(self, rank: int, group: int) -> bool:
        """Whether a rank is at a point of its step that it usually reaches with more operations issued in ``group``.

        Its earlier steps tell how many; where there are none, ranks that hold the same place in other groups do.
        """
        state = self._snapshot.states[rank]
        for own in state.flights:
            if own.group is None or own.sequence is None or own.group == group or own.kind != "collective":
                continue
            if state.step is not None:
                expected = self._history.expected_issued(rank, state.step, own.group, own.sequence, group)
                if expected is not None:
                    return state.issued(group) < expected
            if self._peers_are_ahead(state, group, own):
                return True
        return False

    def _peers_are_ahead(self, state: RankState, group: int, own: Flight) -> bool:
        """Whether most ranks of the same stage that stand at the same point, in ``own``, issued more in such groups.

        Ranks that have completed it went on since, and ranks that have not come to it yet may still issue more
        before it.
        """
        groups = self._snapshot.groups
        name, own_name = groups.get(group), groups.get(own.group or 0)
        if name is None or own_name is None or own.sequence is None:
            return False
        inside = frozenset(name.ranks)
        ahead = peers = 0
        for theirs in self._of_stage[self._snapshot.stage_of(state.rank)]:
            there = self._group_of.get((theirs.rank, name.kind))
            here = self._group_of.get((theirs.rank, own_name.kind))
            if theirs.rank in inside or there is None or here is None:
                continue
            if theirs.completed(here) < own.sequence <= theirs.issued(here):
                peers += 1
                ahead += theirs.issued(there) > state.issued(group)
        return 2 * ahead > peers


def deviants(mismatches: Iterable[Root]) -> Mapping[tuple[int, int], tuple[int, ...]]:
    """Who is in a collective with another operation than the rest, by (group, sequence): for `build_graph`."""
    return {
        (root.group, root.sequence): root.ranks
        for root in mismatches
        if root.group is not None and root.sequence is not None
    }


def find_skipped(snapshot: Snapshot, history: History, ranks: Iterable[int]) -> list[Root]:
    """Ranks, of the given ones, that left out a collective although their group still seems in step.

    Only groups in which the rank has something in flight are looked at: for others its progress may be older than
    what is in flight.
    """
    roots = []
    programs = Programs(snapshot, history)
    for rank in ranks:
        state = snapshot.states.get(rank)
        flights = [] if state is None else [flight for flight in state.flights if flight.kind == "collective"]
        for group in dict.fromkeys(flight.group for flight in flights if flight.group is not None):
            if programs.went_past(rank, group):
                first = min((flight for flight in flights if flight.group == group), key=lambda one: one.sequence or 0)
                why = "it is past a point of its step that it usually reaches with one operation more in the group"
                roots.append(
                    Root((rank,), CulpritKind.MISSING_CALL, 0.8, first.segment, group, first.sequence, why=why)
                )
                break
    return roots
