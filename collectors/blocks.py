"""The files of one block that may be replaced now, whoever wrote them, and the locks that keep it so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .keeper import BlockKeeper
from .listing import Listing
from .locks import FileLock
from .manifest import FileEntry, Manifest, is_compactor_folder, read_manifest
from .manifest_writer import GRACE_S, LOCK, WriterHeldError

QUIET_S = 60.0
"""A writer is gone if its lock is free and its manifest was not written for so long."""

Block = tuple[str, int, str]
"""Run, attempt and block."""


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block whose compactor's manifest is held: what may be replaced, and every path that any manifest lists."""

    keeper: BlockKeeper
    usable: tuple[FileEntry, ...]
    listed: frozenset[str]
    being_written: int


@contextlib.contextmanager
def held_block(
    root: Path, block: Block, listing: Listing, *, grace_s: float = GRACE_S, quiet_s: float = QUIET_S
) -> Iterator[HeldBlock | None]:
    """Hold a block; None where another process does, or where the file system has no locks.

    Usable are the compactor's own files, those that living writers have sealed, and all of writers that are gone: their
    locks are held too, so that no new incarnation merges a file meanwhile.
    """
    with contextlib.ExitStack() as stack:
        try:
            keeper = stack.enter_context(BlockKeeper(root, *block, grace_s=grace_s))
        except WriterHeldError:
            yield None
            return
        if not keeper.is_lock_real:
            yield None
            return
        listing.refresh()  # under the lock: nobody else changes what the compactor lists
        usable, being_written = list(keeper.committed_files), 0
        for folder, manifest in listing.manifests().items():
            if is_compactor_folder(folder) or not any(_is_of(entry, block) for entry in manifest.files):
                continue
            current, lock = _held_if_gone(folder, manifest, quiet_s)
            if lock is not None:
                stack.callback(lock.release)
            for entry in _visible(current, block, listing):
                if entry.sealed or lock is not None:
                    usable.append(entry)
                else:
                    being_written += 1
        listed = frozenset(entry.path for each in listing.manifests().values() for entry in each.files)
        yield HeldBlock(keeper, tuple(usable), listed, being_written)


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


def _held_if_gone(folder: Path, manifest: Manifest, quiet_s: float) -> tuple[Manifest, FileLock | None]:
    """The manifest, and the writer's lock where the writer is gone; under the lock, the manifest as it is then."""
    if not _is_quiet(folder, manifest, quiet_s):
        return manifest, None
    with contextlib.suppress(OSError):
        lock = FileLock.acquire(folder / LOCK)
        if lock is not None and lock.is_real:
            return read_manifest(folder) or manifest, lock
        if lock is not None:
            lock.release()
    return manifest, None


def _is_quiet(folder: Path, manifest: Manifest, quiet_s: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - (folder / f"{manifest.snapshot:012d}.json").stat().st_mtime >= quiet_s
    return False
