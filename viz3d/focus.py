"""Which ranks of a large job a picture of its hang must show: the roots, those on the way to them, their neighbours."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from .graph import Operation, WaitGraph
from .states import Snapshot

NEAR = 8
"""So many neighbours of a root are shown on either side along each axis."""

ON_THE_WAY = 96
"""So many of those who wait are shown beside the neighbours, the nearest to a root first."""

ROOTS_MEASURED = 16
"""Distances are measured from so many roots at most: more would take long, and fill the picture by themselves."""

MOST_SHOWN = 640
"""More ranks cannot be told apart: roots come first, then neighbours, then those who wait."""


def ways_to(graph: WaitGraph, roots: Collection[int]) -> dict[int, int]:
    """Rank that waits -> the rank that it waits for on its shortest way to a root; those nearest to a root come first.

    Waits that hold a rank up for certain are followed before weak ones (see `graph.Wait`).
    """
    toward: dict[int, int] = {}
    for weak in (False, True):
        waiters, lacking = _by_operation(graph, weak=weak)
        queue = deque([*roots, *toward])
        done: set[int] = set()
        while queue:
            rank = queue.popleft()
            for operation in lacking.get(rank, ()):
                if id(operation) in done:
                    continue
                done.add(id(operation))
                for waiter in waiters[id(operation)]:
                    if waiter not in toward and waiter not in roots:
                        toward[waiter] = rank
                        queue.append(waiter)
    return toward


def _by_operation(graph: WaitGraph, *, weak: bool) -> tuple[dict[int, list[int]], dict[int, list[Operation]]]:
    """Who waits in each operation (by identity), and the operations that lack each rank."""
    waiters: dict[int, list[int]] = {}
    lacking: dict[int, list[Operation]] = {}
    for rank, waits in graph.waits.items():
        for wait in waits:
            if wait.weak and not weak:
                continue
            known = waiters.setdefault(id(wait.operation), [])
            if not known:
                for absent in wait.operation.absent:
                    lacking.setdefault(absent, []).append(wait.operation)
            known.append(rank)
    return waiters, lacking


def focus_on(snapshot: Snapshot, roots: Iterable[int], toward: Mapping[int, int]) -> tuple[int, ...]:
    """Ranks to show, ascending: the roots, their neighbours on each axis, and the nearest of those who wait for them.

    Every shown rank's way to a root (``toward``, of `ways_to`) is shown whole, unless `MOST_SHOWN` cuts it.
    """
    chosen = dict.fromkeys(roots)
    accused = tuple(chosen)
    chosen.update(dict.fromkeys(neighbours(snapshot, accused)))
    beside = frozenset(chosen)
    left = ON_THE_WAY
    for rank in sorted(toward, key=lambda each: _distance(snapshot, each, accused)):
        if left <= 0 or len(chosen) >= MOST_SHOWN:
            break
        if rank not in beside:
            left -= 1
        chosen.update(dict.fromkeys(_way(rank, toward)))
    return tuple(sorted(list(chosen)[: max(MOST_SHOWN, len(accused))]))


def neighbours(snapshot: Snapshot, ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks next to some in each of their groups along an axis, `NEAR` on either side; themselves included.

    Where the axes of the mesh are not known, all groups count but those of everyone.
    """
    found = dict.fromkeys(ranks)
    wanted = frozenset(found)
    everyone = len(snapshot.states) + len(snapshot.missing)
    for group in snapshot.groups.values():
        if group.kind not in snapshot.axes and (snapshot.axes or len(group.ranks) >= everyone):
            continue
        for rank in wanted.intersection(group.ranks):
            at = group.ranks.index(rank)
            found.update(dict.fromkeys(group.ranks[max(0, at - NEAR) : at + NEAR + 1]))
    return tuple(found)


def _way(rank: int, toward: Mapping[int, int]) -> list[int]:
    way = [rank]
    while (following := toward.get(way[-1])) is not None and following not in way:
        way.append(following)
    return way


def _distance(snapshot: Snapshot, rank: int, roots: tuple[int, ...]) -> int:
    """How far a rank stands from the nearest of the roots (of the first `ROOTS_MEASURED`), in places along the axes."""
    if not roots:
        return rank
    own = snapshot.coordinates.get(rank, {})
    return min(_places(snapshot, own, snapshot.coordinates.get(root, {})) for root in roots[:ROOTS_MEASURED])


def _places(snapshot: Snapshot, own: Mapping[str, int | None], root: Mapping[str, int | None]) -> int:
    """Places between two ranks along the axes of which both have a coordinate."""
    pairs = ((own.get(axis), root.get(axis)) for axis in snapshot.axes)
    return sum(abs(one - other) for one, other in pairs if one is not None and other is not None)
