"""The files of one block that may be replaced now, whoever wrote them, and the locks that keep it so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...profiler.errors import MegascopeError
from ..manifests.listing import Listing
from ..manifests.manifest import FileEntry, Manifest, is_compactor_folder, new_token, read_manifest, write_manifest
from ..storage.locks import Lock, acquire_lock
from ..storage.object_path import ObjectPath
from ..tables.schemas import is_open_block
from ..writing.manifest_writer import GRACE_S, LOCK, WriterHeldError
from .keeper import BlockKeeper

QUIET_S = 60.0
"""A writer is gone if its lock is free and its manifest was not written for so long."""

Block = tuple[str, int, str]
"""Run, attempt and block."""


class NoLocksError(MegascopeError):
    """The store's file system keeps no locks, so that nothing of it may be replaced."""


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block whose compactor's manifest is held: what may be replaced, and every path that any manifest lists.

    ``owners`` are the manifest folders of the writers that were gone, by the path of their files that are not sealed.
    """

    keeper: BlockKeeper
    usable: tuple[FileEntry, ...]
    listed: frozenset[str]
    owners: Mapping[str, Path]

    @contextlib.contextmanager
    def holding(self, entries: Iterable[FileEntry]) -> Iterator[Sequence[FileEntry]]:
        """Those of some usable files that may still be replaced, and may be within.

        Writers that are gone are held, so that no new incarnation merges a file meanwhile; it has to wait as long as
        one merge takes.
        """
        with contextlib.ExitStack() as stack:
            live: dict[Path, frozenset[str]] = {}
            chosen = []
            for entry in entries:
                folder = self.owners.get(entry.path)
                if folder is None:
                    chosen.append(entry)
                    continue
                if folder not in live:
                    live[folder] = _hold(self.keeper.root, folder, stack)
                if entry.path in live[folder]:
                    chosen.append(entry)
            yield chosen


@contextlib.contextmanager
def held_block(
    root: Path, block: Block, listing: Listing, *, grace_s: float = GRACE_S, quiet_s: float = QUIET_S
) -> Iterator[HeldBlock | None]:
    """Hold a block; None where another process does.

    Usable are the compactor's own files, those that living writers have sealed, and all of writers that are gone.
    Raises NoLocksError where the file system has no locks, TornManifestError where the compactor's newest manifest
    cannot be read, and OSError where nothing can be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            keeper = stack.enter_context(BlockKeeper(root, *block, grace_s=grace_s))
        except WriterHeldError:
            yield None
            return
        if not keeper.is_lock_real:
            raise NoLocksError(_no_locks(root))
        listing.refresh()  # under the lock: nobody else changes what the compactor lists
        usable, owners = list(keeper.committed_files), {}
        for folder, manifest in listing.manifests().items():
            if is_compactor_folder(folder) or not any(_is_of(entry, block) for entry in manifest.files):
                continue
            is_gone = _is_gone(folder, manifest, quiet_s) and folder not in listing.unreadable
            for entry in _visible(manifest, block, listing):
                if entry.sealed or is_gone:
                    usable.append(entry)
                if is_gone and not entry.sealed:
                    owners[entry.path] = folder
        listed = frozenset(entry.path for each in listing.manifests().values() for entry in each.files)
        yield HeldBlock(keeper, tuple(usable), listed, owners)


def replaceable(listing: Listing, *, quiet_s: float = QUIET_S) -> frozenset[str]:
    """Paths of the files that `held_block` would find usable at the moment, looked at without holding anything."""
    found: set[str] = set()
    for folder, manifest in listing.manifests().items():
        is_free = is_compactor_folder(folder) or _is_quiet(folder, manifest, quiet_s)
        found.update(entry.path for entry in manifest.files if entry.sealed or is_free)
    return frozenset(found - listing.replaced)


def _is_of(entry: FileEntry, block: Block) -> bool:
    return (entry.run, entry.attempt, entry.block) == block


def _visible(manifest: Manifest, block: Block, listing: Listing) -> Iterable[FileEntry]:
    return (entry for entry in manifest.files if _is_of(entry, block) and entry.path not in listing.replaced)


def _is_gone(folder: Path, manifest: Manifest, quiet_s: float) -> bool:
    if not _is_quiet(folder, manifest, quiet_s):
        return False
    lock = _real_lock(folder)
    if lock is not None:
        lock.release()
    return lock is not None


def _no_locks(root: Path) -> str:
    if isinstance(root, ObjectPath):
        return (
            f"The object store of {root} does not decide between two who create one object (If-None-Match), so nothing "
            "was merged or pruned: use an S3 server that does, or a copy of the store in a folder."
        )
    return (
        f"The file system of {root} keeps no locks, so nothing was merged or pruned: mount it with locks, or "
        "run this on a copy of the store on another file system."
    )


def _hold(root: Path, folder: Path, stack: contextlib.ExitStack) -> frozenset[str]:
    """Hold a writer; the paths that it lists then, and none where it is back or cannot be held.

    In an object store it is given a new snapshot too: a writer that slept for longer than its lease lasts finds out
    with its next commit, and begins anew. That seals its files: should it come back while this process sleeps, it does
    not merge them.
    """
    lock = _real_lock(folder)
    if lock is None:
        return frozenset()
    stack.callback(lock.release)
    manifest = read_manifest(folder)
    if manifest is not None and isinstance(root, ObjectPath):
        try:
            write_manifest(root, _sealed(root, manifest))
        except OSError:
            return frozenset()
    return frozenset(entry.path for entry in manifest.files) if manifest is not None else frozenset()


def _sealed(root: Path, manifest: Manifest) -> Manifest:
    """The next snapshot of a writer that is gone: the same files, all of them the compactor's but for open blocks."""
    files = tuple(each if is_open_block(each.block) else replace(each, sealed=True) for each in manifest.files)
    return replace(manifest, snapshot=manifest.snapshot + 1, files=files, token=new_token(root))


def _real_lock(folder: Path) -> Lock | None:
    with contextlib.suppress(OSError):
        lock = acquire_lock(folder / LOCK)
        if lock is None or lock.is_real:
            return lock
        lock.release()
    return None


def _is_quiet(folder: Path, manifest: Manifest, quiet_s: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - (folder / f"{manifest.snapshot:012d}.json").stat().st_mtime >= quiet_s
    return False
