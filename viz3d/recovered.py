"""Operations of which the record is lost: only a rank's number in the group says that it is in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace

from .operations import is_one_way
from .states import Flight, RankState, Snapshot
from .streams import LOST

FEW = 8
"""Where more than one in so many members has no record of an operation, what the others show does not stand for all."""


def with_recovered(snapshot: Snapshot, ahead: Container[int]) -> Snapshot:
    """The snapshot with the first operation of each group that a rank has issued and not completed, though it has no
    record of it in flight.

    Without it, a rank that waits in such an operation looks stuck in the work around it. What the operation is, and
    whether ranks wait for it, is taken from members that are in it. Ranks that are ``ahead`` are left to `Streams`,
    which knows the order of what they issued.
    """
    found: dict[int, RankState] = {}
    for rank, state in snapshot.states.items():
        if rank in ahead or not state.is_present:
            continue
        behind = [(group, done + 1) for group, (issued, done) in state.progress.items() if done < issued]
        recorded = {(one.group, one.sequence) for one in state.flights} if behind else frozenset()
        missing = (_recover(snapshot, state, *one) for one in behind if one not in recorded)
        lost = [one for one in missing if one is not None]
        if lost:
            found[rank] = replace(state, flights=(*state.flights, *lost))
    return replace(snapshot, states={**snapshot.states, **found}) if found else snapshot


def _recover(snapshot: Snapshot, state: RankState, group: int, number: int) -> Flight | None:
    """The operation with a number of a group as its other members have it; None for a send, which holds nobody up, and
    where that cannot be told."""
    name = snapshot.groups.get(group)
    if name is None:
        return None
    members = [snapshot.states[rank] for rank in name.ranks if rank in snapshot.states and rank != state.rank]
    seen = [(other, one) for other in members for one in other.flights if (one.group, one.sequence) == (group, number)]
    work = state.innermost_work()
    begun_ns = state.moment_ns if work is None else (work.begun_ns or 0) + 1
    if is_one_way(name.kind) or any(one.kind == "p2p" for _, one in seen):
        gives = [(other, one) for other, one in seen if one.sends]
        if not gives:
            return None
        other, one = gives[0]
        segment = one.segment.replace("send", "recv")
        return replace(one, segment=segment, peer=other.rank, begun_ns=begun_ns, size_bytes=None, waiting=None)
    segment = Counter(one.segment for _, one in seen).most_common(1)[0][0] if seen else LOST
    waits = {one.waiting for other, one in seen if other.works_in == state.works_in}
    return Flight(
        segment, "collective", group, number, begun_ns=begun_ns, waiting=waits.pop() if len(waits) == 1 else None,
        is_recovered=True,
    )  # fmt: skip


def without_record(snapshot: Snapshot, members: Sequence[int], key: tuple[int, int]) -> list[int]:
    """Members of an operation, (group, sequence), that have issued and not completed it, and whose record of it is
    lost: what they called there, and with how much, is not known."""
    lost = []
    for rank in members:
        state = snapshot.states.get(rank)
        if state is None or state.has_ended or not state.completed(key[0]) < key[1] <= state.issued(key[0]):
            continue
        if not any((one.group, one.sequence) == key and not one.is_recovered for one in state.flights):
            lost.append(rank)
    return lost
