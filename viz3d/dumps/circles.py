"""What made a circle of collectives, as far as dumps tell: orders of groups, one call left out, or two steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from ..states import RankState, Snapshot
from ..verdict import GroupName

MOST_KINDS = 5
"""Orders of more kinds of groups are not tried."""


def one_may_have_made(circle: Sequence[int], snapshot: Snapshot) -> bool:
    """Whether there is an order of the groups in which at most one rank of a circle is out of order, that is in an
    operation that comes after the one in which it is missed: it may have left that out."""
    states = {rank: snapshot.states[rank] for rank in circle if rank in snapshot.states}
    last: dict[int, int] = {}  # by group: the highest number that a rank of the circle is in
    for one in (flight for state in states.values() for flight in state.flights):
        if one.group in snapshot.groups:
            last[one.group or 0] = max(last.get(one.group or 0, 0), one.sequence or 0)
    found: set[tuple[int, str, str]] = set()
    for group, number in last.items():
        name = snapshot.groups[group]
        for state in (states[rank] for rank in name.ranks if rank in states):
            if state.issued(group) < number:
                own = {snapshot.groups[flight.group].kind for flight in state.flights if flight.group is not None}
                found |= {(state.rank, kind, name.kind) for kind in own}
    kinds = {kind for _, *pair in found for kind in pair}
    if len(kinds) > MOST_KINDS:
        return True
    ahead = (
        {rank for rank, own, missed in found if order.index(own) > order.index(missed)} for order in permutations(kinds)
    )
    return min(len(ranks) for ranks in ahead) <= 1


def may_be_steps_apart(circle: Sequence[int], snapshot: Snapshot) -> bool:
    """Whether the ranks of a circle that are in one kind of group may be whole replicas in another step than the rest.

    A step that is run twice, or left out, has as many operations in each group as the next one: all numbers agree, and
    what comes after it is another operation than the others are in. No count tells that from another order. But the
    ranks of a replica take a step together. So it is ruled out where a group that lies inside replicas has ranks on
    both sides, whatever kind of group runs across them: such a group shares one rank at most with each of that kind.
    """
    states = [snapshot.states[rank] for rank in circle if rank in snapshot.states]
    within = {state.rank: state for state in states}
    least = {
        group: min((within[rank].issued(group) for rank in name.ranks if rank in within), default=0)
        for group, name in snapshot.groups.items()
    }
    sides = {state.rank: side for state in states if (side := _side(state, least, snapshot)) is not None}
    split = [one for one in snapshot.groups.values() if len(_sides_in(one, sides)) > 1]
    of_split = [frozenset(one.ranks) for one in split]
    narrow = [one for one, own in zip(split, of_split, strict=True) if not any(other < own for other in of_split)]
    for kind in {one.kind for one in narrow}:
        across = [one for one in snapshot.groups.values() if one.kind == kind]
        if not any(_is_inside_replicas(one, across) for one in split):
            return True
    return False


def _side(state: RankState, least: Mapping[int, int], snapshot: Snapshot) -> str | None:
    """Kind of the group in which a rank waits for others of the circle: the first that one of them has not issued, else
    the first in flight. ``least``: by group, the lowest number that a rank of the circle has issued."""
    flights = [one for one in state.flights if one.group in snapshot.groups]
    for one in flights:
        if least[one.group or 0] < (one.sequence or 0):
            return snapshot.groups[one.group or 0].kind
    return snapshot.groups[flights[0].group or 0].kind if flights else None


def _sides_in(group: GroupName, sides: Mapping[int, str]) -> set[str]:
    return {sides[rank] for rank in group.ranks if rank in sides}


def _is_inside_replicas(group: GroupName, across: Iterable[GroupName]) -> bool:
    """Whether a group lies inside replicas, if those given run across them."""
    return all(len(set(group.ranks).intersection(one.ranks)) < 2 for one in across)
