"""What the 3D picture is drawn from, as plain JSON: every rank's state, and the details of the ranks that matter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...viz3d.doing import Doing, doing_of
from ...viz3d.focus import focus_on, neighbours, ways_to
from ...viz3d.graph import Operation, WaitGraph, build_graph
from ...viz3d.hang import Judged
from ...viz3d.states import Snapshot
from ...viz3d.verdict import HangVerdict
from ..components import utc
from .verdict import verdict_of

LETTERS = {
    Doing.COMPUTE: "c",
    Doing.COLLECTIVE: "o",
    Doing.P2P: "p",
    Doing.IDLE: "i",
    Doing.STOPPED: "s",
    Doing.ENDED: "e",
    Doing.DEAD: "d",
    Doing.MISSING: "m",
}
"""One letter a rank: 12,288 of them are 12 kB, and next to nothing compressed. A capital: it waits for others."""

MOST_LISTED = 256
"""So many ranks of an operation are listed; how many there are is told beside it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a picture shows: the look, its waits, the accused, and the ranks told in detail (None: all)."""

    snapshot: Snapshot
    graph: WaitGraph
    verdict: HangVerdict | None
    roots: tuple[int, ...]
    toward: Mapping[int, int]
    shown: tuple[int, ...] | None

    @property
    def ranks(self) -> list[int]:
        """Every rank that the job has, ascending."""
        return sorted({*self.snapshot.states, *self.snapshot.missing, *self.snapshot.coordinates})


def draw(judged: Judged, *, everyone: bool, beside: Iterable[int] = ()) -> Drawn:
    """What to draw of a verdict. ``everyone``: all ranks in detail; else those that matter, and ``beside`` with its
    neighbours and its way to a root. The judged look must be there (``judged.snapshot``)."""
    snapshot = judged.snapshot
    assert snapshot is not None
    graph = build_graph(snapshot) if judged.graph is None else judged.graph
    roots = roots_of(judged.verdict)
    toward = ways_to(graph, frozenset(roots))
    shown = None if everyone else focus_on(snapshot, roots, toward)
    if shown is not None:
        more = [rank for rank in beside if rank not in set(shown)]
        ways = [step for rank in more for step in _way(rank, toward)]
        shown = tuple(sorted({*shown, *neighbours(snapshot, more), *ways}))
    return Drawn(snapshot, graph, judged.verdict, roots, toward, shown)


def _way(rank: int, toward: Mapping[int, int]) -> list[int]:
    """Those that a rank waits for, one after the other, up to a root (`focus.ways_to`)."""
    way: list[int] = []
    while (following := toward.get(way[-1] if way else rank)) is not None and following not in way:
        way.append(following)
    return way


def roots_of(verdict: HangVerdict | None) -> tuple[int, ...]:
    """The accused ranks, in the verdict's order."""
    accused = verdict.culprits if verdict is not None else ()
    return tuple(dict.fromkeys(rank for culprit in accused for rank in culprit.ranks))


def model_of(drawn: Drawn) -> dict[str, Any]:
    """The whole model (assets/scene_1_model.js reads it): places and states of all, details of the shown."""
    snapshot, ranks = drawn.snapshot, drawn.ranks
    axes = [axis for axis in snapshot.axes if any(axis in place for place in snapshot.coordinates.values())]
    return {
        "ranks": len(ranks) if ranks == list(range(len(ranks))) else ranks,
        "axes": axes,
        "sizes": [_size(snapshot, axis) for axis in axes],
        "coordinates": _coordinates(snapshot, ranks, axes),
        "hosts": _hosts(snapshot, ranks),
        "groups": _groups(drawn),
        "verdict": None if drawn.verdict is None else verdict_of(drawn.verdict, snapshot),
        "shown": None if drawn.shown is None else list(drawn.shown),
        **moment_of(drawn),
    }


def moment_of(drawn: Drawn, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """What changes from moment to moment: states of all, and what the shown ranks have in flight and wait for.

    ``ranks`` are those of the judged look, in its order: another moment's letters are read by their place in it.
    """
    snapshot = drawn.snapshot
    shown = drawn.ranks if drawn.shown is None else list(drawn.shown)
    states = {rank: snapshot.states[rank] for rank in shown if rank in snapshot.states}
    names = _Names()
    flights = [
        [
            rank,
            names.of(flight.segment),
            names.of(flight.kind),
            _group_text(flight.group),
            flight.sequence,
            flight.peer,
            _tenths(state.age_s(flight)),
            flight.microbatch,
        ]
        for rank, state in states.items()
        for flight in state.flights
    ]
    return {
        "moment": utc(snapshot.moment_ns),
        "moment_ns": str(snapshot.moment_ns),
        "doing": "".join(_letter(drawn, rank) for rank in (drawn.ranks if ranks is None else ranks)),
        "flights": flights,
        "operations": _operations(drawn, shown, names),
        "names": names.all,
        "steps": _runs([state.step for state in states.values()]),
        "processes": _runs([state.process_state for state in states.values()]),
        "toward": _toward(drawn, shown),
    }


def _letter(drawn: Drawn, rank: int) -> str:
    letter = LETTERS[doing_of(drawn.snapshot.states.get(rank))]
    return letter.upper() if rank in drawn.graph.waits else letter


class _Names:
    """Texts that occur often, each sent once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._index: dict[str, int] = {}

    def of(self, text: str) -> int:
        if text not in self._index:
            self._index[text] = len(self.all)
            self.all.append(text)
        return self._index[text]


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 1)


def _group_text(group: int | None) -> str | None:
    """A group's number as text: it has more digits than JavaScript's numbers hold."""
    return None if group is None else f"{group & 0xFFFFFFFFFFFFFFFF:x}"


def _size(snapshot: Snapshot, axis: str) -> int:
    return 1 + max((place.get(axis) or 0 for place in snapshot.coordinates.values()), default=0)


def _coordinates(snapshot: Snapshot, ranks: Sequence[int], axes: Sequence[str]) -> list[list[int | None]] | None:
    """Index on every axis of every rank; None where ranks count through the axes in order, the last one fastest."""
    sizes = [_size(snapshot, axis) for axis in axes]
    columns = [[snapshot.coordinates.get(rank, {}).get(axis) for rank in ranks] for axis in axes]
    stride = 1
    for column, size in zip(reversed(columns), reversed(sizes), strict=True):
        if any(index != rank // stride % size for rank, index in zip(ranks, column, strict=True)):
            return columns
        stride *= size
    return None if axes and stride == len(ranks) and ranks == list(range(len(ranks))) else columns


def _runs(values: Iterable[Any]) -> list[list[Any]]:
    """Equal neighbours together: [[value, how many], ...]."""
    runs: list[list[Any]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def _hosts(snapshot: Snapshot, ranks: Sequence[int]) -> list[list[Any]]:
    return _runs(snapshot.hosts.get(rank) for rank in ranks)


def _groups(drawn: Drawn) -> dict[str, list[Any]]:
    """Group -> [kind, its shown ranks, how many it has in all]: those with two shown ranks, and those in flight."""
    wanted = None if drawn.shown is None else frozenset(drawn.shown)
    flying = {
        flight.group
        for rank in (wanted if wanted is not None else drawn.snapshot.states)
        if (state := drawn.snapshot.states.get(rank)) is not None
        for flight in state.flights
    }
    found: dict[str, list[Any]] = {}
    for number, group in drawn.snapshot.groups.items():
        members = group.ranks if wanted is None else [rank for rank in group.ranks if rank in wanted]
        is_whole = len(group.ranks) == len(drawn.snapshot.states) and len(group.ranks) > MOST_LISTED
        if len(members) > 1 or number in flying:
            text = _group_text(number) or ""
            found[text] = [group.kind, [] if is_whole else _stepped(members), len(group.ranks)]
    return found


def _stepped(ranks: Sequence[int]) -> list[int]:
    """Ascending ranks as the first and the steps to the next: those compress well."""
    return [rank - before for before, rank in zip([0, *ranks], ranks, strict=False)]


def _operations(drawn: Drawn, shown: Collection[int], names: _Names) -> list[list[Any]]:
    """[group, sequence, segment, absent ranks, how many, waiting ranks, how many] of those that touch shown ranks."""
    wanted = frozenset(shown)
    waiters: dict[int, list[int]] = {}
    by_id: dict[int, Operation] = {}
    for rank, waits in drawn.graph.waits.items():
        for wait in waits:
            by_id[id(wait.operation)] = wait.operation
            waiters.setdefault(id(wait.operation), []).append(rank)
    found = []
    for key, operation in by_id.items():
        waiting = waiters[key]
        if wanted.isdisjoint(operation.absent) and wanted.isdisjoint(waiting):
            continue
        listed = (_listed(operation.absent, wanted), len(operation.absent), _listed(waiting, wanted), len(waiting))
        found.append([_group_text(operation.group), operation.sequence, names.of(operation.segment), *listed])
    return found


def _listed(ranks: Sequence[int], wanted: Collection[int]) -> list[int]:
    """Ranks in steps, of many the shown ones first."""
    if len(ranks) > MOST_LISTED:
        shown = [rank for rank in ranks if rank in wanted][:MOST_LISTED]
        others = (rank for rank in ranks if rank not in wanted)
        ranks = sorted([*shown, *(rank for rank, _ in zip(others, range(MOST_LISTED - len(shown)), strict=False))])
    return _stepped(sorted(ranks))


def _toward(drawn: Drawn, shown: Sequence[int]) -> list[int | None]:
    """For each shown rank the one that it waits for on its way to a root; roots point to each other in a circle."""
    found: list[int | None] = []
    for rank in shown:
        following = drawn.toward.get(rank)
        if following is None and rank in drawn.roots:
            others = (other for wait in drawn.graph.waits.get(rank, ()) for other in wait.operation.absent)
            following = next((other for other in others if other in drawn.roots and other != rank), None)
        found.append(following)
    return found
