"""Operations that gloo retired: completed or given up, and it does not say which. The dumps of the others may.

gloo retires an operation that failed like one that completed, and counts it as completed. A rank that gave one up, for
its time was over or its peer had died, then looks idle in its dump, as if it were the one that the others wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..operations import synchronises
from ..verdict import GroupName
from .facts import Dump, DumpedOperation

GLOO = "gloo"


@dataclass(frozen=True, slots=True)
class Doubt:
    """The newest operation of an idle rank may have failed: nothing shows that these other members came to it."""

    rank: int
    operation: DumpedOperation
    members: tuple[int, ...]


def with_given_up(dumps: Mapping[int, Dump]) -> dict[int, Dump]:
    """The dumps, where the newest operation of an idle rank that cannot have completed is in flight again.

    It cannot have where a member has not issued it and no member gets through without all others.
    """
    return {rank: _reopened(dump) if _has_failed(dump, dumps) else dump for rank, dump in dumps.items()}


def doubts(dumps: Mapping[int, Dump]) -> list[Doubt]:
    """Idle ranks of whose newest operation nothing shows that it completed."""
    found = []
    for rank, dump in sorted(dumps.items()):
        if (newest := _newest(dump)) is not None and not _has_failed(dump, dumps):
            unseen = tuple(member for member in _others(dump, newest) if not _has_joined(dumps.get(member), newest))
            found += [Doubt(rank, newest, unseen)] if unseen else []
    return found


def _newest(dump: Dump) -> DumpedOperation | None:
    """What an idle rank did last, where its library retires failures too."""
    return dump.newest if not dump.operations and dump.library == GLOO else None


def _others(dump: Dump, operation: DumpedOperation) -> tuple[int, ...]:
    assert operation.group is not None
    return tuple(rank for rank in operation.group.ranks if rank != dump.rank)


def _has_failed(dump: Dump, dumps: Mapping[int, Dump]) -> bool:
    newest = _newest(dump)
    if newest is None or not synchronises("collective", newest.name):
        return False
    last = (_last(dumps[rank], newest.group) for rank in _others(dump, newest) if rank in dumps)
    return any(number is not None and number < newest.sequence for number in last)


def _has_joined(dump: Dump | None, operation: DumpedOperation) -> bool:
    last = None if dump is None else _last(dump, operation.group)
    return last is not None and last >= operation.sequence


def _last(dump: Dump, group: GroupName | None) -> int | None:
    """The number of the last collective of a group that a rank is seen to have issued; None where it shows none.

    What is counted in the group's status is no number of a collective: it may count messages too.
    """
    shown = [one.sequence for one in dump.operations if one.group == group and not one.is_p2p]
    if group is not None and group in dump.seen_completed:
        shown.append(dump.seen_completed[group])
    return max(shown, default=None)


def _reopened(dump: Dump) -> Dump:
    newest = dump.newest
    assert newest is not None
    assert newest.group is not None
    before = newest.sequence - 1
    return replace(
        dump,
        operations=(newest,),
        completed=_at_most(dump.completed, newest.group, before),
        seen_completed=_at_most(dump.seen_completed, newest.group, before),
    )


def _at_most(numbers: Mapping[GroupName, int], group: GroupName, most: int) -> dict[GroupName, int]:
    return {one: min(number, most) if one == group else number for one, number in numbers.items()}
