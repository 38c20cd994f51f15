"""Where everybody stands once somebody does not go on: the closure of waits over a whole fleet, as array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....profiler.errors import MegascopeError
from ..effects import BoolArray, IntArray
from .program import EDGES, OPS, Op, Programs, recv, send

MAX_ROUNDS = 100_000
"""Far more than any chain of waits is long; a closure that is not done by then would be a defect."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """An operation that never completes although it may have been joined by all: number ``number`` (from 0) of class
    ``op`` in the group whose ``members`` [P, T, G] are marked."""

    op: int
    members: BoolArray
    number: int


def close(
    programs: Programs, which: IntArray, limit: IntArray, dp_size: int, frozen: Sequence[Frozen] = ()
) -> IntArray:
    """The call in which every rank is once nothing moves any more, [P, T, G] as in `Grid`.

    ``which`` is every rank's program, ``limit`` the last call that it gets to by itself (the program's end, but for
    culprits). A rank is held by a collective that a member has not come to, and by a receive whose send has not been
    begun; sends hold nobody. In each round everybody goes on as far as the others' places allow, until nobody can: so
    nobody is taken past an operation by what another does only after that.
    """
    limit = limit.copy()
    for one in frozen:
        held = programs.place[which, one.op, one.number]
        limit = np.where(one.members, np.minimum(limit, held), limit)
    at = np.zeros_like(limit)
    for _ in range(MAX_ROUNDS):
        reached = _up_to_groups(programs, which, at, limit, dp_size)
        for edge in range(len(EDGES)):
            reached = _up_to_edge(programs, which, at, reached, edge)
        if np.array_equal(at, reached):
            return at
        at = reached
    raise MegascopeError("The simulated hang does not settle: this is a defect of the simulator, please report it.")


def _up_to_groups(programs: Programs, which: IntArray, at: IntArray, limit: IntArray, dp_size: int) -> IntArray:
    """Nobody gets past a collective that a member of its group has not joined."""
    for op in (Op.TP, Op.DP, Op.WORLD):
        joined = programs.count[which, op, at]
        if op is Op.TP:
            least = np.broadcast_to(joined.min(axis=1, keepdims=True), joined.shape)
        elif op is Op.DP:
            parts = joined.reshape(*joined.shape[:2], -1, dp_size)
            least = np.broadcast_to(parts.min(axis=-1, keepdims=True), parts.shape).reshape(joined.shape)
        else:
            least = np.full(joined.shape, joined.min())
        limit = np.minimum(limit, programs.place[which, op, least])
    return limit


def _up_to_edge(programs: Programs, which: IntArray, at: IntArray, limit: IntArray, edge: int) -> IntArray:
    """Nobody gets past a receive whose message has not been sent."""
    givers, takers = ends(edge, at.shape[0])
    if not len(givers):
        return limit
    sent = programs.count[which[givers], send(edge), at[givers]]
    result = limit.copy()
    result[takers] = np.minimum(limit[takers], programs.place[which[takers], recv(edge), sent])
    return result


def ends(edge: int, stages: int) -> tuple[IntArray, IntArray]:
    """Stages that send over an edge, and the stages that receive from them, in the same order."""
    low, high = np.arange(stages - 1), np.arange(1, stages)
    first, last = np.array([0]), np.array([stages - 1])
    if stages == 1:
        return low, low
    return ((low, high), (high, low), (last, first), (first, last))[edge]


def outstanding(programs: Programs, which: IntArray, at: IntArray, host: IntArray) -> tuple[IntArray, IntArray]:
    """Operations (issued, completed) of every class in the steps of the programs, [OPS, P, T, G] each, by ranks whose
    devices are in ``at`` and whose hosts are in ``host``.

    A receive is issued when it is posted, and completed once it is sent; a send once its receive is posted.
    """
    issued = np.stack([programs.count[which, op, host] for op in range(OPS)])
    completed = np.stack([programs.count[which, op, at] for op in range(OPS)])
    for op in (Op.TP, Op.DP, Op.WORLD):
        completed[op] -= programs.op[which, at] == op
    for edge in range(len(EDGES)):
        issued[recv(edge)] = programs.posted[which, edge, host]
        posted, sent = programs.posted[which, edge, at], programs.count[which, send(edge), at]
        completed[recv(edge)] = completed[send(edge)] = 0
        givers, takers = ends(edge, at.shape[0])
        if len(givers):
            met = np.minimum(sent[givers], posted[takers])
            completed[send(edge)][givers] = met
            completed[recv(edge)][takers] = met
    return issued, completed
