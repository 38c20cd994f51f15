"""Which files of a writer are merged, and the merge of large ones, which goes on a piece at every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..manifests.manifest import FileEntry
from ..storage.durable import place_durably
from ..tables.parquet import conform, open_parquet, row_group_rows
from ..tables.schemas import TABLES

SMALL_FILE_BYTES = 4 * 2**20
LARGE_FILE_BYTES = 64 * 2**20
"""No merge makes a larger file."""

MERGE_ABOVE_FILES = 16
MERGE_MAX_ROWS = 1_000_000
"""Rows that one merge of small files sorts in memory: about 250 MB of spans."""

ROWS_AT_ONCE = 400_000
"""Rows of large files that one commit copies: about 0.2 s."""


def crowded_small(entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Small files that have become too many, neighbours in age, to be merged in memory; empty where there are none.

    ``entries`` are the files of one table, attempt and block, the oldest first. Only neighbours are merged, so that
    what is newer stays newer.
    """
    for run in _runs(entries, _is_small):
        if len(run) > MERGE_ABOVE_FILES:
            return _first(run, lambda entry: entry.rows, MERGE_MAX_ROWS)
    return []


def crowded_large(entries: Sequence[FileEntry]) -> list[FileEntry]:
    """The same of the files that are no longer small, and not as large as files get."""
    for run in _runs(entries, lambda entry: not _is_small(entry) and 2 * entry.size_bytes <= LARGE_FILE_BYTES):
        if len(run) > MERGE_ABOVE_FILES:
            return _first(run, lambda entry: entry.size_bytes, LARGE_FILE_BYTES)
    return []


def _is_small(entry: FileEntry) -> bool:
    """Whether a file is small in bytes and in rows: two that are fit into one merge."""
    return entry.size_bytes < SMALL_FILE_BYTES and 2 * entry.rows <= MERGE_MAX_ROWS


def _runs(entries: Sequence[FileEntry], is_member: Callable[[FileEntry], bool]) -> Iterator[list[FileEntry]]:
    run: list[FileEntry] = []
    for entry in entries:
        if is_member(entry):
            run.append(entry)
        elif run:
            yield run
            run = []
    yield run


def _first(run: Sequence[FileEntry], size: Callable[[FileEntry], int], limit: int) -> list[FileEntry]:
    chosen: list[FileEntry] = []
    total = 0
    for entry in run:
        total += size(entry)
        if total > limit:
            break
        chosen.append(entry)
    return chosen


class LargeMerge:
    """Files that are copied, one behind the other, into a new one at ``root / path``; memory holds one row group.

    Raises OSError or pa.ArrowException where a file cannot be read or written: `abandon` it then.
    """

    def __init__(self, root: Path, path: str, entries: Sequence[FileEntry]) -> None:
        self.path, self.entries = path, tuple(entries)
        self._root = root
        self._temporary = root / (path + ".tmp")
        self._rows = self._pieces()
        table = TABLES[entries[0].table]
        self._writer: pq.ParquetWriter = open_parquet(self._temporary, table.schema())

    def _pieces(self) -> Iterator[pa.Table]:
        for entry in self.entries:
            with pq.ParquetFile(self._root / entry.path) as file:
                for group in range(file.num_row_groups):
                    rows = file.read_row_group(group)
                    yield conform(TABLES[entry.table], entry.run, entry.attempt, rows, ())

    def advance(self) -> bool:
        """Copy the next rows, and put the file in its place once it is whole; whether it is."""
        copied, size = 0, row_group_rows(TABLES[self.entries[0].table].schema())
        for rows in self._rows:
            self._writer.write_table(rows, row_group_size=size)
            copied += rows.num_rows
            if copied >= ROWS_AT_ONCE:
                return False
        self._writer.close()
        place_durably(self._temporary, self._root / self.path)
        return True

    def entry(self) -> FileEntry:
        """The manifest's entry of the new file."""
        first = self.entries[0]
        moments = [entry.max_ns for entry in self.entries if entry.max_ns is not None]
        return FileEntry(
            self.path, first.table, first.run, first.attempt, first.block,
            rows=sum(entry.rows for entry in self.entries),
            size_bytes=(self._root / self.path).stat().st_size,
            max_ns=max(moments, default=None),
            committed_ns=max((entry.committed_ns or 0 for entry in self.entries), default=0) or None,
        )  # fmt: skip

    def abandon(self) -> None:
        """Give up and delete what there is."""
        self._rows = iter(())
        self._writer.close()
        self._temporary.unlink(missing_ok=True)
