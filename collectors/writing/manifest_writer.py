"""Owning one writer's manifest: what it lists, what is staged for it, and what is on its way out."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...profiler.errors import MegascopeError
from ..manifests.entries import Key, key_of
from ..manifests.manifest import (
    FileEntry,
    Manifest,
    Offer,
    Retired,
    SupersededError,
    compactor_name,
    data_folder,
    is_compactor_folder,
    manifest_folder,
    manifest_text,
    new_token,
    quote_name,
    read_manifest,
    snapshot_numbers,
    write_manifest,
)
from ..manifests.marker import write_marker
from ..storage.address import store_path
from ..storage.durable import make_folders
from ..storage.locks import acquire_lock
from ..storage.object_path import ObjectPath
from .writer_files import orphans, read_own, remove_left_over, stamped, torn_sentence

GRACE_S = 600.0
"""A replaced file stays this long, so that readers of an older manifest can finish, be it a long export."""

LOOK_EVERY_S = 10.0
"""How often a writer looks for files of its own that a compactor has replaced."""

LOCK = "lock"


class WriterHeldError(MegascopeError):
    """Another process holds the writer's name, be it only for a moment."""


class TornManifestError(MegascopeError):
    """The newest manifest of a writer cannot be read, and whoever looks after it must not go on from an older one."""


class ManifestWriter:
    """One writer's manifest, under the writer's lock, from the last snapshot on.

    Files are staged by what derives from this; `publish` makes them valid all at once. Raises WriterHeldError where
    another process holds the name, MegascopeError where none of the writer's manifests can be read or the store is of
    a newer schema, and OSError where the store cannot be written.
    """

    def __init__(self, root: Path, writer: str, *, grace_s: float = GRACE_S) -> None:
        self.root, self.writer, self.grace_s = store_path(root), writer, grace_s
        write_marker(self.root)
        self._folder = manifest_folder(self.root, writer)
        make_folders(self._folder)
        lock = acquire_lock(self._folder / LOCK)
        if lock is None:
            raise WriterHeldError(
                f"Another process holds the name {writer!r} in {self.root}: a compaction does so for a moment, so try "
                "again; a second writer has to end, or use another name."
            )
        self._lock = lock
        with self._freed_on_error():
            self._begin()

    def _begin(self) -> None:
        remove_left_over(self._folder)
        self.snapshot = max(snapshot_numbers(self._folder), default=0)
        manifest = read_own(self._folder, self.writer, self.snapshot)
        self.is_whole = manifest.snapshot == self.snapshot
        self._has_gap = manifest.has_gap or not self.is_whole
        self.state: Mapping[str, Any] = manifest.state
        self._live = {entry.path: entry for entry in manifest.files}
        self._retired = {entry.path: entry for entry in manifest.retired}
        self._order = max(self.snapshot, manifest.order)
        self._replaces, self._pruned = set(manifest.replaces), manifest.pruned
        self._staged: dict[str, FileEntry] = {}
        self._replaced: set[str] = set()
        self._offered: Offer | None = None
        # Snapshots of the next number that failed, by their text: one may be there, and somebody has built on it.
        self._unsure: dict[str, Offer] = {}
        # Objects that may have been written and are not listed: deleted once a snapshot says that they will never be.
        self._strays: set[str] = set()
        # Files of our own that a compactor has replaced: never merged again, and dropped with the next commit.
        self._compacted: set[str] = set()
        self._compactors: dict[tuple[str, int, str], int] = {}
        self._looked_at = -LOOK_EVERY_S
        self.look_for_compacted()

    @contextlib.contextmanager
    def _freed_on_error(self) -> Iterator[None]:
        """Give the name free where opening fails: nobody else in this process would."""
        try:
            yield
        except BaseException:
            self._lock.release()
            raise

    @property
    def live_bytes(self) -> int:
        """Size of all committed live files."""
        return sum(entry.size_bytes for entry in self._live.values())

    @property
    def committed_files(self) -> Sequence[FileEntry]:
        """The live files of the last commit."""
        return tuple(self._live.values())

    @property
    def staged_files(self) -> Sequence[FileEntry]:
        """The files that the next commit will list."""
        return tuple(self._staged.values())

    def check_whole(self) -> None:
        """Raise TornManifestError where the newest manifest cannot be read."""
        if not self.is_whole:
            raise TornManifestError(torn_sentence(self._folder, self.snapshot))

    def rollback(self) -> None:
        """Forget what is staged, and delete it unless the newest snapshot on the disk lists it."""
        self._settle()
        unsure = {path for offer in self._unsure.values() for path in offer.live}
        for path in self._staged.keys() - unsure if self._offered is None else ():
            with contextlib.suppress(OSError):
                (self.root / path).unlink(missing_ok=True)
        self._staged, self._replaced = {}, set()

    def close(self) -> None:
        """Delete what is staged and give the writer's name free."""
        self.rollback()
        self._lock.release()

    def publish(self, state: Mapping[str, Any] | None = None) -> int:
        """Make what is staged valid in a new snapshot, without what was replaced; return the snapshot's number.

        On OSError nothing has changed for readers, and the same call may be tried again. In an object store a lost
        answer may hide that it has; then the next call finds that out and takes it back in its own snapshot.
        Raises SupersededError there once another process has written this manifest: open the writer again.
        """
        while True:
            offer = self._offer(state)
            try:
                self._publish(offer)
            except SupersededError:
                if not self._take_back():
                    raise
            else:
                return self.snapshot

    def _offer(self, state: Mapping[str, Any] | None) -> Offer:
        now = time.time_ns()
        gone = {path: Retired(path, now) for path in self._replaced | self._compacted if path in self._live}
        kept = {path: entry for path, entry in self._live.items() if path not in gone}
        live = kept | {path: stamped(entry, now) for path, entry in self._staged.items()}
        retired = self._delete_expired(now) | gone
        manifest = Manifest(
            self.writer, self.snapshot + 1, tuple(live.values()), tuple(retired.values()),
            self.state if state is None else state, self._order, tuple(sorted(self._replaces)), self._pruned,
            self._has_gap, new_token(self.root),
        )  # fmt: skip
        return Offer(manifest, live, retired)

    def _publish(self, offer: Offer) -> None:
        if isinstance(self.root, ObjectPath):
            self._unsure[manifest_text(offer.manifest)] = offer
            write_manifest(self.root, offer.manifest)
            self._adopt(offer)
            return
        self._offered = offer
        try:
            write_manifest(self.root, offer.manifest)
        finally:
            self._settle()

    def _take_back(self) -> bool:
        """Whether the snapshot in the way is one of our own whose answer was lost: its files are on their way out then.

        Their rows were not taken for written, so that they are in what is offered next. What a compactor replaced is
        replaced for good, since the writers of those files may have dropped them.
        """
        newest = max(snapshot_numbers(self._folder), default=0)
        if newest != self.snapshot + 1 or is_compactor_folder(self._folder):
            return False
        landed = self._unsure.get((self._folder / f"{newest:012d}.json").read_text())
        if landed is None:
            return False
        now = time.time_ns()
        lost = landed.live.keys() - self._live.keys() - self._staged.keys()
        self._retired |= {path: Retired(path, now) for path in lost}
        self.snapshot = newest
        self._unsure.clear()
        return True

    def _settle(self) -> None:
        """Take over what was offered, if it is on the disk: whatever was raised since, readers may have seen it."""
        offer = self._offered
        if offer is None:
            return
        try:
            (self._folder / f"{offer.manifest.snapshot:012d}.json").stat()
        except FileNotFoundError:
            self._offered = None
            return
        except OSError:  # nobody knows: nothing of it is deleted, and the next commit writes the same number again
            return
        self._adopt(offer)

    def _adopt(self, offer: Offer) -> None:
        """Go on from a snapshot that is valid now."""
        self.snapshot, self.state, self._live = offer.manifest.snapshot, offer.manifest.state, offer.live
        self._retired = offer.retired
        self._staged, self._replaced, self._compacted = {}, set(), set()
        self._taken(offer.manifest)
        self._offered = None
        self._unsure.clear()
        self._strays -= self._live.keys() | self._retired.keys()
        with contextlib.suppress(OSError):
            for path in sorted(self._strays):
                (self.root / path).unlink(missing_ok=True)
                self._strays.discard(path)

    def _taken(self, manifest: Manifest) -> None:
        """For what derives from this: a snapshot is valid now."""

    def look_for_compacted(self) -> None:
        """Find files of our own that a compactor has replaced; cheap when it did not."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S or is_compactor_folder(self._folder):
            return
        self._looked_at = now
        for block in {(entry.run, entry.attempt, entry.block) for entry in self._live.values()}:
            folder = manifest_folder(self.root, compactor_name(*block))
            newest = max(snapshot_numbers(folder), default=0)
            if newest != self._compactors.get(block, 0):
                manifest = read_manifest(folder)
                self._compactors[block] = newest
                self._compacted.update(path for path in (manifest.replaces if manifest else ()) if path in self._live)

    # -- files --------------------------------------------------------------------------------------------------

    def _files(self, key: Key) -> list[FileEntry]:
        """Files of one table, attempt and block, the oldest first; those that are replaced are left out."""
        gone = self._replaced | self._compacted
        found = [entry for entry in (self._live | self._staged).values() if key_of(entry) == key]
        return sorted((e for e in found if e.path not in gone), key=lambda entry: (entry.order, entry.path))

    def _is_live(self, entry: FileEntry) -> bool:
        return entry.path in self._live and entry.path not in self._replaced | self._compacted

    def _new_path(self, key: Key, order: int) -> str:
        stem = f"{data_folder(*key)}/{quote_name(self.writer)}-{order:012d}"
        if isinstance(self.root, ObjectPath):  # a name that needs no look whether it is free
            path = f"{stem}-{secrets.randbelow(10**9):09d}.parquet"
            self._strays.add(path)
            return path
        return next(path for number in range(10**6) if not (self.root / (path := f"{stem}-{number}.parquet")).exists())

    def _retire(self, entries: Iterable[FileEntry]) -> None:
        for entry in entries:
            if self._staged.pop(entry.path, None) is None:
                self._replaced.add(entry.path)
            else:
                (self.root / entry.path).unlink(missing_ok=True)

    def _delete_expired(self, now: int) -> dict[str, Retired]:
        """Delete retired files that no reader can use any more; those that must stay."""
        limit = now - int(self.grace_s * 1e9)
        kept = {}
        for path, entry in self._retired.items():
            if entry.retired_ns > limit:
                kept[path] = entry
            else:
                (self.root / path).unlink(missing_ok=True)
        return kept

    def _remove_orphans(self, pattern: str) -> None:
        """Delete what an earlier incarnation of this writer staged and did not live to commit.

        In an object store that one may only be asleep: a snapshot under its next number keeps it from committing them.
        """
        listed = self._live.keys() | self._retired.keys()
        searches = not self.snapshot and self._lock.was_held
        found = list(orphans(self.root, self.writer, pattern, listed, has_gap=self._has_gap, searches=searches))
        if found and isinstance(self.root, ObjectPath):
            self.publish()
        for path in found:
            path.unlink(missing_ok=True)
