"""From the plain values of a dump to a `Dump`: operations in flight, groups by their members, how far it is in each."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...profiler.dump_taking import is_over
from ...profiler.topology_file import TopologyFile
from ..verdict import GroupName
from .facts import Dump, DumpedOperation
from .loading import DumpError

MAJOR = "2"
DEFAULT_GROUP = "default_pg"
NCCL, UNKNOWN = "nccl", "unknown"
_WORLD = "world"
_MESH = "mesh_"
_MESSAGE = re.compile(r"^(send|recv) (\d{1,9})\s*(->|<-)\s*(\d{1,9})$")
_MOST_FRAMES = 3


def parse(value: Mapping[str, Any], rank: int, path: Path, topology: TopologyFile | None = None) -> Dump:
    """A dump's values as a `Dump`. DumpError for another major version, and for fields that are not those of a dump.

    Process groups are known by their description and their members, never by a name or a number of the library: the
    numbers are a rank's own. Where a dump does not tell the members (gloo), ``topology`` does.
    """
    version = str(value["version"])
    if version.split(".", maxsplit=1)[0] != MAJOR:
        raise DumpError(f"it has format {version}, and {MAJOR}.x is read: upgrade megascope")
    try:
        return _Parsing(value, rank, topology).dump(path, version)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise DumpError(f"its fields are not those of a dump ({type(error).__name__}: {error})") from error


@dataclass(slots=True)
class _Parsing:
    value: Mapping[str, Any]
    rank: int
    topology: TopologyFile | None
    by_name: dict[str, GroupName] = field(default_factory=dict)

    def dump(self, path: Path, version: str) -> Dump:
        self.by_name = self._groups()
        entries = [one if isinstance(one, dict) else dict(one) for one in self.value.get("entries") or ()]
        entries.sort(key=lambda one: int(one.get("record_id", 0)))
        by_id = self._ids(entries)
        enqueued, completed = self._status(by_id)
        operations = [self._operation(one, by_id) for one in entries if not is_over(one)]
        placed = [one for one in operations if one.group is not None]
        moments = [moment for one in entries if (moment := _moment(one)) is not None]
        return Dump(
            self.rank, path, version, _library(entries, self.value), len(entries), tuple(placed),
            tuple(dict.fromkeys([*self.by_name.values(), *by_id.values()])), enqueued, completed,
            self._seen(entries, by_id), len(operations) - len(placed), max(moments, default=None),
            self._newest(entries, by_id), self._is_blank(entries),
        )  # fmt: skip

    def _groups(self) -> dict[str, GroupName]:
        """Groups by the library's name, of those whose members are told."""
        found: dict[str, GroupName] = {}
        config = self.value.get("pg_config") or {}
        for name in sorted(config, key=lambda one: (len(str(one)), str(one))):
            group = _told(str(config[name].get("desc") or name), str(config[name].get("ranks") or "[]"))
            if group.ranks:
                found[str(name)] = _unlike(group, found)
        return found

    def _ids(self, entries: Iterable[Mapping[str, Any]]) -> dict[int, GroupName]:
        """Groups by this rank's own ids. No field says which id has which name: entries do, and for the others both
        are in the order of their making (held against 64 dumps of real jobs)."""
        told: dict[int, GroupName] = {}
        for one in entries:
            name, description = str(one["process_group"][0]), str(one["process_group"][1])
            group = self.by_name.get(name) or self._of_topology(name, description)
            if group is not None:
                told[int(one["pg_id"])] = group
        names = list(self.value.get("pg_config") or {})
        ids = list(self.value.get("pg_status") or {})
        if len(names) == len(ids) and all(str(name).isdigit() for name in names):
            ordered = zip(sorted(names, key=int), sorted(ids, key=int), strict=True)
            guess = {int(number): self.by_name[name] for name, number in ordered if name in self.by_name}
            if all(guess.get(number, group) == group for number, group in told.items()):
                told = {**guess, **told}
        return told

    def _of_topology(self, name: str, description: str) -> GroupName | None:
        """The group of this rank that the topology file has under a name, or as the only one of that kind."""
        if self.topology is None:
            return None
        mine = [one for one in self.topology.groups if self.rank in one.ranks]
        kind = _WORLD if description == DEFAULT_GROUP else description.removeprefix(_MESH)
        found = [one for one in mine if one.name == name] or [one for one in mine if one.kind == kind]
        return _group(description, found[0].ranks) if len(found) == 1 else None

    def _status(self, by_id: Mapping[int, GroupName]) -> tuple[dict[GroupName, int], dict[GroupName, int]]:
        enqueued: dict[GroupName, int] = {}
        completed: dict[GroupName, int] = {}
        for number, told in (self.value.get("pg_status") or {}).items():
            group = by_id.get(int(number))
            if group is not None:
                enqueued[group] = int(told["last_enqueued_collective"])
                completed[group] = int(told["last_completed_collective"])
        return enqueued, completed

    def _seen(self, entries: Iterable[Mapping[str, Any]], by_id: Mapping[int, GroupName]) -> dict[GroupName, int]:
        """The last collective of each group that the dump itself shows as completed."""
        seen: dict[GroupName, int] = {}
        for one in entries:
            group = by_id.get(int(one["pg_id"]))
            if group is not None and not one.get("is_p2p") and is_over(one):
                seen[group] = max(seen.get(group, 0), int(one["collective_seq_id"]))
        return seen

    def _newest(self, entries: Sequence[Mapping[str, Any]], by_id: Mapping[int, GroupName]) -> DumpedOperation | None:
        """The collective that was enqueued last; None if that was a message, or of a group that is not told."""
        newest = self._operation(entries[-1], by_id) if entries else None
        return newest if newest is not None and newest.group is not None and not newest.is_p2p else None

    def _is_blank(self, entries: Sequence[Mapping[str, Any]]) -> bool:
        """Whether nothing shows that anything was ever recorded here: no operation, no count, no library."""
        return not entries and not self.value.get("pg_status") and _library(entries, self.value) == UNKNOWN

    def _operation(self, entry: Mapping[str, Any], by_id: Mapping[int, GroupName]) -> DumpedOperation:
        library, name, place = _called(str(entry["profiling_name"]))
        group = by_id.get(int(entry["pg_id"]))
        peer = None
        if place is not None and group is not None:
            peer = group.ranks[place] if place < len(group.ranks) else None
        return DumpedOperation(
            name=name,
            library=library,
            group=group if peer is not None or place is None else None,
            sequence=int(entry["collective_seq_id"]),
            begun_ns=_moment(entry),
            is_p2p=place is not None,
            peer=peer,
            sizes=(_sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))),
            dtypes=(_frozen(entry.get("input_dtypes")), _frozen(entry.get("output_dtypes"))),
            frames=_frames(entry.get("frames")),
        )


@functools.lru_cache(maxsize=4096)
def _called(profiling_name: str) -> tuple[str, str, int | None]:
    """The library, the name of the operation, and of a message the place of the other rank in its group."""
    library, _, name = profiling_name.rpartition(":")
    message = _MESSAGE.match(name)
    return library.split(":")[0], message[1] if message else name, int(message[4]) if message else None


def _group(kind: str, ranks: Iterable[Any]) -> GroupName:
    return GroupName(kind, tuple(sorted({int(rank) for rank in ranks})))


@functools.lru_cache(maxsize=65536)
def _told(kind: str, ranks: str) -> GroupName:
    """A group as `pg_config` tells it. All members tell the same: one object for all saves hundreds of MiB."""
    return _group(kind, json.loads(ranks))


def _unlike(group: GroupName, others: Mapping[str, GroupName]) -> GroupName:
    """The group, told apart from those before it of the same description and members, which count by themselves."""
    alike = sum(1 for one in others.values() if one.kind.partition(" #")[0] == group.kind and one.ranks == group.ranks)
    return GroupName(f"{group.kind} #{alike + 1}", group.ranks) if alike else group


def _library(entries: Sequence[Mapping[str, Any]], value: Mapping[str, Any]) -> str:
    """The library that recorded: of several NCCL, which moves what the job computes."""
    if any(str(one["profiling_name"]).startswith(f"{NCCL}:") for one in entries):
        return NCCL
    if entries:
        return str(entries[0]["profiling_name"]).split(":", maxsplit=1)[0]
    return NCCL if value.get("nccl_version") or value.get("comm_lib_version") else UNKNOWN


def _moment(entry: Mapping[str, Any]) -> int | None:
    """When an operation was enqueued, ns."""
    moment = int(entry.get("time_created_ns") or 0)
    if not 0 <= moment < 2**63:
        raise ValueError(f"time_created_ns is {moment:.3g}")
    return moment or None


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor."""
    sizes: tuple[tuple[int, ...], ...] = _shared(tuple(tuple(map(int, shape)) for shape in value or ()))
    return sizes


def _frozen(value: Any) -> object:
    if not isinstance(value, list | tuple):
        return value
    frozen = tuple(_frozen(one) for one in value)
    return _shared(frozen) if all(isinstance(one, str) for one in frozen) else frozen


def _frames(frames: Any) -> tuple[str, ...]:
    told = list(frames or ())[:_MOST_FRAMES]
    found: tuple[str, ...] = _shared(
        tuple(f"{one.get('name')} at {one.get('filename')}:{one.get('line')}" for one in told)
    )
    return found


@functools.lru_cache(maxsize=65536)
def _shared(value: Hashable) -> Any:
    """The first of equal values. Ranks run one program: one object for all saves hundreds of MiB."""
    return value
