"""Who each operation of a what-if trace communicates with: group, sequence and peer, and what it worked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..columns import ABSENT, GroupBook, IntArray, dense_sequence
from .places import Places
from .rows import Operations

NO_GROUP = 0

_STRIDE = 1 << 20
"""More operations of a kind than any rank has in a step."""

P2P = {
    "forward-send": ("forward-compute", +1, True),
    "forward-recv": ("forward-compute", -1, False),
    "backward-send": ("backward-compute", -1, True),
    "backward-recv": ("backward-compute", +1, False),
}
"""Of each transfer: the compute that it serves, where its other end is in the whole model, and whether it sends."""

_COLLECTIVES = {
    "params-all-gather": ("dp", 0),
    "grads-reduce-scatter": ("dp", 1),
    "layernorm-grads-all-reduce": ("tp", 0),
    "embedding-grads-all-reduce": ("embedding", 0),
    "optimizer-clip-main-grad": ("mp", 0),
}
"""Kind of the group of each collective, and its place among those of one kind and step."""


@dataclass(slots=True)
class Wires:
    """Columns [N] beside the operations: `NO_GROUP` and `ABSENT` for none. ``launched`` is False for a transfer that no
    compute needs: the trace lists some that never ran."""

    group: IntArray
    sequence: IntArray
    peer: IntArray
    chunk: IntArray
    microbatch: IntArray
    launched: npt.NDArray[np.bool_]


def find_wires(operations: Operations, places: Places, book: GroupBook) -> Wires:
    """Group, sequence and peer of every operation."""
    count = len(operations)
    wires = Wires(
        np.full(count, NO_GROUP, np.int64),
        np.full(count, ABSENT, np.int64),
        np.full(count, ABSENT, np.int64),
        operations.chunk.copy(),
        operations.microbatch.copy(),
        np.ones(count, np.bool_),
    )
    order = np.zeros(count, np.int64)
    for name, (kind, place) in _COLLECTIVES.items():
        rows = np.flatnonzero(operations.of(name))
        wires.group[rows] = _group_of_rank(kind, operations.rank[rows], places, book)
        of_step = place * (places.chunks + 1) + np.maximum(operations.chunk[rows], 0)
        order[rows] = operations.step_index[rows] * _STRIDE + of_step
    for name in P2P:
        _wire_transfers(name, operations, places, book, wires, order)
    used = np.flatnonzero(wires.group != NO_GROUP)
    wires.sequence[used] = dense_sequence(wires.group[used], order[used])
    return wires


def _group_of_rank(kind: str, rank: IntArray, places: Places, book: GroupBook) -> IntArray:
    """Group of a kind that each rank is in; `NO_GROUP` where it would be alone."""
    ranks, place = np.unique(rank, return_inverse=True)
    found = [book.id_of(kind, members) if len(members) > 1 else NO_GROUP for members in _members(kind, ranks, places)]
    return np.array(found, np.int64)[place] if found else np.zeros(0, np.int64)


def _members(kind: str, ranks: IntArray, places: Places) -> list[tuple[int, ...]]:
    mesh = places.topology
    if kind == "embedding":
        return [_ends(mesh.group("pp", rank)) for rank in ranks.tolist()]
    if kind == "mp":  # all ranks that hold one copy of the model
        return [
            tuple(sorted({one for stage in mesh.group("pp", rank) for one in mesh.group("tp", stage)}))
            if "tp" in mesh.names
            else mesh.group("pp", rank)
            for rank in ranks.tolist()
        ]
    return [mesh.group(kind, rank) if kind in mesh.names else (rank,) for rank in ranks.tolist()]


def _ends(pipeline: tuple[int, ...]) -> tuple[int, ...]:
    return (pipeline[0], pipeline[-1]) if len(pipeline) > 1 else pipeline


def _wire_transfers(
    name: str, operations: Operations, places: Places, book: GroupBook, wires: Wires, order: IntArray
) -> None:
    """Fill in one kind of transfer. It has the number of the compute that it serves; its other end is one further."""
    compute, toward, sends = P2P[name]
    rows = np.flatnonzero(operations.of(name))
    served = np.flatnonzero(operations.of(compute))
    if not len(rows):
        return
    found = _match(_by_number(operations, served), _by_number(operations, rows))
    at = served[np.maximum(found, 0)] if len(served) else np.zeros(len(rows), np.int64)
    total = places.stages * places.chunks
    chunk, microbatch = operations.chunk[at], operations.microbatch[at]
    virtual = np.maximum(chunk, 0) * places.stages + operations.stage[rows]
    other = virtual + toward
    launched = (found >= 0) & (other >= 0) & (other < total)
    wires.launched[rows] = launched
    rows, at, other, virtual = rows[launched], at[launched], other[launched], virtual[launched]
    chunk, microbatch = chunk[launched], microbatch[launched]
    peer = places.rank_of[other % places.stages, operations.dp[rows]]
    wires.chunk[rows], wires.microbatch[rows], wires.peer[rows] = chunk, microbatch, peer
    source = virtual if sends else other
    order[rows] = operations.step_index[rows] * _STRIDE + _sent_as(operations, served, rows, source, microbatch, places)
    ends = np.stack([operations.rank[rows], peer] if sends else [peer, operations.rank[rows]], axis=1)
    kind = "pp_forward" if compute.startswith("forward") else "pp_backward"
    wraps = (source % places.stages == places.stages - 1) if kind == "pp_forward" else (source % places.stages == 0)
    wires.group[rows] = _edges(kind, ends, wraps & (places.chunks > 1), book)


def _by_number(operations: Operations, rows: IntArray) -> IntArray:
    """Key of (rank, step, number of the operation among its kind)."""
    step = operations.rank[rows] * len(operations.steps) + operations.step_index[rows]
    return step * _STRIDE + operations.sequence[rows]


def _sent_as(
    operations: Operations, served: IntArray, rows: IntArray, source: IntArray, microbatch: IntArray, places: Places
) -> IntArray:
    """Number under which the sender sends, which both ends know; where it was not recorded, the own number."""

    def key(dp: IntArray, step: IntArray, virtual: IntArray, number: IntArray) -> IntArray:
        replicas = places.rank_of.shape[1]
        result: IntArray = ((dp + step * replicas) * (places.stages * places.chunks) + virtual) * _STRIDE + number
        return result

    of_served = np.maximum(operations.chunk[served], 0) * places.stages + operations.stage[served]
    known = key(operations.dp[served], operations.step_index[served], of_served, operations.microbatch[served])
    found = _match(known, key(operations.dp[rows], operations.step_index[rows], source, microbatch))
    return np.where(found >= 0, operations.sequence[served[np.maximum(found, 0)]], operations.sequence[rows])


def _match(known: IntArray, wanted: IntArray) -> IntArray:
    """Index in ``known`` of each wanted key, `ABSENT` where it is not there."""
    if not len(known):
        return np.full(len(wanted), ABSENT, np.int64)
    by = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[by], wanted), len(known) - 1)
    return np.where(known[by][at] == wanted, by[at], ABSENT)


def _edges(kind: str, ends: IntArray, wraps: npt.NDArray[np.bool_], book: GroupBook) -> IntArray:
    """Group of each pair of ranks (from, to), [N, 2] -> [N]; those that wrap around have a kind of their own."""
    if not len(ends):
        return np.zeros(0, np.int64)
    size = int(ends.max()) + 1
    keys: Any = (ends[:, 0] * size + ends[:, 1]) * 2 + wraps
    distinct, place = np.unique(keys, return_inverse=True)
    found = []
    for value in distinct.tolist():
        pair, wrap = divmod(value, 2)
        found.append(book.id_of(f"{kind}_wrap" if wrap else kind, divmod(pair, size)))
    return np.array(found, np.int64)[place]
