"""Where chains of waits end: ranks that wait for nobody, knots that wait for each other, and who waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .graph import WaitGraph
from .states import Snapshot


def components(edges: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components, those without a way out first (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for start in edges:
        if start in index:
            continue
        path = [(start, iter(edges.get(start, ())))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    path.append((successor, iter(edges.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    at = _last_index(stack, node)
                    part = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(part)
                    found.append(part)
    return found


def _last_index(stack: Sequence[int], node: int) -> int:
    at = len(stack) - 1
    while stack[at] != node:
        at -= 1
    return at


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the chains of waits end: ranks that wait for nobody, and knots of ranks that wait for each other."""

    ranks: tuple[int, ...]
    knots: tuple[tuple[int, ...], ...]


def find_ends(graph: WaitGraph) -> Ends:
    """Ends of all chains of waits: see `Ends`. A rank that nobody waits for and that waits for nobody is none."""
    ends = _ends(_number(graph))
    single = sorted(ranks[0] for ranks in ends if ranks[0] not in graph.waits)
    knots = sorted(tuple(ranks) for ranks in ends if ranks[0] in graph.waits)
    return Ends(tuple(single), tuple(knots))


_NO_WORK_NS = 2**63
"""Later than any moment: of a rank that is in no work."""

LOOKS_APART_S = 2.0
"""Agents look at moments of their own: how long ranks of different hosts have stood still is compared no finer."""


def untie(graph: WaitGraph, snapshot: Snapshot, knot: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Leave out a knot's weak waits: the rank that is then free and stopped first, or all that may have, where hosts'
    looks do not tell; else the knots that remain."""
    held = WaitGraph()
    for rank in knot:
        strong = [wait for wait in graph.waits[rank] if not wait.weak]
        if strong:
            held.waits[rank] = strong
    numbered = _number(held, within=set(knot))
    for rank in knot:
        numbered.setdefault(rank, [])
    ends = _ends(numbered)
    free = [ranks[0] for ranks in ends if ranks[0] not in held.waits]
    if free:
        return _first_to_stop(snapshot, free), []
    return (), [tuple(ranks) for ranks in ends]


def _ends(numbered: Mapping[int, list[int]]) -> list[list[int]]:
    """The ranks of every component that no edge leaves."""
    parts = components(numbered)
    home = {node: number for number, part in enumerate(parts) for node in part}
    ends = []
    for number, part in enumerate(parts):
        ranks = sorted(node for node in part if node >= 0)
        if ranks and all(home[successor] == number for node in part for successor in numbered.get(node, ())):
            ends.append(ranks)
    return ends


def _first_to_stop(snapshot: Snapshot, ranks: Sequence[int]) -> tuple[int, ...]:
    """The first of each host, as far as they may have been the first of all: the root of a stall stops moving first.
    Several of one host, where they stopped at one moment, or are in no work that would tell when.

    Moments of one host are on one clock; of different hosts only how long each has stood at its look is compared.
    """
    first_ns: dict[str | None, int] = {}
    for rank in ranks:
        host = snapshot.hosts.get(rank)
        first_ns[host] = min(_work_begun_ns(snapshot, rank), first_ns.get(host, _NO_WORK_NS))
    first = (rank for rank in ranks if _work_begun_ns(snapshot, rank) == first_ns[snapshot.hosts.get(rank)])
    stood = {rank: _stood_s(snapshot, rank) for rank in first}
    longest = max(stood.values())
    return tuple(sorted(rank for rank, age in stood.items() if age >= longest - LOOKS_APART_S))


def _work_begun_ns(snapshot: Snapshot, rank: int) -> int:
    """Moment at which a rank's innermost work began, on the clock of its host."""
    state = snapshot.states.get(rank)
    work = state.innermost_work() if state is not None else None
    return work.begun_ns if work is not None and work.begun_ns is not None else _NO_WORK_NS


def _stood_s(snapshot: Snapshot, rank: int) -> float:
    begun_ns = _work_begun_ns(snapshot, rank)
    return 0.0 if begun_ns == _NO_WORK_NS else (snapshot.states[rank].moment_ns - begun_ns) / 1e9


def _number(graph: WaitGraph, within: set[int] | None = None) -> dict[int, list[int]]:
    """Edges rank -> operation -> rank, of the ranks ``within`` only if given; operations are numbered -1, -2, ..."""
    edges: dict[int, list[int]] = {}
    numbers: dict[int, int] = {}
    for rank, waits in graph.waits.items():
        own = edges.setdefault(rank, [])
        for wait in waits:
            number = numbers.get(id(wait.operation))
            if number is None:
                number = numbers[id(wait.operation)] = -1 - len(numbers)
                absent = [other for other in wait.operation.absent if within is None or other in within]
                edges[number] = absent
                for other in absent:
                    edges.setdefault(other, [])
            own.append(number)
    return edges


@dataclass(frozen=True, slots=True)
class Waiters:
    """Who waits for whom, read backwards: built once for a graph, asked for many roots."""

    backwards: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, graph: WaitGraph) -> Waiters:
        """The waits of a graph, backwards."""
        backwards: dict[int, list[int]] = {}
        for node, successors in _number(graph).items():
            for successor in successors:
                backwards.setdefault(successor, []).append(node)
        return cls(backwards)

    def waiting_for(self, roots: Iterable[int]) -> set[int]:
        """Ranks whose chain of waits reaches one of the roots; the roots themselves are not among them."""
        targets = set(roots)
        seen, todo = set(targets), list(targets)
        while todo:
            for node in self.backwards.get(todo.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
        return {node for node in seen if node >= 0} - targets
