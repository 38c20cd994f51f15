"""Which files go first when a store has to become smaller: raw before rolled up, fine before coarse, old before new."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..manifests.manifest import FileEntry
from ..tables.schemas import is_open_block
from .compaction_plan import moment_ns
from .retention_beside import FOLDERS

RAW_STAGES, ROLLUP_STAGES = (0, 1, 2), (3, 4)

_STAGE_OF = {"events": 0, "heartbeats": 1, "health": 1, "steps": 6, "hardware_events": 6, **dict.fromkeys(FOLDERS, 2)}
_STAGE_OF_LEVEL = {10: 3, 100: 4}


@dataclass(frozen=True, slots=True)
class Retention:
    """How much a store may keep; None is no limit. Ages count from when the rows came to the store.

    ``raw_age_s`` is for spans, heartbeats, health and what lies beside the tables (dumps, told alarms);
    ``rollup_age_s`` for windows of 10 and 100 steps; ``size_bytes`` for the store as a whole. Windows of 1000 steps,
    steps and events of hardware go only for the size. Everything else stays for good: runs, ranks, groups, segments,
    schedules, clock offsets, machines, incidents with what was in flight, and faults.
    """

    raw_age_s: float | None = None
    rollup_age_s: float | None = None
    size_bytes: int | None = None


def stage(entry: FileEntry) -> int | None:
    """Place in the order of deletion: 0 goes first. None is kept for good.

    Windows of several lengths in one file go with the coarsest: compaction divides them.
    """
    if is_open_block(entry.block):
        return None
    if entry.table == "rank_windows":
        return _STAGE_OF_LEVEL.get(entry.level or 0, 5)
    return _STAGE_OF.get(entry.table)


def choose(entries: Sequence[FileEntry], retention: Retention, now_ns: int) -> list[FileEntry]:
    """The files to delete, those that go first first. ``entries`` are all files of a store that readers see."""
    ordered = sorted(_candidates(entries), key=lambda found: (found[0], moment_ns(found[1]), found[1].path))
    chosen = [entry for place, entry in ordered if _is_too_old(place, entry, retention, now_ns)]
    if retention.size_bytes is None:
        return chosen
    gone = {entry.path for entry in chosen}
    size = sum(entry.size_bytes for entry in entries if entry.path not in gone)
    for _, entry in ordered:
        if size <= retention.size_bytes:
            break
        if entry.path not in gone:
            chosen.append(entry)
            size -= entry.size_bytes
    return chosen


def _candidates(entries: Iterable[FileEntry]) -> list[tuple[int, FileEntry]]:
    return [(place, entry) for entry in entries if (place := stage(entry)) is not None]


def _is_too_old(place: int, entry: FileEntry, retention: Retention, now_ns: int) -> bool:
    age_s = (now_ns - moment_ns(entry)) / 1e9
    limit = retention.raw_age_s if place in RAW_STAGES else retention.rollup_age_s if place in ROLLUP_STAGES else None
    return limit is not None and age_s > limit
