"""Owning the compacted files of one block, and saying which files of other writers count no more."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ..manifests.entries import Key
from ..manifests.manifest import FileEntry, Manifest, Pruned, compactor_name, data_folder, quote_name
from ..storage.durable import TEMPORARY, make_folders, write_durably
from ..storage.object_path import ObjectPath
from ..writing.manifest_writer import GRACE_S, ManifestWriter

SPILL = "spill.tmp"


class BlockKeeper(ManifestWriter):
    """The manifest of one block's compactor: one process at a time compacts or prunes a block.

    A snapshot lists new files and, at the same time, the files whose rows they hold: readers leave those out from that
    moment on. Raises as ManifestWriter does, and TornManifestError where the newest manifest cannot be read: the rows
    of the files that it lists may be nowhere else.
    """

    def __init__(self, root: Path, run: str, attempt: int, block: str, *, grace_s: float = GRACE_S) -> None:
        super().__init__(root, compactor_name(run, attempt, block), grace_s=grace_s)
        self.block = (run, attempt, block)
        is_object = isinstance(self.root, ObjectPath)
        self._spill_beside = (
            Path(tempfile.gettempdir(), f"{TEMPORARY}spill-{secrets.token_hex(8)}") if is_object else None
        )
        self._committed = (frozenset(self._replaces), self._pruned)
        with self._freed_on_error():
            self.check_whole()
            self._remove_orphans(f"*/run={quote_name(run)}/attempt={attempt}/block={quote_name(block)}/*")

    def __enter__(self) -> BlockKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spill(self) -> Path:
        """A folder for what does not fit into memory. What a kill leaves in it a later writer deletes."""
        return self._spill_beside or self._folder / SPILL

    @property
    def is_lock_real(self) -> bool:
        """Whether the lock keeps other processes away; a file system may have none."""
        return self._lock.is_real

    def make(self, table: str, fill: Callable[[Path], FileEntry]) -> FileEntry:
        """Stage a file: ``fill`` writes it at a temporary path and returns its entry, whose path and size are set here.

        On an error nothing is left of it.
        """
        key: Key = (table, *self.block)
        make_folders(self.root / data_folder(*key))
        self._order += 1
        path = self._new_path(key, self._order)
        made: list[FileEntry] = []
        try:
            size = write_durably(self.root / path, lambda temporary: made.append(fill(temporary)))
        except BaseException:
            (self.root / path).unlink(missing_ok=True)  # it may have been renamed before that
            raise
        entry = _placed(made[0], path, key, size)
        self._staged[path] = entry
        return entry

    def replace(self, entries: Iterable[FileEntry]) -> None:
        """Have files count no more with the next commit: files of this block, of whatever writer."""
        for entry in entries:
            if entry.path in self._live:
                self._replaced.add(entry.path)
            else:
                self._replaces.add(entry.path)

    def prune(self, pruned: Iterable[Pruned]) -> None:
        """Remember what was deleted."""
        known = {(each.table, each.level): each for each in self._pruned}
        for each in pruned:
            key = (each.table, each.level)
            known[key] = known[key] + each if key in known else each
        self._pruned = tuple(known.values())

    def commit(self, listed: Collection[str]) -> int:
        """Make all of it valid. ``listed`` are the paths in the manifests of all writers, replaced or not.

        A replaced file that nobody lists and that is gone from the disk is forgotten: no reader can come upon it.
        """
        self._replaces = {path for path in self._replaces if path in listed or (self.root / path).exists()}
        return self.publish()

    def _taken(self, manifest: Manifest) -> None:
        self._committed = (frozenset(manifest.replaces), manifest.pruned)

    def rollback(self) -> None:
        """Forget and delete what is staged, and what was not committed of the rest."""
        super().rollback()
        replaces, self._pruned = self._committed
        self._replaces = set(replaces)


def _placed(entry: FileEntry, path: str, key: Key, size_bytes: int) -> FileEntry:
    table, run, attempt, block = key
    return FileEntry(
        path, table, run, attempt, block,
        rows=entry.rows, size_bytes=size_bytes, max_ns=entry.max_ns, committed_ns=entry.committed_ns, sealed=True,
        level=entry.level,
    )  # fmt: skip
