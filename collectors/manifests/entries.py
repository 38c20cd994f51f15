"""What a manifest says of one file, of one on its way out, and of what was pruned."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FILE_NAME = re.compile(r".*-(\d{12})(?:-\d+)?\.parquet")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One live file: ``path`` is relative to the store and uses '/'; ``max_ns`` (UTC) is its last moment, if any.

    A file's name is WRITER-ORDER-NUMBER.parquet. Of two files of a writer the one with the higher order is newer; a
    merged file has the order of the newest that went into it. So a list sorted by name is sorted by age.

    ``committed_ns`` (UTC) is when its newest rows came to the store. ``sealed``: its writer merges it no more, so that
    the compactor may replace it. ``level``: the one length of windows in a compacted file of ``rank_windows``.
    ``schema`` is the version of the tables that it was written with.
    """

    path: str
    table: str
    run: str
    attempt: int
    block: str
    rows: int
    size_bytes: int
    max_ns: int | None = None
    committed_ns: int | None = None
    sealed: bool = False
    level: int | None = None
    schema: int = 1

    @property
    def order(self) -> int:
        """Place in the order of age among the files of the same writer."""
        return order_of(self.path)


Key = tuple[str, str, int, str]
"""Table, run, attempt and block."""


def key_of(entry: FileEntry) -> Key:
    """Table, run, attempt and block of a file."""
    return entry.table, entry.run, entry.attempt, entry.block


def order_of(path: str) -> int:
    match = _FILE_NAME.fullmatch(path)
    return int(match[1]) if match else 0


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that a newer one replaced at ``retired_ns`` (UTC); it is deleted once no reader can still use it."""

    path: str
    retired_ns: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted of an attempt's table to keep the store small; of ``rank_windows``, one length of windows.

    ``level`` is that length, None for other tables.
    ``until_ns`` is the last moment (UTC) and ``last_step`` the last step that were deleted, where they are known.
    """

    run: str
    attempt: int
    table: str
    level: int | None
    files: int
    rows: int
    size_bytes: int
    until_ns: int | None
    last_step: int | None

    def __add__(self, other: Pruned) -> Pruned:
        """Both together, of the same attempt, table and level."""
        moments = [moment for moment in (self.until_ns, other.until_ns) if moment is not None]
        steps = [step for step in (self.last_step, other.last_step) if step is not None]
        return Pruned(
            self.run, self.attempt, self.table, self.level,
            files=self.files + other.files, rows=self.rows + other.rows, size_bytes=self.size_bytes + other.size_bytes,
            until_ns=max(moments, default=None), last_step=max(steps, default=None),
        )  # fmt: skip
