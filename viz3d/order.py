"""Ranks that issue operations in another order than in their steps before: whose order made a circle of waits."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import WaitGraph
from .mismatch import Root
from .programs import MAX_ASKED, Programs
from .states import Snapshot
from .verdict import CulpritKind

TOLD = 4
"""So many ranks are named in the sentence."""


def out_of_order(snapshot: Snapshot, graph: WaitGraph, programs: Programs, ranks: Iterable[int]) -> Root | None:
    """All ranks that run ahead and issued, after the operation that holds them up, what they usually issue before it;
    None if none of ``ranks`` did.

    A program issues in one order step after step. So who deviates made the circle, and those that issue the same
    operation late did it together, also where a circle cannot be seen whole because a rank in it is not heard of. A
    suspicion where no rank of their stage is seen to keep the usual order in this step.
    """
    streams = graph.streams.recorded
    found = _late(snapshot, graph, programs, ranks)
    if not found:
        return None

    def deviation(rank: int) -> set[tuple[object, int]]:
        return {(programs.place(rank, group), number) for group, number in found[rank]}

    alike = set[tuple[object, int]]().union(*(deviation(rank) for rank in found))
    sure = any(
        programs.is_contradicted(snapshot.states[rank], streams[rank][0], late, streams)
        for rank, every in found.items()
        for late in every
    )
    found |= _late(snapshot, graph, programs, (rank for rank in streams if rank not in found))
    found = {rank: late for rank, late in found.items() if not alike.isdisjoint(deviation(rank))}
    told = "; ".join(
        f"rank {rank} issued number {number} of {snapshot.groups[group]} late"
        for rank, [(group, number), *_] in list(found.items())[:TOLD]
    )
    limit = f"; only {MAX_ASKED:,} ranks were asked" if programs.is_spent else ""
    ranks = tuple(sorted(found))
    heads = [streams[rank][0] for rank in ranks]
    head = next((one for one in heads if one.kind == "p2p"), heads[0])
    why = f"operations in another order than in the steps before: {told}{limit}"
    kind = CulpritKind.P2P_CYCLE if head.kind == "p2p" else CulpritKind.ORDER_INVERSION
    return Root(ranks, kind, 0.75, head.segment, head.group, head.sequence, why=why, is_suspicion=not sure)


def _late(
    snapshot: Snapshot, graph: WaitGraph, programs: Programs, ranks: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """Of the ranks that run ahead, (group, number) of what each issued late; those without any are left out."""
    held = ((rank, graph.streams.recorded.get(rank)) for rank in ranks)
    told = ((rank, programs.issues_late(snapshot.states[rank], own[0])) for rank, own in held if own is not None)
    return {rank: late for rank, late in told if late}
