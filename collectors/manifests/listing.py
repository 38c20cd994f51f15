"""What the manifests of a store list at the moment: the newest readable snapshot of every writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..storage.object_path import ObjectPath
from .files import DamagedFile
from .manifest import (
    FileEntry,
    Manifest,
    Pruned,
    newest_snapshots,
    read_manifest,
)

READERS = 16
"""Manifests of an object store that are read at the same time: each is a request that waits for its answer."""


class Listing:
    """The files of a store by table. ``unreadable`` are newest snapshots that cannot be read, by their folder.

    Compactors come last: a writer drops a file only after a compactor's snapshot has replaced it, so that a reader
    that saw the writer without the file sees the compactor's snapshot with it; and a file that both list is the
    compactor's. A compactor forgets what it replaced only when the file is gone from the disk. So no order of reading
    and no pause within it shows a row twice or leaves one out, and nothing has to hold still for it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._manifests: dict[Path, tuple[int, Manifest | None]] = {}
        self.unreadable: dict[Path, DamagedFile] = {}
        self.entries: Mapping[str, Sequence[FileEntry]] = {}
        self.replaced: frozenset[str] = frozenset()
        self.pruned: Mapping[tuple[str, int], Sequence[Pruned]] = {}
        self.version: tuple[Any, ...] = ()
        self._is_stale = False  # read since `_index`, be it that reading the rest failed then

    def refresh(self) -> None:
        """Take over what was committed since; cheap when nothing was."""
        writers = newest_snapshots(self._root, of_compactors=False)
        self._is_stale |= self._refresh(writers)
        compactors = newest_snapshots(self._root, of_compactors=True)
        self._is_stale |= self._refresh(compactors)
        for folder in set(self._manifests) - {*writers, *compactors}:
            del self._manifests[folder]
            self.unreadable.pop(folder, None)
            self._is_stale = True
        if self._is_stale:
            self._index()
            self._is_stale = False

    def manifests(self) -> Mapping[Path, Manifest]:
        """The newest readable snapshot of every writer by its folder, those of the compactors too."""
        return {folder: manifest for folder, (_, manifest) in self._manifests.items() if manifest is not None}

    def _refresh(self, newest: Mapping[Path, int]) -> bool:
        known = {folder: number for folder, (number, _) in self._manifests.items()}
        changed = [folder for folder, number in newest.items() if known.get(folder, -1) != number]
        if isinstance(self._root, ObjectPath) and len(changed) > 1:
            with ThreadPoolExecutor(READERS) as pool:
                manifests = list(pool.map(read_manifest, changed, (newest[folder] for folder in changed)))
        else:
            manifests = [read_manifest(folder, newest[folder]) for folder in changed]
        for folder, manifest in zip(changed, manifests, strict=True):
            self._take(folder, newest[folder], manifest)
        return bool(changed)

    def _take(self, folder: Path, newest: int, manifest: Manifest | None) -> None:
        """Take over a writer's newest snapshot; where it cannot be read, an older one is shown in its place."""
        self._manifests[folder] = (newest, manifest)
        self.unreadable.pop(folder, None)
        if newest and (manifest is None or manifest.snapshot < newest):
            path = folder / f"{newest:012d}.json"
            shown = "nothing of this writer" if manifest is None else f"snapshot {manifest.snapshot}"
            self.unreadable[folder] = DamagedFile(path, f"it is no manifest: {shown} is shown instead")

    def _index(self) -> None:
        manifests = self.manifests().values()
        self.version = tuple(sorted((manifest.writer, manifest.snapshot) for manifest in manifests))
        self.replaced = frozenset(path for manifest in manifests for path in manifest.replaces)
        entries: dict[str, list[FileEntry]] = {}
        for manifest in manifests:
            for entry in manifest.files:
                if entry.path not in self.replaced:
                    entries.setdefault(entry.table, []).append(entry)
        self.entries = {table: sorted(found, key=lambda entry: entry.path) for table, found in entries.items()}
        self.pruned = _pruned(manifests)

    def all_entries(self) -> list[FileEntry]:
        """The files of all tables."""
        return [entry for found in self.entries.values() for entry in found]


def _pruned(manifests: Iterable[Manifest]) -> dict[tuple[str, int], list[Pruned]]:
    """What was deleted, by run and attempt: all blocks together, one entry for each table and length of windows."""
    found: dict[tuple[str, int], dict[tuple[str, int | None], Pruned]] = {}
    for manifest in manifests:
        for each in manifest.pruned:
            of_attempt = found.setdefault((each.run, each.attempt), {})
            key = (each.table, each.level)
            of_attempt[key] = of_attempt[key] + each if key in of_attempt else each
    return {attempt: list(of_attempt.values()) for attempt, of_attempt in found.items()}
