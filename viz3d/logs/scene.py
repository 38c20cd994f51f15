"""What watchdogs told, as a look at the ranks: how far each is in each group, and the operation that it waits in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...profiler.topology import group_id
from ..states import Flight, RankState, Snapshot
from ..verdict import GroupName
from .facts import LogEvidence, Timeout, Watermark
from .groups import P2P, LogGroup, key_of, log_groups

ANY_SIZE = frozenset({"ALLTOALL", "ALLTOALL_BASE", "ALLGATHER", "GATHER", "SCATTER", "REDUCE_SCATTER"})
"""Operations to which ranks may rightly bring different numbers of elements."""


@dataclass(slots=True)
class Position:
    """One rank in one group. ``timeout`` is set where its watchdog complained of operation ``waits_in``."""

    enqueued: int = 0
    completed: int = 0
    waits_in: int | None = None
    timeout: Timeout | None = None
    mark: Watermark | None = None


@dataclass(slots=True)
class Scene:
    """A look made of logs. ``groups`` are those whose members' numbers can be compared, by the look's group id;
    ``silent`` maps a group's id to its members of which no line tells how far they are; ``lonely`` are ranks that wait
    in operations that tell nothing of others (point to point, groups whose members are not known)."""

    snapshot: Snapshot
    groups: dict[int, LogGroup] = field(default_factory=dict)
    positions: dict[int, dict[int, Position]] = field(default_factory=dict)
    silent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    lonely: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def waiting(self) -> frozenset[int]:
        """Ranks whose watchdog complained that an operation does not end."""
        placed = {rank for own in self.positions.values() for rank, one in own.items() if one.waits_in is not None}
        return frozenset(placed | self.lonely)


def build_scene(evidence: LogEvidence, gone: frozenset[int] = frozenset()) -> Scene:
    """The look; ``gone`` are ranks whose process has ended before the others began to wait.

    A group has the members that are known to be in it. Those of which no line tells how far they are count as absent
    (they are in ``silent``): whoever reads the result must not take that for proof.
    """
    places = _positions(evidence)
    names: dict[int, GroupName] = {}
    scene = Scene(Snapshot(_moment(evidence), {}, names, dict(evidence.hosts), {}))
    for group in log_groups(evidence):
        own = places.get(key_of(group.label) or "", {})
        waiting = {rank for rank, one in own.items() if one.waits_in is not None}
        if group.mixed or _is_p2p(own):
            scene.lonely |= waiting
            if group.mixed and waiting:
                scene.notes.append(f"several groups go by the name {group.label}: their numbers cannot be compared")
            continue
        members = group.members or tuple(sorted(set(own)))
        name = GroupName(str(group.label), tuple(sorted({*members, *own})))
        number = group_id(name.kind, name.ranks)
        names[number], scene.groups[number], scene.positions[number] = name, group, own
        silent = tuple(rank for rank in name.ranks if rank not in own and rank not in gone)
        if silent:
            scene.silent[number] = silent
    named = {rank for own in scene.positions.values() for rank in own}
    scene.lonely |= {one.rank for one in evidence.timeouts if one.rank is not None and one.rank not in named}
    states = _states(evidence, scene, gone)
    missing = tuple(rank for rank in range(evidence.world_size or 0) if rank not in states)
    scene.snapshot = Snapshot(scene.snapshot.moment_ns, states, names, scene.snapshot.hosts, {}, missing=missing)
    return scene


def _moment(evidence: LogEvidence) -> int:
    told: list[Timeout | Watermark] = [*evidence.timeouts, *evidence.watermarks]
    moments = [one.moment_ns for one in told if one.moment_ns is not None]
    return max(moments, default=evidence.last_ns or 0)


def _positions(evidence: LogEvidence) -> dict[str, dict[int, Position]]:
    """How far ranks are, by the group's name and the rank."""
    places: dict[str, dict[int, Position]] = defaultdict(lambda: defaultdict(Position))
    for mark in evidence.watermarks:
        identity = None if mark.label is None else key_of(mark.label)
        if identity is None or mark.rank is None:
            continue
        one = places[identity][mark.rank]
        one.enqueued, one.completed = max(one.enqueued, mark.enqueued), max(one.completed, mark.completed)
        one.mark = one.mark or mark
        if mark.failed is not None:
            one.waits_in = mark.failed if one.waits_in is None else min(one.waits_in, mark.failed)
    for timeout in evidence.timeouts:
        identity = None if timeout.label is None else key_of(timeout.label)
        if identity is None or timeout.rank is None or timeout.sequence is None:
            continue
        one = places[identity][timeout.rank]
        one.enqueued = max(one.enqueued, timeout.sequence)
        if one.waits_in is None or timeout.sequence <= one.waits_in:
            one.waits_in, one.timeout = timeout.sequence, timeout
    for own in places.values():
        for one in own.values():
            if one.waits_in is not None and one.completed >= one.waits_in:
                one.completed = one.waits_in - 1
    return places


def _is_p2p(own: Mapping[int, Position]) -> bool:
    return any(one.timeout is not None and one.timeout.operation in P2P for one in own.values())


def _states(evidence: LogEvidence, scene: Scene, gone: frozenset[int]) -> dict[int, RankState]:
    progress: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    flights: dict[int, list[Flight]] = defaultdict(list)
    for number, own in scene.positions.items():
        named = _named(own)
        for rank, one in own.items():
            progress[rank][number] = (one.enqueued, one.completed)
            if one.waits_in is not None:
                begun_ns = _begun_ns(one.timeout)
                flights[rank].append(
                    Flight(named[rank], "collective", number, one.waits_in, begun_ns=begun_ns, waiting=True)
                )
    ranks = set(progress) | scene.lonely | gone | {one.rank for one in evidence.stuck if one.rank is not None}
    at = scene.snapshot.moment_ns
    return {
        rank: RankState(
            rank, at, flights=() if rank in gone else tuple(flights[rank]), progress=dict(progress[rank]),
            process_state="gone" if rank in gone else None,
        )
        for rank in sorted(ranks)
    }  # fmt: skip


def _begun_ns(timeout: Timeout | None) -> int | None:
    """When an operation that took too long was enqueued."""
    if timeout is None or timeout.moment_ns is None:
        return None
    return timeout.moment_ns - (timeout.ran_ms or timeout.limit_ms or 0) * 10**6


def _named(own: Mapping[int, Position]) -> dict[int, str]:
    """The name of each rank's operation; with its size where members brought different ones to one number."""
    at: dict[int, list[int]] = defaultdict(list)
    for rank, one in own.items():
        if one.waits_in is not None:
            at[one.waits_in].append(rank)
    names: dict[int, str] = {}
    for ranks in at.values():
        works = {rank: work for rank in ranks if (work := own[rank].timeout) is not None}
        known = next(iter(works.values()), None)
        sized = _differ_in_size(list(works.values()))
        for rank in ranks:
            this = works.get(rank, known)
            name = "collective" if this is None else this.operation.lower().strip("_")
            names[rank] = f"{name} of {this.elements_in} elements" if sized and this is not None else name
    return names


def _differ_in_size(works: Sequence[Timeout]) -> bool:
    """Whether ranks brought different numbers of elements to an operation that wants the same of all."""
    kinds = {one.operation for one in works}
    sizes = {one.elements_in for one in works}
    return len(kinds) == 1 and not kinds & ANY_SIZE and None not in sizes and len(sizes) > 1
