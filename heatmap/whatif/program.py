"""What a step consists of: operations of one model-parallel group, what each waits for, and who meets in which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One operation, the same in every replica and step: a span of this name, chunk and micro-batch on this stage."""

    stage: int
    name: str
    chunk: int | None
    microbatch: int | None
    is_transfer: bool


@dataclass(frozen=True, slots=True)
class Meeting:
    """Operations that begin together, once all are ready: those of ``nodes``, one of each stage that takes part.

    ``members``: also of all ranks of the inner group (tensor-parallel and the like). ``replicas``: groups of replicas
    that meet, each with all its indices; empty: every replica by itself.
    """

    nodes: tuple[int, ...]
    members: bool = False
    replicas: tuple[tuple[int, ...], ...] = ()


class CircularWaitError(ValueError):
    """Operations of a program wait for each other."""


@dataclass(frozen=True, slots=True)
class Program:
    """Nodes [N] with the nodes that each waits for, and the meetings in an order in which they can happen.

    ``last_use`` [N] is the meeting after which nobody asks for the end of a node any more; -1 for a node that nobody
    waits for.
    """

    nodes: tuple[Node, ...]
    after: tuple[tuple[int, ...], ...]
    meetings: tuple[Meeting, ...]
    last_use: tuple[int, ...]

    @classmethod
    def of(cls, nodes: Sequence[Node], after: Mapping[int, Iterable[int]], meetings: Iterable[Meeting]) -> Program:
        """Order the meetings; a node that is in none meets nobody. Raises CircularWaitError where there is no order."""
        known = list(meetings)
        met = {node for meeting in known for node in meeting.nodes}
        known += [Meeting((node,)) for node in range(len(nodes)) if node not in met]
        waits = tuple(tuple(sorted(set(after.get(node, ())))) for node in range(len(nodes)))
        ordered = _ordered(known, waits)
        last_use = [-1] * len(nodes)
        for place, meeting in enumerate(ordered):
            for node in meeting.nodes:
                for earlier in waits[node]:
                    last_use[earlier] = place
        return cls(tuple(nodes), waits, tuple(ordered), tuple(last_use))

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return 1 + max((node.stage for node in self.nodes), default=0)

    @property
    def messages(self) -> dict[tuple[int, int], list[int]]:
        """By stages of the sender and the receiver: the nodes of their messages, both ends. Messages have two names."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for meeting in self.meetings:
            ends = [self.nodes[node] for node in meeting.nodes]
            if len(ends) == 2 and all(end.is_transfer for end in ends) and ends[0].name != ends[1].name:
                found[ends[0].stage, ends[1].stage] += meeting.nodes
        return dict(found)

    @property
    def names(self) -> tuple[str, ...]:
        """Kinds of operation, sorted."""
        return tuple(sorted({node.name for node in self.nodes}))


def _ordered(meetings: Sequence[Meeting], waits: Sequence[Sequence[int]]) -> list[Meeting]:
    """Meetings in topological order (Kahn 1962)."""
    of_node = {node: number for number, meeting in enumerate(meetings) for node in meeting.nodes}
    needs = [{of_node[one] for node in meeting.nodes for one in waits[node]} for meeting in meetings]
    dependents: dict[int, list[int]] = defaultdict(list)
    for number, needed in enumerate(needs):
        for other in needed:
            dependents[other].append(number)
    open_needs = [len(needed) for needed in needs]
    ready = [number for number, count in enumerate(open_needs) if not count]
    order: list[Meeting] = []
    for number in ready:  # grows while it is walked
        order.append(meetings[number])
        for other in dependents[number]:
            open_needs[other] -= 1
            if not open_needs[other]:
                ready.append(other)
    if len(order) < len(meetings):
        raise CircularWaitError(f"{len(meetings) - len(order)} operations wait for each other")
    return order
