"""Ranks that issue operations in another order than in their steps before: whose order made a circle of waits."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import WaitGraph
from .mismatch import Root
from .programs import Programs
from .states import Snapshot
from .verdict import CulpritKind

TOLD = 4
"""So many ranks are named in the sentence."""


def out_of_order(snapshot: Snapshot, graph: WaitGraph, programs: Programs, ranks: Iterable[int]) -> Root | None:
    """All ranks that run ahead and issued, after the operation that holds them up, what they usually issue before it;
    None if none of ``ranks`` did.

    A program issues in one order step after step. So who deviates made the circle, and those with the same deviation
    did it together, also where a circle cannot be seen whole because a rank in it is not heard of.
    """
    found = _late(snapshot, graph, programs, ranks)
    if not found:
        return None
    others = (rank for rank in graph.streams.recorded if rank not in found)
    found |= _late(snapshot, graph, programs, others)
    told = "; ".join(
        f"rank {rank} issued number {number} of {snapshot.groups[group]} late"
        for rank, (group, number) in list(found.items())[:TOLD]
    )
    ranks = tuple(sorted(found))
    heads = [graph.streams.recorded[rank][0] for rank in ranks]
    head = next((one for one in heads if one.kind == "p2p"), heads[0])
    why = f"operations in another order than in the steps before: {told}"
    kind = CulpritKind.P2P_CYCLE if head.kind == "p2p" else CulpritKind.ORDER_INVERSION
    return Root(ranks, kind, 0.75, head.segment, head.group, head.sequence, why=why)


def _late(snapshot: Snapshot, graph: WaitGraph, programs: Programs, ranks: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Of the ranks that run ahead, (group, number) of what each issued late."""
    found: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        held = graph.streams.recorded.get(rank)
        late = None if held is None else programs.issues_late(snapshot.states[rank], held[0])
        if late is not None:
            found[rank] = late
    return found
