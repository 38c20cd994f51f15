"""Process groups of torch as the recorder knows them: kind, global ranks, and how many operations were issued."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..box.box import ABSENT_INDEX
from ..null import NullRecorder
from ..recorder import Recorder
from ..topology import Topology
from ..vocabulary import SegmentKind

WORLD = "world"
_MESH_PREFIX = "mesh_"

_ignored: weakref.WeakSet[Any] = weakref.WeakSet()


def ignore_group(process_group: Any) -> None:
    """Leave a group's operations alone: somebody else records them."""
    _ignored.add(process_group)


@dataclass(slots=True)
class Edge:
    """One direction between two ranks; both ends number its operations alike. ``peer`` is the other end."""

    index: int
    peer: int
    issued: int = 0


@dataclass(slots=True)
class GroupTrack:
    """One process group: its identity in the recorder, and the operations issued so far."""

    kind: str
    axis: str
    ranks: tuple[int, ...]
    index: int
    issued: int = 0
    segments: dict[str, int] = field(default_factory=dict)
    edges: dict[tuple[int, bool], Edge] = field(default_factory=dict)


class Groups:
    """Finds the track of a ``torch.distributed.ProcessGroup``; ``topology`` names the axis that a group lies along."""

    def __init__(self, recorder: Recorder | NullRecorder, topology: Topology | None) -> None:
        self._recorder, self._topology = recorder, topology
        self._tracks: weakref.WeakKeyDictionary[Any, GroupTrack | None] = weakref.WeakKeyDictionary()
        self._by_index: dict[int, GroupTrack] = {}

    def of(self, process_group: Any) -> GroupTrack | None:
        """The track of a group; None for one that is not to be recorded, or whose ranks nobody knows.

        torch knows the ranks of groups that ``init_process_group`` and ``new_group`` made.
        """
        try:
            return self._tracks[process_group]
        except KeyError:
            pass
        track = None
        if process_group not in _ignored:
            with contextlib.suppress(KeyError, ValueError, RuntimeError):
                track = self._new(process_group)
        self._tracks[process_group] = track
        return track

    def segment(self, track: GroupTrack, name: str, kind: SegmentKind) -> int:
        """Index of a segment such as ``dp_all_reduce``."""
        index = track.segments.get(name)
        if index is None:
            index = track.segments[name] = self._recorder.segment(f"{track.kind}_{name}", kind, track.axis)
        return index

    def edge(self, track: GroupTrack, peer: int, *, sends: bool) -> Edge:
        """The direction of a p2p operation; ``peer`` is a rank in the group, as torch counts."""
        edge = track.edges.get((peer, sends))
        if edge is None:
            own, other = _own_rank(), track.ranks[peer]
            source, target = (own, other) if sends else (other, own)
            kind = f"{track.kind}_{'up' if source < target else 'down'}"
            edge = track.edges[peer, sends] = Edge(self._recorder.group(kind, (source, target)), other)
        return edge

    def _new(self, process_group: Any) -> GroupTrack:
        ranks = _global_ranks(process_group)
        axis = self._axis(process_group, ranks)
        number = _ordinal(process_group, ranks)
        kind = axis if number == 0 else f"{axis}_{number + 1}"
        index = self._recorder.group(kind, ranks)
        track = self._by_index.get(index)  # of a group that was destroyed: its numbers go on
        if track is None:
            track = GroupTrack(kind, axis, ranks, index)
            if index != ABSENT_INDEX:
                self._by_index[index] = track
        return track

    def _axis(self, process_group: Any, ranks: Sequence[int]) -> str:
        """The mesh's axis with these ranks, or the name that a DeviceMesh gave, or world, or group."""
        mesh, rank = self._topology, _own_rank()
        if mesh is not None and len(ranks) > 1 and 0 <= rank < mesh.world_size:
            for axis in mesh.names:
                if sorted(mesh.group(axis, rank)) == sorted(ranks):
                    return axis
        description = str(getattr(process_group, "group_desc", "") or "")
        if description.startswith(_MESH_PREFIX):
            return description.removeprefix(_MESH_PREFIX)
        return WORLD if len(ranks) == _world_size() else "group"


def _distributed() -> Any:
    return sys.modules["torch.distributed"]


def _own_rank() -> int:
    return int(_distributed().get_rank())


def _world_size() -> int:
    return int(_distributed().get_world_size())


def _global_ranks(process_group: Any) -> tuple[int, ...]:
    return tuple(int(rank) for rank in _distributed().get_process_group_ranks(process_group))


def _ordinal(process_group: Any, ranks: Sequence[int]) -> int:
    """How many groups of the same ranks were made before: all their members make them in the same order."""
    known = _distributed().distributed_c10d._world.pg_group_ranks
    same = [group for group, places in known.items() if sorted(places) == sorted(ranks)]
    return next((number for number, group in enumerate(same) if group is process_group), 0)
