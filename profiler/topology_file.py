"""`topology.json`: which ranks form which group, on which hosts; it lies beside dumps, which do not say."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import urllib.parse
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import FormatError
from .topology import Topology

log = logging.getLogger(__name__)

TOPOLOGY_FILE = "topology.json"
HOSTS_FILES = "hosts.*.csv"
"""Beside it, one of each host: which ranks run there, as lines of rank and host."""

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
    own = _written_aside(path, _text_of(content))
    own.replace(path)
    return path


def share_topology_file(folder: Path, content: TopologyFile) -> bool:
    """Write the file into a folder into which others may write it too: the first one stays.

    False, with a warning, where that one tells another mesh; hosts are not compared (see `write_hosts`). OSError
    where nothing can be written.
    """
    path = folder / TOPOLOGY_FILE
    own = _written_aside(path, _text_of(content))
    try:
        os.link(own, path)  # unlike a rename, it fails where somebody else was first
    except FileExistsError:
        return _is_alike(path, content)
    except OSError:  # a file system without hard links
        if path.exists():
            return _is_alike(path, content)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)
    return True


def _is_alike(path: Path, content: TopologyFile) -> bool:
    try:
        known = read_topology_file(path)
    except FormatError as error:
        log.warning("The mesh of this job is not written beside its dumps. %s", error)
        return False
    if _mesh(known) == _mesh(content):
        return True
    log.warning(
        "%s tells another mesh (%s, of %d ranks) than this job's (%s, of %d ranks): it is left as it is. Remove it if "
        "it is an older one.",
        path, dict(known.axes), known.world_size, dict(content.axes), content.world_size,
    )  # fmt: skip
    return False


def _mesh(content: TopologyFile) -> tuple[object, ...]:
    return content.world_size, dict(content.axes), set(content.groups), dict(content.coordinates)


def _written_aside(path: Path, text: str) -> Path:
    """A temporary file beside ``path`` with a text, under a name that no other host or process takes."""
    own = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        own.write_text(text, encoding="utf-8")
    except OSError:
        own.unlink(missing_ok=True)
        raise
    return own


def _text_of(content: TopologyFile) -> str:
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
    return json.dumps(value, separators=(",", ":"))


def read_topology_file(path: Path) -> TopologyFile:
    """Read the file. FormatError for one that is damaged or of another version; OSError where it cannot be read."""
    try:
        value = json.loads(path.read_bytes())
        if value["version"] != VERSION:
            raise FormatError(f"{path} has version {value['version']!r}, and this reads {VERSION}: upgrade megascope.")
        return _parse(value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is no topology file ({error}): remove it, or write it again.") from error


def read_topology(folder: Path) -> TopologyFile | None:
    """The topology of a folder with the hosts of all its `HOSTS_FILES`; None where it has neither.

    FormatError for a file that is damaged or of another version; OSError for one that cannot be read.
    """
    path = folder / TOPOLOGY_FILE
    known = read_topology_file(path) if path.is_file() else None
    hosts: dict[int, str] = {}
    for one in sorted(folder.glob(HOSTS_FILES)):
        hosts |= read_hosts(one)
    if known is None:
        return TopologyFile(0, hosts=hosts) if hosts else None
    return replace(known, hosts={**known.hosts, **hosts})


def file_of_host(host: str) -> str:
    """Name of the file that tells the ranks of a host; any host's name can be in it."""
    return HOSTS_FILES.replace("*", urllib.parse.quote(host, safe="")[:200])


def write_hosts(folder: Path, host: str, hosts: Mapping[int, str]) -> None:
    """Write which ranks run where, as one host knows it: it is the only one to write its file. OSError where that
    cannot be done."""
    path = folder / file_of_host(host)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("rank", "host"), *sorted(hosts.items())])
    _written_aside(path, text.getvalue()).replace(path)


def read_hosts(path: Path) -> dict[int, str]:
    """Hosts by global rank; none where there is no such file. FormatError for one that is damaged."""
    with contextlib.suppress(FileNotFoundError):
        try:
            rows = csv.reader(path.read_text(encoding="utf-8").splitlines()[1:])
            return {int(rank): host for rank, host in rows}
        except (ValueError, csv.Error) as error:
            raise FormatError(
                f"{path} is no list of ranks and hosts ({error}): remove it, or write it again."
            ) from error
    return {}


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
