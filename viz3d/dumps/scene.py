"""Dumps as a look at the ranks: what each has in flight in the order of issue, and how far it is in each group."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ...profiler.topology import group_id
from ..states import Flight, RankState, Snapshot
from ..verdict import GroupName
from .facts import Dump, DumpedOperation, DumpFolder
from .given_up import with_given_up

ANY_SIZE = ("alltoall", "gather", "scatter")
"""Parts of names of operations to which ranks may rightly bring different sizes."""

P2P = " p2p"
Collectives = Mapping[tuple[GroupName, int], Mapping[int, DumpedOperation]]


def snapshot_of(folder: DumpFolder) -> Snapshot:
    """The look. Its moment is that of the last operation that any rank enqueued; a dump does not say when it was
    written. Ranks without a readable dump are `missing`. One that gave an operation up waits there: see `given_up`.
    """
    dumps = with_given_up(folder.dumps)
    mixed = mixed_groups(dumps.values())
    known = _known_members(dumps, mixed)
    names = _names(_collectives(dumps))
    moments = [dump.last_ns for dump in dumps.values() if dump.last_ns is not None]
    moment = max(moments, default=0)
    groups: dict[int, GroupName] = {}
    states = {rank: _state(dump, moment, mixed, known, names, groups) for rank, dump in sorted(dumps.items())}
    for dump in dumps.values():
        for group in dump.groups:
            groups.setdefault(_id_of(group), group)
    missing = tuple(sorted(folder.expected - set(dumps)))
    return Snapshot(moment, states, groups, dict(folder.hosts), dict(folder.coordinates), folder.axes, missing)


def mixed_groups(dumps: Iterable[Dump]) -> frozenset[GroupName]:
    """Groups that carry messages too: the numbers in their status count those, and say nothing of collectives."""
    mixed = set()
    for dump in dumps:
        last: dict[GroupName, int] = dict(dump.seen_completed)
        for one in dump.operations:
            assert one.group is not None
            if one.is_p2p:
                mixed.add(one.group)
            else:
                last[one.group] = max(last.get(one.group, 0), one.sequence)
        mixed |= {group for group, number in last.items() if dump.enqueued.get(group, number) != number}
    return frozenset(mixed)


def _known_members(dumps: Mapping[int, Dump], mixed: frozenset[GroupName]) -> frozenset[GroupName]:
    """Mixed groups of which every dump of a member shows a collective: only those can be compared."""
    seen: dict[GroupName, set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        shown = {one.group for one in dump.operations if not one.is_p2p} | set(dump.seen_completed)
        for group in shown & mixed:
            if group is not None:
                seen[group].add(rank)
    return frozenset(group for group, ranks in seen.items() if ranks >= set(group.ranks) & set(dumps))


def _state(
    dump: Dump,
    moment_ns: int,
    mixed: frozenset[GroupName],
    known: frozenset[GroupName],
    names: Mapping[tuple[GroupName, int, int], str],
    groups: dict[int, GroupName],
) -> RankState:
    """One rank. ``groups`` is filled with the groups of its messages."""
    flights: list[Flight] = []
    first: dict[GroupName, int] = {}
    last: dict[GroupName, int] = dict(dump.seen_completed)
    messages: Counter[tuple[str, int | None]] = Counter()
    for one in dump.operations:
        assert one.group is not None
        if one.is_p2p:
            messages[one.name, one.peer] += 1
            flights.append(_message(dump.rank, one, messages[one.name, one.peer], groups))
        elif one.group not in mixed or one.group in known:
            first.setdefault(one.group, one.sequence)
            last[one.group] = max(last.get(one.group, 0), one.sequence)
            name = names.get((one.group, one.sequence, dump.rank), one.name)
            number = _id_of(one.group)
            flights.append(Flight(name, "collective", number, one.sequence, begun_ns=one.begun_ns))
    progress = {}
    for group in {*dump.enqueued, *last}:
        if group in mixed and group not in known:
            continue
        issued = last.get(group, 0) if group in mixed else max(last.get(group, 0), dump.enqueued.get(group, 0))
        shown = dump.seen_completed.get(
            group, 0
        )  # the status may lag: gloo's threads write it as they end, in any order
        done = max(dump.completed.get(group, 0), shown) if group not in mixed else shown
        done = min(done, first[group] - 1) if group in first else done
        progress[_id_of(group)] = (issued, done)
    return RankState(dump.rank, moment_ns, flights=tuple(flights), progress=progress)


@functools.lru_cache(maxsize=65536)
def _id_of(group: GroupName) -> int:
    return group_id(group.kind, group.ranks)


def _message(rank: int, one: DumpedOperation, number: int, groups: dict[int, GroupName]) -> Flight:
    """A message in flight. The k-th one in flight from a rank to another is the k-th that the other has in flight from
    it: the numbers of dumps are each rank's own."""
    assert one.group is not None
    assert one.peer is not None
    pair = GroupName(one.group.kind + P2P, tuple(sorted({rank, one.peer})))
    identity = _id_of(pair)
    groups[identity] = pair
    return Flight(one.name, "p2p", identity, number, peer=one.peer, begun_ns=one.begun_ns)


def _collectives(dumps: Mapping[int, Dump]) -> Collectives:
    found: dict[tuple[GroupName, int], dict[int, DumpedOperation]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for one in dump.operations:
            if not one.is_p2p and one.group is not None:
                found[one.group, one.sequence][rank] = one
    return found


def _names(collectives: Collectives) -> dict[tuple[GroupName, int, int], str]:
    """Names with sizes and types, of operations with one name to which ranks brought different ones."""
    names: dict[tuple[GroupName, int, int], str] = {}
    for (group, sequence), own in collectives.items():
        if len({one.name for one in own.values()}) > 1:
            continue
        first = next(iter(own.values()))
        if all(one.sizes[0] == first.sizes[0] and one.dtypes[0] == first.dtypes[0] for one in own.values()):
            continue
        plain = first.name.lower().replace("_", "")
        signatures = {rank: _signature(one) for rank, one in own.items()}
        if any(word in plain for word in ANY_SIZE) or len(set(signatures.values())) == 1:
            continue
        for rank, one in own.items():
            names[group, sequence, rank] = f"{one.name} of {signatures[rank]}"
    return names


def _signature(one: DumpedOperation) -> str:
    """Elements and types of the input, in words."""
    sizes = one.sizes[0] if isinstance(one.sizes[0], tuple) else ()
    types = one.dtypes[0] if isinstance(one.dtypes[0], tuple) else ()
    elements = sum(math.prod(size) for size in sizes if isinstance(size, tuple))
    kinds = ", ".join(dict.fromkeys(str(name) for name in types)) or "unknown type"
    return f"{elements:,} elements of {kinds}"
