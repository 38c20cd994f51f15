"""From records of a black box to rows of the tables: vectorised, with stable identities, UTC times and NULLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..profiler.box import ABSENT_I16, ABSENT_I32, ABSENT_I64
from ..profiler.topology import group_id, segment_id
from ..profiler.vocabulary import CLOCK_CODES, STATUS_CODES, Clock, SegmentKind


class _Identified(Protocol):
    @property
    def id(self) -> int: ...


Records = np.ndarray[Any, Any]
"""Records of a box: one-dimensional, dtype `profiler.box.RECORD`."""

_PIECE_RECORDS = 16384
"""Records lie 128 bytes apart: pieces that fit the cache are turned into columns five times faster."""

MOST_INDEX = 2**16
"""Local indices of segments and groups from here on come from damage: no recorder gives that many."""

_HOST_STREAM = "host"
_DEVICE = CLOCK_CODES.index(Clock.DEVICE)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as one rank registered it; ``id`` is the same on every rank."""

    id: int
    name: str
    kind: str
    axis: str | None

    @classmethod
    def of(cls, name: str, kind: str, axis: str | None) -> Segment:
        """Build with the identity that follows from the arguments."""
        return cls(segment_id(name, kind, axis), name, kind, axis)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank registered it; ``id`` is the same on every rank."""

    id: int
    kind: str
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, kind: str, ranks: tuple[int, ...]) -> Group:
        """Build with the identity that follows from the arguments."""
        return cls(group_id(kind, ranks), kind, ranks)


@dataclass(slots=True)
class Names:
    """What a rank's local indices stand for. An index whose metadata was lost gets a name that says so."""

    segments: dict[int, Segment] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    streams: dict[int, str] = field(default_factory=dict)
    version: int = 0

    def add_segment(self, index: int, segment: Segment) -> None:
        """Register a segment's local index. ValueError for one that no recorder can have given."""
        self.segments[_checked(index)] = segment
        self.version += 1

    def add_group(self, index: int, group: Group) -> None:
        """Register a group's local index. ValueError for one that no recorder can have given."""
        self.groups[_checked(index)] = group
        self.version += 1

    def segment(self, index: int) -> Segment:
        """The segment of a local index; all that are beyond `MOST_INDEX` share one."""
        known = self.segments.get(min(index, MOST_INDEX))
        if known is None:
            index = min(index, MOST_INDEX)
            known = self.segments[index] = Segment.of(f"(unnamed segment {index})", SegmentKind.HOST, None)
            self.version += 1
        return known

    def complete(self, indices: npt.NDArray[Any]) -> None:
        """Give every segment index that occurs (up to `MOST_INDEX`) a name, also where its metadata was lost."""
        occurs = np.zeros(MOST_INDEX + 1, bool)
        occurs[indices] = True
        for index in np.flatnonzero(occurs):
            self.segment(int(index))

    def group_of(self, index: int) -> int | None:
        """Identity of the group with a local index; None where there is none."""
        group = self.groups.get(index)
        return None if group is None else group.id


def _checked(index: int) -> int:
    if not 0 <= index < MOST_INDEX:
        raise ValueError(f"index {index} is none of 0 to {MOST_INDEX - 1}")
    return index


def known_codes(records: Records) -> npt.NDArray[np.bool_]:
    """Which records have a clock and a status that this version knows; others come from damage."""
    known: npt.NDArray[np.bool_] = (records["clock"] < len(CLOCK_CODES)) & (records["status"] < len(STATUS_CODES))
    return known


def event_rows(records: Records, rank: int, clock_base_ns: int, names: Names) -> pa.Table:
    """Rows of ``events`` (without run and attempt) for completed spans of one rank.

    Times become UTC by adding ``clock_base_ns``. Markers for missing values become NULL. A span timed by the device
    keeps the moment of its launch on the host as ``enqueue_ns``.
    """
    pieces = range(0, max(1, len(records)), _PIECE_RECORDS)
    return pa.concat_tables(
        _event_piece(records[first : first + _PIECE_RECORDS], rank, clock_base_ns, names) for first in pieces
    )


def _event_piece(records: Records, rank: int, clock_base_ns: int, names: Names) -> pa.Table:
    count = len(records)
    segments = np.minimum(records["segment"], MOST_INDEX)
    names.complete(segments)
    on_device = records["clock"] == _DEVICE
    start = records["start_ns"] + clock_base_ns
    columns: dict[str, pa.Array] = {
        "rank": pa.array(np.full(count, rank, np.int32)),
        "step": _nullable(records["step"], ABSENT_I64),
        "microbatch": _nullable(records["microbatch"], ABSENT_I32),
        "chunk": _nullable(records["chunk"], ABSENT_I16),
        "segment": _identities(segments, names.segments),
        "stream": _streams(records["stream"], names.streams),
        "thread": pa.array(records["thread"].astype(np.int16)),
        "parent": _identities(records["parent"], names.segments),
        "start_ns": pa.array(start),
        "duration_ns": _nullable(records["duration_ns"], ABSENT_I64),
        "self_ns": _nullable(records["self_ns"], ABSENT_I64),
        "exposed_ns": _nullable(records["exposed_ns"], ABSENT_I64),
        "enqueue_ns": pa.array(records["begun_ns"] + clock_base_ns, mask=~on_device),
        "clock": _coded(records["clock"], [str(clock) for clock in CLOCK_CODES]),
        "group": _identities(records["group"], names.groups),
        "sequence": _nullable(records["sequence"], ABSENT_I64),
        "peer": _nullable(records["peer"], ABSENT_I32),
        "size_bytes": _nullable(records["size_bytes"], ABSENT_I64),
        "status": _coded(records["status"], [str(status) for status in STATUS_CODES]),
    }
    return pa.table(columns)


def _nullable(values: npt.NDArray[Any], absent: int) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=values == absent)


def _coded(codes: npt.NDArray[Any], names: list[str]) -> pa.DictionaryArray:
    """Small codes as a dictionary column. Raises IndexError for a code that this version does not know."""
    if len(codes) and int(codes.max()) >= len(names):
        raise IndexError(f"code {int(codes.max())} is none of {', '.join(names)}")
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))


def _streams(indices: npt.NDArray[Any], names: Mapping[int, str]) -> pa.DictionaryArray:
    highest = int(indices.max(initial=0))
    labels = [names.get(index, _HOST_STREAM if index == 0 else f"stream {index}") for index in range(highest + 1)]
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), pa.array(labels, pa.string()))


def _identities(indices: npt.NDArray[Any], known: Mapping[int, _Identified]) -> pa.Array:
    """Stable identities of local indices, by a table whose last place stands for what is absent or unknown."""
    size = max(known, default=-1) + 1
    ids, missing = np.zeros(size + 1, np.int64), np.ones(size + 1, bool)
    for index, entry in known.items():
        ids[index], missing[index] = entry.id, False
    places = np.minimum(indices, size)
    return pa.array(ids[places], mask=missing[places])


def flights(slots: Records, clock_base_ns: int, names: Names) -> list[dict[str, Any]]:
    """Open slots as values for ``in_flight``, the outermost first; what is done and not waited for is left out."""
    return [_flight(slot, clock_base_ns, names) for slot in slots if not slot["ended"]]


def _flight(slot: Any, clock_base_ns: int, names: Names) -> dict[str, Any]:
    segment = names.segment(int(slot["segment"]))
    return {
        "segment": segment.name,
        "kind": segment.kind,
        "group": names.group_of(int(slot["group"])),
        "sequence": _known(slot["sequence"], ABSENT_I64),
        "peer": _known(slot["peer"], ABSENT_I32),
        "microbatch": _known(slot["microbatch"], ABSENT_I32),
        "step": _known(slot["step"], ABSENT_I64),
        "begun_ns": int(slot["begun_ns"]) + clock_base_ns,
    }


def _known(value: Any, absent: int) -> int | None:
    return None if value == absent else int(value)


def group_progress(progress: npt.NDArray[Any], names: Names) -> list[dict[str, Any]]:
    """The last sequence numbers, issued and completed, of every group in which anything was issued."""
    used = np.flatnonzero((progress["issued"] != 0) | (progress["completed"] != 0))
    return [
        {
            "group": names.groups[int(index)].id,
            "issued": int(progress["issued"][index]),
            "completed": int(progress["completed"][index]),
        }
        for index in used
        if int(index) in names.groups
    ]
