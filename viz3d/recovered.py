"""Operations of which the record is lost: only a rank's number in the group says that it is in one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import replace

from .operations import is_one_way
from .states import Flight, RankState, Snapshot
from .streams import LOST
from .verdict import GroupName

FEW = 8
"""Where more than one in so many members has no record of an operation, what the others show does not stand for all."""


def with_recovered(snapshot: Snapshot, ahead: Container[int]) -> Snapshot:
    """The snapshot with the first operation of each group that a rank has issued and not completed, though it has no
    record of it in flight.

    Without it, a rank that waits in such an operation looks stuck in the work around it. What the operation is, and
    whether ranks wait for it, is taken from members that are in it. Ranks that are ``ahead`` are left to `Streams`,
    which knows the order of what they issued.
    """
    seen = _Seen(snapshot)
    found: dict[int, RankState] = {}
    for rank, state in snapshot.states.items():
        if rank in ahead or not state.is_present:
            continue
        behind = [(group, done + 1) for group, (issued, done) in state.progress.items() if done < issued]
        recorded = {(one.group, one.sequence) for one in state.flights} if behind else frozenset()
        missing = (_recover(seen, state, *one) for one in behind if one not in recorded)
        lost = [one for one in missing if one is not None]
        if lost:
            found[rank] = replace(state, flights=(*state.flights, *lost))
    return replace(snapshot, states={**snapshot.states, **found}) if found else snapshot


class _Seen:
    """What all ranks of a snapshot have in flight, by operation (group, sequence): every flight is read once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.segments: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        self.messages: dict[tuple[int, int], list[tuple[int, Flight]]] = defaultdict(list)
        self.waiting: dict[tuple[int, int, str | None], set[bool | None]] = defaultdict(set)
        self.collectives: set[int] = set()
        self._least: dict[int, int] = {}
        for state in snapshot.states.values():
            for one in state.flights:
                if one.group is None or one.sequence is None:
                    continue
                key = one.group, one.sequence
                self.segments[key][one.segment] += 1
                self.waiting[*key, state.works_in].add(one.waiting)
                if one.kind == "p2p":
                    self.messages[key].append((state.rank, one))
                else:
                    self.collectives.add(one.group)

    def some_may_lack(self, members: Sequence[int], group: int, number: int) -> bool:
        """Whether a member of a group may not have issued an operation, so that others wait for it there."""
        if group not in self._least:
            states = [self.snapshot.states.get(rank) for rank in members]
            self._least[group] = min((0 if state is None else state.issued(group) for state in states), default=0)
        return self._least[group] < number


def _recover(seen: _Seen, state: RankState, group: int, number: int) -> Flight | None:
    """The operation with a number of a group as its other members have it; None for a send, which holds nobody up, and
    where that cannot be told.

    What nobody has in flight and all have issued can make nobody wait: it may have ended long ago without a word, as
    an operation that was abandoned does.
    """
    name, key = seen.snapshot.groups.get(group), (group, number)
    if name is None or (key not in seen.segments and not seen.some_may_lack(name.ranks, *key)):
        return None
    work = state.innermost_work()
    begun_ns = state.moment_ns if work is None else (work.begun_ns or 0) + 1
    messages = [(rank, one) for rank, one in seen.messages.get(key, ()) if rank in name.ranks]
    if is_one_way(name.kind) or messages:
        gives = [(rank, one) for rank, one in messages if one.sends]
        if not gives:
            return None
        rank, one = gives[0]
        segment = one.segment.replace("send", "recv")
        return replace(one, segment=segment, peer=rank, begun_ns=begun_ns, size_bytes=None, waiting=None)
    if key not in seen.segments and not _is_collective(seen, name, group):
        return None
    [(segment, _)] = seen.segments[key].most_common(1) if key in seen.segments else [(LOST, 0)]
    waits = seen.waiting.get((*key, state.works_in), {None})
    return Flight(
        segment, "collective", group, number, begun_ns=begun_ns, waiting=next(iter(waits)) if len(waits) == 1 else None,
        is_recovered=True,
    )  # fmt: skip


def _is_collective(seen: _Seen, name: GroupName, group: int) -> bool:
    """Whether what nobody has in flight can only be a collective. Between two ranks of different stages it may be a
    message, and its sender waits for nobody."""
    stages = {seen.snapshot.stage_of(rank) for rank in name.ranks}
    return group in seen.collectives or len(name.ranks) > 2 or len(stages) == 1


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
