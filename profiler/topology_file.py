"""`topology.json`: which ranks form which group, on which hosts; it lies beside dumps, which do not say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import FormatError
from .topology import Topology

TOPOLOGY_FILE = "topology.json"
VERSION = 1
MOST_RANKS = 2**24
"""More is no job, but a damaged file."""


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A process group: its kind (an axis, or "world"), its sorted global ranks, and the library's name if known."""

    kind: str
    ranks: tuple[int, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """What the file says. ``axes`` maps an axis to its size, the outermost first; empty where the mesh is not known.

    ``hosts`` and ``coordinates`` are by global rank, and need not have all of them.
    """

    world_size: int
    axes: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[NamedGroup, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    run: str | None = None
    attempt: int | None = None


def describe(
    topology: Topology,
    *,
    hosts: Mapping[int, str] | None = None,
    more: Iterable[NamedGroup] = (),
    run: str | None = None,
    attempt: int | None = None,
) -> TopologyFile:
    """All groups of a mesh along its axes (of two ranks and more), the world, and ``more``; with all coordinates."""
    ranks = range(topology.world_size)
    groups = [NamedGroup("world", tuple(ranks))]
    for axis in topology.names:
        groups += [NamedGroup(axis, tuple(sorted(one))) for one in topology.groups(axis) if len(one) > 1]
    return TopologyFile(
        topology.world_size,
        dict(topology.axes),
        (*groups, *more),
        dict(hosts or {}),
        {rank: topology.coordinates(rank) for rank in ranks},
        run,
        attempt,
    )


def write_topology_file(folder: Path, content: TopologyFile) -> Path:
    """Write the file into a folder, whole or not at all. OSError where that cannot be done."""
    path = folder / TOPOLOGY_FILE
    own = folder / f"{TOPOLOGY_FILE}.{os.getpid()}.tmp"
    value = {
        "version": VERSION,
        "run": content.run,
        "attempt": content.attempt,
        "world_size": content.world_size,
        "axes": dict(content.axes),
        "groups": [{"name": one.name, "kind": one.kind, "ranks": list(one.ranks)} for one in content.groups],
        "hosts": {str(rank): host for rank, host in content.hosts.items()},
        "coordinates": {str(rank): dict(place) for rank, place in content.coordinates.items()},
    }
    own.write_text(json.dumps(value, separators=(",", ":")))
    own.replace(path)
    return path


def read_topology_file(path: Path) -> TopologyFile:
    """Read the file. FormatError for one that is damaged or of another version; OSError where it cannot be read."""
    try:
        value = json.loads(path.read_bytes())
        if value["version"] != VERSION:
            raise FormatError(f"{path} has version {value['version']!r}, and this reads {VERSION}: upgrade megascope.")
        return _parse(value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is no topology file ({error}): remove it, or write it again.") from error


def _parse(value: Mapping[str, Any]) -> TopologyFile:
    axes = {str(axis): int(size) for axis, size in value.get("axes", {}).items()}
    coordinates = {
        int(rank): {str(axis): int(index) for axis, index in place.items()}
        for rank, place in value.get("coordinates", {}).items()
    }
    groups = tuple(
        NamedGroup(str(one["kind"]), tuple(sorted(int(rank) for rank in one["ranks"])), _text(one.get("name")))
        for one in value.get("groups", ())
    )
    world_size = int(value.get("world_size") or max((rank + 1 for one in groups for rank in one.ranks), default=0))
    if not 0 <= world_size <= MOST_RANKS:
        raise ValueError(f"a world of {world_size} ranks")
    hosts = {int(rank): str(host) for rank, host in value.get("hosts", {}).items()}
    attempt = value.get("attempt")
    return TopologyFile(
        world_size, axes, groups, hosts, coordinates, _text(value.get("run")), None if attempt is None else int(attempt)
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
