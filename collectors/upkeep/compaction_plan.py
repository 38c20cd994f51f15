"""Which files are worth being made one: neighbours in age, small ones, as many as a large file takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..manifests.manifest import FileEntry
from ..tables.schemas import is_open_block

TARGET_BYTES = 128 * 2**20
"""No merge makes a larger file: about 100 steps of 512 ranks."""

TARGET_ROWS = 24_000_000

MOST_NS = 24 * 3600 * 10**9
"""What came to the store more than a day apart stays apart, so that age can delete it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the files of a compaction become, and how many small ones make it worth while."""

    min_files: int = 2
    target_bytes: int = TARGET_BYTES
    target_rows: int = TARGET_ROWS


def moment_ns(entry: FileEntry) -> int:
    """When the newest rows of a file came to the store; of files of version 1, their last moment. UTC."""
    return entry.committed_ns or entry.max_ns or 0


def plan(entries: Iterable[FileEntry], limits: Limits) -> list[list[FileEntry]]:
    """The merges that are due among files of one block which may be replaced."""
    by_kind: dict[tuple[str, int | None], list[FileEntry]] = {}
    for entry in entries:
        if not is_open_block(entry.block):
            by_kind.setdefault((entry.table, entry.level), []).append(entry)
    found: list[list[FileEntry]] = []
    for (table, level), files in sorted(by_kind.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        # By hand, a file with windows of several lengths is divided, be it only one: so that age can delete the fine.
        is_mixed = table == "rank_windows" and level is None
        least = 1 if is_mixed and limits.min_files <= 2 else limits.min_files
        found += [batch for batch in batches(files, limits) if len(batch) >= least]
    return found


def batches(files: Sequence[FileEntry], limits: Limits) -> list[list[FileEntry]]:
    """Neighbours in age that fit into one file; files that are large already are left out."""
    small = [entry for entry in files if 2 * entry.size_bytes <= limits.target_bytes]
    found: list[list[FileEntry]] = []
    size = rows = 0
    for entry in sorted(small, key=lambda each: (moment_ns(each), each.path)):
        fits = size + entry.size_bytes <= limits.target_bytes and rows + entry.rows <= limits.target_rows
        if not found or not fits or moment_ns(entry) - moment_ns(found[-1][0]) > MOST_NS:
            found.append([])
            size = rows = 0
        found[-1].append(entry)
        size, rows = size + entry.size_bytes, rows + entry.rows
    return found
