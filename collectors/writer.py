"""The writer of a store: stages Parquet files, and makes them valid all at once in its next manifest."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..profiler.errors import MegascopeError
from .durable import make_folders, write_durably
from .locks import FileLock
from .manifest import (
    FileEntry,
    Manifest,
    Retired,
    check_marker,
    data_folder,
    manifest_folder,
    manifest_folders,
    quote_name,
    read_manifest,
    snapshot_numbers,
    write_manifest,
    write_marker,
)
from .parquet import conform, extent, read_parquet, sort_rows, write_parquet
from .schemas import TABLES

GRACE_S = 60.0
"""A replaced file stays this long, so that readers of an older manifest can finish."""

LOCK = "lock"
SMALL_FILE_BYTES = 4 * 2**20
MERGE_ABOVE_FILES = 16
MERGE_MAX_ROWS = 1_000_000
"""Rows that one merge holds in memory: about 250 MB of spans."""


class TableWriter:
    """Writes tables of a store under one writer's name: an agent, an importer, a simulator.

    ``write`` stages a file, ``commit`` lists everything staged in a new manifest snapshot, atomically, together with
    the writer's opaque ``cursors``. What was staged and never committed is removed by the writer's next incarnation.
    Use it as a context manager, or `close` it; one process at a time may hold a writer's name.

    Raises MegascopeError where the name is held by another process or the store is of a newer schema, and OSError
    where the store cannot be written.
    """

    def __init__(self, root: Path, writer: str, *, grace_s: float = GRACE_S) -> None:
        self.root, self.writer, self.grace_s = Path(root), writer, grace_s
        if not check_marker(self.root):
            write_marker(self.root)
        folder = manifest_folder(self.root, writer)
        make_folders(folder)
        lock = FileLock.acquire(folder / LOCK)
        if lock is None:
            raise MegascopeError(f"Another process writes to {self.root} as {writer!r}: end it, or use another name.")
        self._lock = lock
        manifest = read_manifest(folder) or Manifest(writer, 0)
        self.snapshot = max([0, *snapshot_numbers(folder)])
        self.state: Mapping[str, Any] = manifest.state
        self._live = {entry.path: entry for entry in manifest.files}
        self._retired = {entry.path: entry for entry in manifest.retired}
        self._staged: dict[str, FileEntry] = {}
        self._replaced: set[str] = set()
        self._remove_orphans()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def live_bytes(self) -> int:
        """Size of all committed live files."""
        return sum(entry.size_bytes for entry in self._live.values())

    @property
    def committed_files(self) -> Sequence[FileEntry]:
        """The live files of the last commit."""
        return tuple(self._live.values())

    def write(
        self,
        table: str,
        run: str,
        attempt: int,
        rows: pa.Table | Mapping[str, Sequence[Any]],
        *,
        block: str = "b000",
        axes: Sequence[str] = (),
        replace: bool = False,
    ) -> None:
        """Stage rows of one table and attempt; ``axes`` are the coordinate columns of ``ranks``.

        ``replace`` takes the place of all that this writer has in the same table, attempt and block: for small tables
        that are written again as a whole. Raises MegascopeError for rows that do not fit the table.
        """
        if table not in TABLES:
            raise MegascopeError(f"There is no table {table!r}: use one of {', '.join(TABLES)}.")
        if replace:
            self._replaced.update(self._paths(table, run, attempt, block))
        conformed = sort_rows(table, conform(TABLES[table], run, attempt, rows, axes))
        if conformed.num_rows:
            self._stage(table, run, attempt, block, conformed)

    def commit(self, cursors: Mapping[str, Any] | None = None) -> int:
        """List all that is staged in a new manifest snapshot and return its number.

        ``cursors`` become the writer's state; None keeps the last. On OSError nothing has changed for readers, and
        the same call may be tried again.
        """
        state = self.state if cursors is None else cursors
        for key in self._crowded():
            self._merge(*key)
        live = {path: entry for path, entry in self._live.items() if path not in self._replaced} | self._staged
        now = time.time_ns()
        gone = {path: Retired(path, now) for path in self._replaced if path in self._live}
        retired, expired = self._split_retired(now)
        manifest = Manifest(
            self.writer, self.snapshot + 1, tuple(live.values()), tuple((retired | gone).values()), state
        )
        write_manifest(self.root, manifest)
        self.snapshot, self.state, self._live = manifest.snapshot, state, live
        self._retired = retired | gone
        self._staged, self._replaced = {}, set()
        for path in expired:
            (self.root / path).unlink(missing_ok=True)
        return self.snapshot

    def rollback(self) -> None:
        """Forget and delete what is staged."""
        for path in self._staged:
            with contextlib.suppress(OSError):
                (self.root / path).unlink(missing_ok=True)
        self._staged, self._replaced = {}, set()

    def close(self) -> None:
        """Delete what is staged and give the writer's name free."""
        self.rollback()
        self._lock.release()

    # -- files --------------------------------------------------------------------------------------------------

    def _paths(self, table: str, run: str, attempt: int, block: str) -> list[str]:
        key = (table, run, attempt, block)
        return [path for path, e in (self._live | self._staged).items() if (e.table, e.run, e.attempt, e.block) == key]

    def _stage(self, table: str, run: str, attempt: int, block: str, rows: pa.Table) -> None:
        folder = data_folder(table, run, attempt, block)
        stem = f"{quote_name(self.writer)}-{self.snapshot + 1:012d}"
        names = (f"{stem}.parquet" if number == 0 else f"{stem}-{number}.parquet" for number in range(10**6))
        path = next(f"{folder}/{name}" for name in names if f"{folder}/{name}" not in self._staged)
        make_folders(self.root / folder)
        size = write_durably(self.root / path, lambda temporary: write_parquet(rows, temporary))
        self._staged[path] = FileEntry(path, table, run, attempt, block, rows.num_rows, size, **asdict(extent(rows)))

    def _split_retired(self, now: int) -> tuple[dict[str, Retired], list[str]]:
        """Retired files that must stay, and those that no reader can use any more."""
        limit = now - int(self.grace_s * 1e9)
        kept = {path: entry for path, entry in self._retired.items() if entry.retired_ns > limit}
        return kept, [path for path in self._retired if path not in kept]

    def _remove_orphans(self) -> None:
        """Delete what an earlier incarnation of this writer staged and did not live to commit."""
        name = re.compile(re.escape(quote_name(self.writer)) + r"-\d{12}(-\d+)?\.parquet(\.tmp)?")
        for path in self.root.glob("*/run=*/attempt=*/block=*/*"):
            relative = path.relative_to(self.root).as_posix()
            if name.fullmatch(path.name) and relative not in self._live and relative not in self._retired:
                path.unlink(missing_ok=True)

    # -- merging ------------------------------------------------------------------------------------------------

    def _crowded(self) -> list[tuple[str, str, int, str]]:
        """Tables, attempts and blocks in which too many small files have come together."""
        counts: dict[tuple[str, str, int, str], int] = defaultdict(int)
        for entry in (self._live | self._staged).values():
            if entry.size_bytes < SMALL_FILE_BYTES and entry.path not in self._replaced:
                counts[entry.table, entry.run, entry.attempt, entry.block] += 1
        return [key for key, count in counts.items() if count > MERGE_ABOVE_FILES]

    def _merge(self, table: str, run: str, attempt: int, block: str) -> None:
        """Replace small files by one; the old ones stay for readers until their grace is over."""
        chosen: list[FileEntry] = []
        for path in self._paths(table, run, attempt, block):  # in order of age, and that order stays
            entry = self._live.get(path) or self._staged[path]
            if entry.size_bytes >= SMALL_FILE_BYTES or path in self._replaced:
                continue
            if sum(each.rows for each in chosen) + entry.rows > MERGE_MAX_ROWS:
                if len(chosen) > 1:
                    break
                chosen = []
            chosen.append(entry)
        if len(chosen) < 2:
            return
        merged = self._read_for_merge(chosen)
        if merged is None:
            return
        self._stage(table, run, attempt, block, sort_rows(table, merged))
        for entry in chosen:
            if self._staged.pop(entry.path, None) is None:
                self._replaced.add(entry.path)
            else:
                (self.root / entry.path).unlink(missing_ok=True)

    def _read_for_merge(self, entries: Sequence[FileEntry]) -> pa.Table | None:
        """All rows of the files in order; None where one cannot be read: merging is not worth a failure."""
        table = TABLES[entries[0].table]
        try:
            parts = [read_parquet(self.root / entry.path) for entry in entries]
        except (OSError, pa.ArrowException):
            return None
        known = {field.name for field in table.schema()}
        axes = list(dict.fromkeys(name for part in parts for name in part.column_names if name not in known))
        entry = entries[0]
        return pa.concat_tables(conform(table, entry.run, entry.attempt, part, axes) for part in parts)


def sweep(root: Path, grace_s: float = GRACE_S) -> int:
    """Delete what writers that are gone had replaced before the grace; return the number of files."""
    count = 0
    limit = time.time_ns() - int(grace_s * 1e9)
    for folder in manifest_folders(root):
        manifest = read_manifest(folder)
        expired = [entry.path for entry in manifest.retired if entry.retired_ns <= limit] if manifest else []
        present = [root / path for path in expired if (root / path).exists()]
        lock = FileLock.acquire(folder / LOCK) if present else None
        if lock is not None:
            for path in present:
                path.unlink(missing_ok=True)
            count += len(present)
            lock.release()
    return count
