"""Which span of a rank encloses which: the store names the enclosing segment, not the span."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ...profiler.vocabulary import Clock

Row = Mapping[str, Any]

_ANY = "any thread"


def parents(rows: Sequence[Row]) -> list[int | None]:
    """Index of each span's enclosing span in one rank and step; None at the top.

    Rows have ``segment``, ``parent`` (its segment), ``thread``, ``begun_ns`` (on the host), ``duration_ns`` and
    ``clock``, and ascend by ``begun_ns``, of equal ones the longest first. Spans of a thread are nested, so the
    enclosing one is the newest of the parent's segment that has not ended: on the same thread, or where that has none,
    on any. Of spans of the device the end on the host is not known; then the newest counts.
    """
    open_: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    found: list[int | None] = []
    for index, row in enumerate(rows):
        parent, thread = row["parent"], row["thread"]
        candidates = (open_[thread, parent] or open_[_ANY, parent]) if parent is not None else []
        while len(candidates) > 1 and _has_ended(rows[candidates[-1]], row["begun_ns"]):
            candidates.pop()
        found.append(candidates[-1] if candidates else None)
        for place in (thread, _ANY):
            open_[place, row["segment"]].append(index)
    return found


def _has_ended(row: Row, moment_ns: int) -> bool:
    if row["duration_ns"] is None or row["clock"] != Clock.HOST:
        return False
    return bool(row["begun_ns"] + row["duration_ns"] <= moment_ns)
