"""The writer of a store: stages Parquet files, and makes them valid all at once in its next manifest."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
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
from .merging import LargeMerge, crowded_large, crowded_small
from .parquet import conform, last_moment, read_parquet, sort_rows, write_parquet
from .schemas import TABLES

GRACE_S = 60.0
"""A replaced file stays this long, so that readers of an older manifest can finish."""

LOCK = "lock"

Key = tuple[str, str, int, str]
"""Table, run, attempt and block."""


class WriterHeldError(MegascopeError):
    """Another process holds the writer's name, be it only for a moment."""


class TableWriter:
    """Writes tables of a store under one writer's name: an agent, an importer, a simulator.

    ``write`` stages a file, ``commit`` lists everything staged in a new manifest snapshot, atomically, together with
    the writer's opaque ``cursors``. What was staged and never committed is removed by the writer's next incarnation.
    Use it as a context manager, or `close` it; one process at a time may hold a writer's name.

    Raises WriterHeldError where another process holds the name, MegascopeError where none of the writer's manifests can
    be read or the store is of a newer schema, and OSError where the store cannot be written.
    """

    def __init__(self, root: Path, writer: str, *, grace_s: float = GRACE_S) -> None:
        self.root, self.writer, self.grace_s = Path(root), writer, grace_s
        if not check_marker(self.root):
            write_marker(self.root)
        folder = manifest_folder(self.root, writer)
        make_folders(folder)
        lock = FileLock.acquire(folder / LOCK)
        if lock is None:
            raise WriterHeldError(f"Another process writes to {self.root} as {writer!r}: end it, or use another name.")
        self._lock = lock
        self.snapshot = max(snapshot_numbers(folder), default=0)
        manifest = _read_own(folder, writer, self.snapshot)
        self.state: Mapping[str, Any] = manifest.state
        self._live = {entry.path: entry for entry in manifest.files}
        self._retired = {entry.path: entry for entry in manifest.retired}
        self._order = max([self.snapshot, *(entry.order for entry in manifest.files)])
        self._staged: dict[str, FileEntry] = {}
        self._replaced: set[str] = set()
        self._large: LargeMerge | None = None
        if manifest.snapshot == self.snapshot:
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
        conformed = sort_rows(table, conform(TABLES[table], run, attempt, rows, axes))
        key = (table, run, attempt, block)
        if replace:
            self._replaced.update(entry.path for entry in self._files(key))
        if conformed.num_rows:
            self._order += 1
            self._stage(key, conformed, self._order)

    def commit(self, cursors: Mapping[str, Any] | None = None) -> int:
        """List all that is staged in a new manifest snapshot and return its number.

        ``cursors`` become the writer's state; None keeps the last. On OSError nothing has changed for readers, and
        the same call may be tried again.
        """
        state = self.state if cursors is None else cursors
        grown = list(dict.fromkeys(_key(entry) for entry in self._staged.values()))
        for key in grown:
            self._merge_small(key)
        self._merge_large(grown)
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
        self._drop_large()
        self._lock.release()

    # -- files --------------------------------------------------------------------------------------------------

    def _files(self, key: Key) -> list[FileEntry]:
        """Files of one table, attempt and block, the oldest first; those that are replaced are left out."""
        found = [entry for entry in (self._live | self._staged).values() if _key(entry) == key]
        return sorted((e for e in found if e.path not in self._replaced), key=lambda entry: (entry.order, entry.path))

    def _new_path(self, key: Key, order: int) -> str:
        stem = f"{data_folder(*key)}/{quote_name(self.writer)}-{order:012d}"
        return next(path for number in range(10**6) if not (self.root / (path := f"{stem}-{number}.parquet")).exists())

    def _stage(self, key: Key, rows: pa.Table, order: int) -> None:
        make_folders(self.root / data_folder(*key))
        path = self._new_path(key, order)
        size = write_durably(self.root / path, lambda temporary: write_parquet(rows, temporary))
        self._staged[path] = FileEntry(path, *key, rows.num_rows, size, last_moment(rows))

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

    def _merge_small(self, key: Key) -> None:
        """Replace small files by one, sorted; the old ones stay for readers until their grace is over."""
        chosen = crowded_small(self._files(key))
        merged = self._read_for_merge(chosen) if len(chosen) > 1 else None
        if merged is not None:
            self._stage(key, sort_rows(key[0], merged), chosen[-1].order)
            self._retire(chosen)

    def _retire(self, entries: Sequence[FileEntry]) -> None:
        for entry in entries:
            if self._staged.pop(entry.path, None) is None:
                self._replaced.add(entry.path)
            else:
                (self.root / entry.path).unlink(missing_ok=True)

    def _read_for_merge(self, entries: Sequence[FileEntry]) -> pa.Table | None:
        """All rows of the files in order; None where one cannot be read: merging is not worth a failure."""
        table = TABLES[entries[0].table]
        known = {field.name for field in table.schema()}
        try:
            parts = [read_parquet(self.root / entry.path) for entry in entries]
            axes = list(dict.fromkeys(name for part in parts for name in part.column_names if name not in known))
            first = entries[0]
            return pa.concat_tables([conform(table, first.run, first.attempt, part, axes) for part in parts])
        except (OSError, pa.ArrowException, MegascopeError):
            return None

    def _merge_large(self, grown: Sequence[Key]) -> None:
        """Go on with a merge of larger files, or begin one; it is a convenience and never a reason to fail."""
        if self._large is not None and not all(self._is_live(entry) for entry in self._large.entries):
            self._drop_large()
        try:
            self._large = self._large or self._begin_large(grown)
            if self._large is not None and self._large.advance():
                done, self._large = self._large, None
                self._staged[done.path] = done.entry()
                self._retire(done.entries)
        except (OSError, pa.ArrowException, MegascopeError):
            self._drop_large()

    def _begin_large(self, grown: Sequence[Key]) -> LargeMerge | None:
        for key in grown:
            files = [entry for entry in self._files(key) if self._is_live(entry)]
            chosen = [] if TABLES[key[0]].has_axes else crowded_large(files)
            if len(chosen) > 1:
                return LargeMerge(self.root, self._new_path(key, chosen[-1].order), chosen)
        return None

    def _is_live(self, entry: FileEntry) -> bool:
        return entry.path in self._live and entry.path not in self._replaced

    def _drop_large(self) -> None:
        large, self._large = self._large, None
        if large is not None:
            with contextlib.suppress(OSError):
                large.abandon()


def _key(entry: FileEntry) -> Key:
    return entry.table, entry.run, entry.attempt, entry.block


def _read_own(folder: Path, writer: str, newest: int) -> Manifest:
    """The last snapshot of a writer, or one without files where it has none yet.

    Raises MegascopeError where there are snapshots and none can be read: its files would be taken for left-overs.
    """
    manifest = read_manifest(folder)
    if manifest is None and newest:
        raise MegascopeError(
            f"None of the manifests in {folder} can be read: put one back from a copy of the store, or remove the "
            "folder to give up the files that they list."
        )
    return manifest or Manifest(writer, 0)


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
