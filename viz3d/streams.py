"""What holds a rank up whose host runs ahead of its device: the first operation of its stream that is not complete.

A host that uses a GPU issues operations and goes on. All that it issued after the first incomplete one has not begun on
the device, whatever the others did about it, and tells nothing of who waits for whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .states import Flight, RankState

LOST = "an operation whose record is lost"
"""Name of an operation that is known by its number alone."""


def in_order(state: RankState) -> list[Flight]:
    """Operations in flight that can hold a rank up (a send holds nobody up), in the order in which they were issued."""
    flying = [one for one in state.flights if one.communicates and one.sends is not True]
    return sorted(flying, key=lambda one: one.begun_ns or 0)


def _is_ahead(state: RankState, flying: Sequence[Flight]) -> bool:
    """Whether a rank has issued collectives behind the first operation that is not complete, without waiting for them.

    Where nothing says whether it waits, its own work does: operations inside work may be awaited one by one.
    """
    if len(flying) < 2 or flying[0].waiting is True:
        return False
    if all(one.waiting is None for one in flying) and state.innermost_work() is not None:
        return False
    return any(one.kind == "collective" and one.waiting is not True for one in flying[1:])


def recorded(state: RankState) -> tuple[Flight, ...] | None:
    """Of a rank that runs ahead: the head of its stream, and what its host itself waits for. None for any other."""
    flying = in_order(state)
    if not _is_ahead(state, flying):
        return None
    return flying[0], *(one for one in flying[1:] if one.waiting is True)


def holding(state: RankState) -> tuple[Flight, ...] | None:
    """As `recorded`, with an operation before the head that is not complete and of which the record is lost."""
    found = recorded(state)
    return None if found is None else (_put_back(state, found[0]), *found[1:])


def _put_back(state: RankState, head: Flight) -> Flight:
    """The head, or the operation before it in its group that is not complete either and of which the record is lost."""
    assert head.group is not None
    assert head.sequence is not None
    if head.kind != "collective" or head.group not in state.progress:
        return head
    first = state.completed(head.group) + 1
    return replace(head, segment=LOST, sequence=first) if first < head.sequence else head
