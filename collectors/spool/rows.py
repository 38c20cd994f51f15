"""What a rank's records mean: names behind its local indices, and what is in flight and how far its groups are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...profiler.box.box import ABSENT_I32, ABSENT_I64
from ...profiler.box.format import UNKNOWN_FLAG
from ...profiler.topology import group_id, segment_id
from ...profiler.vocabulary import CLOCK_CODES, STATUS_CODES, SegmentKind


class Identified(Protocol):
    """A segment or a group."""

    @property
    def id(self) -> int:
        """Identity that is the same on every rank."""


Records = np.ndarray[Any, Any]
"""Records of a box: one-dimensional, dtype `profiler.box.RECORD`."""

MOST_INDEX = 2**16
"""Local indices of segments and groups from here on come from damage: no recorder gives that many."""

HOST_STREAM = "host"


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
        "size_bytes": _known(slot["size_bytes"], ABSENT_I64),
        "waiting": None if slot["waiting"] == UNKNOWN_FLAG else bool(slot["waiting"]),
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
