"""From what single lines tell to who is who: groups of timeouts, members of groups, ranks of processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .facts import GroupLabel, LogEvidence, Member, Stuck, Timeout, Watermark

P2P = frozenset({"SEND", "RECV", "COALESCED", "UNKNOWN"})
"""Operations whose numbers are a rank's own, or may be: they say nothing about other ranks."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator of NCCL: its members' global ranks in the order of their numbers in it."""

    identity: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogGroup:
    """A process group as logs know it. ``known`` maps the numbers in it to global ranks; ``members`` are all of them,
    None where the logs do not tell who they are. ``mixed``: several groups go by this name."""

    label: GroupLabel
    known: Mapping[int, int]
    members: tuple[int, ...] | None
    mixed: bool = False


def complete(evidence: LogEvidence) -> LogEvidence:
    """With the groups of timeouts, the ranks that other lines tell of, hosts of ranks, and the size of the job."""
    bare = not any(one.label is not None for one in evidence.watermarks) and not any(
        one.rank is not None for one in evidence.timeouts
    )
    timeouts = [_with_group(one, evidence.watermarks) for one in evidence.timeouts]
    if bare:  # versions that name no group print the rank in the job's only group
        timeouts = [replace(one, rank=one.group_rank) for one in timeouts]
    evidence = replace(evidence, members=_of_the_world(evidence))
    ranks = process_ranks(evidence.members)
    world = max((one.size for one in evidence.members), default=0)
    hosts = {rank: host for (host, _), rank in ranks.items()}
    for ended in evidence.exits:
        if ended.speaker.rank is not None and ended.speaker.host is not None:
            hosts.setdefault(ended.speaker.rank, ended.speaker.host)
    speaking: list[Timeout | Watermark | Stuck] = [*timeouts, *evidence.watermarks, *evidence.stuck]
    told = {one.rank for one in speaking if one.rank is not None}
    told |= {one.speaker.rank for one in evidence.raised if one.speaker.rank is not None}
    told |= evidence.heard
    size = evidence.world_size or world or None
    if size is not None and told and max(told) >= size:
        size = None
    return replace(
        evidence,
        timeouts=tuple(_unique(timeouts)),
        hosts={**hosts, **evidence.hosts},
        heard=evidence.heard | told,
        world_size=size,
    )


def _of_the_world(evidence: LogEvidence) -> tuple[Member, ...]:
    """Members of communicators, or none where a rank speaks that the largest has no place for: it is not the world."""
    largest = max((one.size for one in evidence.members), default=0)
    return evidence.members if max(evidence.heard, default=-1) < largest else ()


def _unique(timeouts: Iterable[Timeout]) -> list[Timeout]:
    """One of each rank, group and number: the first."""
    first: dict[tuple[object, ...], Timeout] = {}
    for one in timeouts:
        group = None if one.label is None else one.label.identity or one.label
        first.setdefault((one.rank, one.group_rank, group, one.sequence), one)
    return list(first.values())


def _with_group(timeout: Timeout, marks: Sequence[Watermark]) -> Timeout:
    """The watchdog's next line names the group of the operation that it complains of."""
    if timeout.label is not None:
        return timeout
    same = [
        mark
        for mark in marks
        if mark.failed == timeout.sequence and mark.rank == timeout.rank
        and (mark.group_rank == timeout.group_rank or timeout.group_rank is None)
    ]  # fmt: skip
    labels = list(dict.fromkeys(mark.label for mark in same))
    return replace(timeout, label=labels[0]) if len(labels) == 1 else timeout


def process_ranks(members: Iterable[Member]) -> dict[tuple[str, int], int]:
    """Global rank of each process: its number in the largest communicator, where all of that is told and agrees."""
    by_size: dict[int, list[Member]] = defaultdict(list)
    for one in members:
        by_size[one.size].append(one)
    if not by_size:
        return {}
    size = max(by_size)
    ranks: dict[tuple[str, int], int] = {}
    for one in by_size[size]:
        if ranks.setdefault((one.host, one.pid), one.rank) != one.rank:
            return {}
    return ranks if len(set(ranks.values())) == len(ranks) else {}


def communicators(members: Sequence[Member]) -> list[Communicator]:
    """Communicators whose members are all told; only newer versions of NCCL print what is the same on all of them."""
    ranks = process_ranks(members)
    by_identity: dict[str, dict[int, int]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for one in members:
        rank = ranks.get((one.host, one.pid))
        if one.identity is not None and rank is not None:
            by_identity[one.identity][one.rank] = rank
            sizes[one.identity] = one.size
    return [
        Communicator(identity, tuple(known[number] for number in range(sizes[identity])))
        for identity, known in sorted(by_identity.items())
        if len(known) == sizes[identity] and set(known) == set(range(sizes[identity]))
    ]


def log_groups(evidence: LogEvidence) -> list[LogGroup]:
    """The groups that watchdogs name, each with who is known to be in it."""
    known: dict[str, dict[int, int]] = defaultdict(dict)
    labels: dict[str, GroupLabel] = {}
    mixed: set[str] = set()
    placed: list[Timeout | Watermark] = [*evidence.timeouts, *evidence.watermarks]
    for one in placed:
        if one.label is None or one.rank is None or one.group_rank is None:
            continue
        identity = key_of(one.label)
        if identity is None:
            continue
        labels.setdefault(identity, one.label)
        if known[identity].setdefault(one.group_rank, one.rank) != one.rank:
            mixed.add(identity)
    joined = communicators(evidence.members)
    return [
        LogGroup(
            labels[identity], numbers, _members(labels[identity], numbers, evidence, joined), identity in mixed
        )
        for identity, numbers in known.items()
    ]  # fmt: skip


def key_of(label: GroupLabel) -> str | None:
    """What names a group on all its members alike: all names of the group of all ranks are one."""
    return "world" if label.is_world else label.identity


def _members(
    label: GroupLabel, known: Mapping[int, int], evidence: LogEvidence, joined: Sequence[Communicator]
) -> tuple[int, ...] | None:
    """All members: of the whole job, of a group that is known whole, or of the one communicator that fits."""
    if label.is_world:
        return None if evidence.world_size is None else tuple(range(evidence.world_size))
    size = evidence.sizes.get(label.identity or "")
    if size is not None and set(known) == set(range(size)):
        return tuple(sorted(known.values()))
    fitting = {
        tuple(sorted(one.ranks))
        for one in joined
        if (size is None or len(one.ranks) == size)
        and all(number < len(one.ranks) and one.ranks[number] == rank for number, rank in known.items())
    }
    return next(iter(fitting)) if len(fitting) == 1 else None
