"""Process groups of a job of Kineto traces: as arguments tell them, else worked out from the order of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..columns import ABSENT, GroupBook, IntArray
from .file import Collective, KinetoFile, ranks_of
from .rank import RankSpans
from .segments import axis_of

NO_GROUP = 0

LEAST_SHARED = 4
"""Operations that have to agree before a group is believed that nobody told."""

ENDS_AGREE_NS = 20_000
"""Ranks leave a collective within some microseconds of each other: 7 in a published job of 8."""

ENDS_CLOSER = 4
"""So much closer together ranks have to leave an operation than they came to it."""


@dataclass(slots=True)
class HeldBack:
    """The communication of one rank, whose groups are known once all ranks were read."""

    spans: RankSpans
    configured: dict[str, tuple[str | None, tuple[int, ...]]]

    @property
    def rows(self) -> IntArray:
        """Indices of the spans, by their start."""
        return np.array(sorted(self.spans.communication), np.int64)


def configured_groups(file: KinetoFile) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """Description and ranks of the groups that the header tells, by the name that they have on this rank."""
    info = file.header.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    found: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict):
            size = one.get("pg_size")
            ranks = tuple(ranks_of(one.get("ranks"), size if isinstance(size, int) else None))
            description: Any = one.get("pg_desc")
            found[str(one.get("pg_name"))] = (None if description is None else str(description), ranks)
    return found


def find_groups(held: Sequence[HeldBack], world_size: int | None, book: GroupBook) -> tuple[list[IntArray], list[str]]:
    """Group of every held back span, `NO_GROUP` where nothing tells it, and notes about what was worked out."""
    groups = [_told(one, book) for one in held]
    silent = [np.flatnonzero(found == NO_GROUP) for found in groups]
    count = sum(len(rows) for rows in silent)
    if not count:
        return groups, []
    if all(len(rows) == len(found) for rows, found in zip(silent, groups, strict=True)):
        inferred = _inferred(held, world_size, book)
        if inferred is not None:
            for found in groups:
                found[:] = inferred
            return groups, [
                f"no trace tells the groups of its {count:,} collectives: since all {len(held)} ranks issued the same "
                "ones in the same order, and whoever came late they ended together, they are taken to be of one group "
                "of all ranks"
            ]
    which = "1 collective is" if count == 1 else f"{count:,} collectives are"
    return groups, [f"{which} without a group: neither arguments nor header tell it"]


def _told(one: HeldBack, book: GroupBook) -> IntArray:
    """Groups from arguments: identity is the kind and the global ranks, never the name, which is a rank's own."""
    result = np.zeros(len(one.rows), np.int64)
    alone = next(iter(one.configured)) if len(one.configured) == 1 else None
    known: dict[tuple[str | None, str | None, tuple[int, ...]], int] = {}
    for place, at in enumerate(one.rows.tolist()):
        told = one.spans.communication[at]
        key = (told.group or alone, told.description, told.ranks)
        if key not in known:
            known[key] = _identity(told, key[0], one.configured, book)
        result[place] = known[key]
    return result


def _identity(
    told: Collective, name: str | None, configured: dict[str, tuple[str | None, tuple[int, ...]]], book: GroupBook
) -> int:
    description, ranks = configured.get(name or "", (None, ()))
    members = told.ranks or ranks
    if len(members) < 2:
        return NO_GROUP
    return book.id_of(axis_of(told.description or description) or "group", members)


def _inferred(held: Sequence[HeldBack], world_size: int | None, book: GroupBook) -> int | None:
    """The group of all ranks, where all of them are there, issued the same operations in the same order, and met.

    The order alone tells nothing: the tensor-parallel pairs of a job all issue the same, each for itself.
    """
    if len(held) < 2 or len(held) != world_size:
        return None
    orders = {tuple(one.spans.segments[int(one.spans.segment[at])].name for at in one.rows.tolist()) for one in held}
    if len(orders) > 1 or len(held[0].rows) < LEAST_SHARED:
        return None
    start = np.stack([one.spans.start_ns[one.rows] for one in held])
    duration = np.stack([one.spans.duration_ns[one.rows] for one in held])
    if (duration == ABSENT).any() or not _met(start, start + duration):
        return None
    return book.id_of("world", [one.spans.rank for one in held])


def _met(start: IntArray, end: IntArray) -> bool:
    """Whether these [R, K] are R ranks' parts in K shared operations: they come apart and leave together.

    Clocks may differ by a constant. Operations of separate groups end as far apart as they begin.
    """
    apart = _spread(end)
    return apart <= ENDS_AGREE_NS and apart * ENDS_CLOSER <= _spread(start)


def _spread(moment: IntArray) -> float:
    """How far the ranks are apart, ns, beyond what is the same in all operations: of all but one in twenty at most."""
    relative = (moment - moment[0]).astype(np.float64)
    varying = relative - np.median(relative, axis=1, keepdims=True)
    return float(np.quantile(varying.max(axis=0) - varying.min(axis=0), 0.95))


def sequences(group: IntArray) -> IntArray:
    """Number of each span in its group, in order, from 1; 0 where it has no group. [K] -> [K]."""
    result = np.zeros(len(group), np.int64)
    for one in np.unique(group[group != NO_GROUP]).tolist():
        rows = np.flatnonzero(group == one)
        result[rows] = np.arange(1, len(rows) + 1)
    return result
