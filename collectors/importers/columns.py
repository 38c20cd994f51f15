"""Columns that importers share: names as dictionaries, numbers with NULL where they are missing, groups, segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...profiler.topology import group_id, segment_id
from ...profiler.vocabulary import Clock, SegmentKind
from ..tables.schema_types import FLIGHT, GROUP_PROGRESS

IntArray = npt.NDArray[np.int64]

ABSENT = -1


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as the store has it, and the stream and the clock of its spans."""

    name: str
    kind: SegmentKind
    axis: str | None
    stream: str
    clock: Clock = Clock.DEVICE

    @property
    def id(self) -> int:
        """Identity, as in ``segments``."""
        return segment_id(self.name, str(self.kind), self.axis)


ITERATION = SegmentInfo("iteration", SegmentKind.HOST, None, "host", Clock.HOST)
"""A whole step, of which nothing tells what is inside."""


def segment_rows(segments: Sequence[SegmentInfo]) -> pa.Table:
    """Rows of ``segments``, each once."""
    known = {one.id: one for one in segments}
    return pa.table(
        {
            "segment": pa.array(list(known), pa.int64()),
            "name": pa.array([one.name for one in known.values()], pa.string()),
            "kind": pa.array([str(one.kind) for one in known.values()], pa.string()),
            "axis": pa.array([one.axis for one in known.values()], pa.string()),
        }
    )


class GroupBook:
    """The groups of a run: identities by kind and ranks, and their rows."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, tuple[int, ...]]] = {}

    def id_of(self, kind: str, ranks: Sequence[int]) -> int:
        """Identity of a group, which is in the table from now on."""
        members = tuple(sorted(set(ranks)))
        found = group_id(kind, members)
        self._known[found] = (kind, members)
        return found

    def rows(self) -> pa.Table:
        """Rows of ``groups``."""
        return pa.table(
            {
                "group": pa.array(list(self._known), pa.int64()),
                "kind": pa.array([kind for kind, _ in self._known.values()], pa.string()),
                "ranks": pa.array([list(ranks) for _, ranks in self._known.values()], pa.list_(pa.int32())),
            }
        )


def last_look(rank: int, moment_ns: int, step: int | None, progress: Mapping[int, int]) -> pa.Table:
    """A row of ``heartbeats``: a rank at the end of what was recorded, with nothing in flight.

    ``progress`` maps each group to the number of its last operation, which was issued and completed.
    """
    done = [{"group": group, "issued": number, "completed": number} for group, number in progress.items()]
    return pa.table(
        {
            "rank": pa.array([rank], pa.int32()),
            "moment_ns": pa.array([moment_ns], pa.int64()),
            "step": pa.array([step], pa.int64()),
            "in_flight": pa.array([[]], pa.list_(FLIGHT)),
            "progress": pa.array([done], pa.list_(GROUP_PROGRESS)),
        }
    )


def nullable(values: npt.NDArray[Any], kind: pa.DataType, absent: int = ABSENT) -> pa.Array:
    """Integers, NULL where they are ``absent``."""
    return pa.array(values, mask=values == absent).cast(kind)


def named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Texts by their index in ``names``."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(names), pa.string()))


def dense_sequence(group: IntArray, order: IntArray) -> IntArray:
    """Numbers from 1 within each group, in the order of ``order``; equal orders share one. [N], [N] -> [N]."""
    if not len(group):
        return np.zeros(0, np.int64)
    by = np.lexsort((order, group))
    sorted_group, sorted_order = group[by], order[by]
    is_first = np.r_[True, sorted_group[1:] != sorted_group[:-1]]
    is_new = is_first | np.r_[True, sorted_order[1:] != sorted_order[:-1]]
    count = np.cumsum(is_new)
    base = np.maximum.accumulate(np.where(is_first, count - 1, 0))
    result = np.empty(len(group), np.int64)
    result[by] = count - base
    return result
