"""What the manifests of a store list at the moment: the newest readable snapshot of every writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import DamagedFile
from .manifest import FileEntry, Manifest, manifest_folders, read_manifest, snapshot_numbers


class Listing:
    """The files of a store by table. ``unreadable`` are newest snapshots that cannot be read, by their folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._manifests: dict[Path, tuple[int, Manifest | None]] = {}
        self.unreadable: dict[Path, DamagedFile] = {}
        self.entries: Mapping[str, Sequence[FileEntry]] = {}
        self.version: tuple[Any, ...] = ()

    def refresh(self) -> None:
        """Take over what was committed since; cheap when nothing was."""
        folders = list(manifest_folders(self._root))
        changed = False
        for folder in folders:
            number = max(snapshot_numbers(folder), default=0)
            if self._manifests.get(folder, (-1, None))[0] != number:
                self._take(folder, number)
                changed = True
        for folder in set(self._manifests) - set(folders):
            del self._manifests[folder]
            self.unreadable.pop(folder, None)
            changed = True
        if changed:
            self._index()

    def _take(self, folder: Path, newest: int) -> None:
        """Read a writer's newest snapshot; where it cannot be read, an older one is shown in its place."""
        manifest = read_manifest(folder)
        self._manifests[folder] = (newest, manifest)
        self.unreadable.pop(folder, None)
        if newest and (manifest is None or manifest.snapshot < newest):
            path = folder / f"{newest:012d}.json"
            shown = "nothing of this writer" if manifest is None else f"snapshot {manifest.snapshot}"
            self.unreadable[folder] = DamagedFile(path, f"it is no manifest: {shown} is shown instead")

    def _index(self) -> None:
        manifests = [manifest for _, manifest in self._manifests.values() if manifest is not None]
        self.version = tuple(sorted((manifest.writer, manifest.snapshot) for manifest in manifests))
        entries: dict[str, list[FileEntry]] = {}
        for manifest in manifests:
            for entry in manifest.files:
                entries.setdefault(entry.table, []).append(entry)
        self.entries = {table: sorted(found, key=lambda entry: entry.path) for table, found in entries.items()}

    def all_entries(self) -> list[FileEntry]:
        """The files of all tables."""
        return [entry for found in self.entries.values() for entry in found]
