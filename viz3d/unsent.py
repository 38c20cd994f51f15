"""A send that was left out: the partner takes the next message for it, and in the end waits for one more than come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Wait, WaitGraph
from .history import History
from .mismatch import Root
from .states import RankState, Snapshot
from .verdict import CulpritKind

REACH_STEPS = 4
"""So many steps before a rank's own are asked for two that are alike: hosts that run ahead count a later step than the
one in which the send is missing."""

MAX_ASKED = 64
"""So many senders are held against their own steps."""


def find_unsent(
    snapshot: Snapshot, graph: WaitGraph, history: History, ranks: Sequence[int], *, only_shifted: bool = False
) -> Root | None:
    """A rank that others of ``ranks`` wait for in a receive, and that left out a send: what it sent since is of the
    micro-batches that usually come one later. Counts do not tell. None if there is none.

    ``only_shifted``: where that shows in flight already, as one number on both sides with two micro-batches.
    """
    inside, asked = set(ranks), 0
    for wait in (wait for rank in ranks for wait in graph.waits[rank] if wait.flight.sends is False):
        giver, group = wait.flight.peer, wait.operation.group
        state = snapshot.states.get(giver) if giver in inside else None
        if giver is None or state is None or state.step is None:
            continue
        if only_shifted and not _is_shifted(snapshot.states[wait.rank], state, wait):
            continue
        asked += 1
        if asked > MAX_ASKED:
            return None
        told = _left_out(history, state, state.step, group)
        if told is not None:
            segment = history.expected_segment(giver, state.step, group, wait.operation.sequence)
            why = f"since step {told[0]} it has sent micro-batches {told[1]} there, where it usually sends {told[2]}"
            return Root((giver,), CulpritKind.MISSING_CALL, 0.85, segment, group, wait.operation.sequence, why=why)
    return None


def _is_shifted(taker: RankState, giver: RankState, wait: Wait) -> bool:
    """Whether two ranks have another micro-batch in flight under one number of the messages between them."""
    group = wait.operation.group
    received = {one.sequence: one.microbatch for one in taker.flights if one.group == group and one.sends is False}
    sent = {one.sequence: one.microbatch for one in giver.flights if one.group == group and one.sends}
    return any(None not in (received[number], sent[number]) and received[number] != sent[number]
               for number in received.keys() & sent.keys())  # fmt: skip


def _left_out(history: History, state: RankState, step: int, group: int) -> tuple[int, str, str] | None:
    """The step since which a rank's messages are one too few, the micro-batches that it has sent and those that it
    usually does; None where its numbers and micro-batches go together as usual, or no two steps in a row are alike."""
    past = {one: history.sent(state.rank, one, group) for one in range(step - REACH_STEPS, step + 1)}
    alike = (one for one in range(step - 1, step - REACH_STEPS, -1)
             if past[one] and [*past[one].values()] == [*past[one - 1].values()])  # fmt: skip
    base = next(alike, None)
    if base is None:
        return None
    usual, first = [*past[base].values()], max(past[base]) + 1
    flying = {one.sequence: one.microbatch for one in state.flights if one.group == group and one.sends}
    sent = _since(first, [*(past[one] for one in range(base + 1, step + 1)), flying])
    if None in usual or None in sent.values():
        return None
    kept = [at for at, microbatch in sent.items() if microbatch == usual[at % len(usual)]]
    later = [at for at, microbatch in sent.items() if microbatch != usual[at % len(usual)]]
    if not later or any(at > later[0] for at in kept) or any(sent[at] != usual[(at + 1) % len(usual)] for at in later):
        return None
    told = (", ".join(map(str, numbers)) for numbers in (sent.values(), usual))
    return base + 1, next(told), next(told)


def _since(
    first: int, parts: Sequence[Mapping[int | None, int | None] | Mapping[int, int | None]]
) -> dict[int, int | None]:
    """Micro-batches from a number on, counted from 0, in the order of the numbers; what has no record is left out."""
    found = {number - first: own for part in parts for number, own in part.items() if number is not None}
    return {at: found[at] for at in sorted(found) if at >= 0}
