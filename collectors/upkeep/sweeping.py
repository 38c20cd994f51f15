"""Tidying up after writers that are gone: what was replaced before the grace is deleted, under the writer's lock."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ..manifests.listing import Listing
from ..manifests.manifest import Manifest
from ..storage.object_path import ObjectPath
from ..writing.manifest_writer import GRACE_S, ManifestWriter, WriterHeldError
from ..writing.writer_files import torn_sentence

log = logging.getLogger(__name__)

CATALOG_LEFT_S = 3600.0
"""A temporary catalog is written in a moment: an older one was left by a kill."""


def sweep(root: Path, grace_s: float = GRACE_S, *, say: Callable[[str], None] = log.warning) -> int:
    """Delete what writers that are gone had replaced before the grace; return the number of files.

    What a compactor has replaced of them leaves their manifests first, and the disk with a later sweep. Living writers
    look after their own files. ``say`` is told, in sentences, which writers were left alone because their newest
    manifest cannot be read, and that the store cannot be written: then still all is deleted that can be.
    """
    listing = Listing(root)
    listing.refresh()
    _remove_catalogs(root)
    limit = time.time_ns() - int(grace_s * 1e9)
    count, failures = 0, []
    for folder, manifest in listing.manifests().items():
        if folder in listing.unreadable:
            say(torn_sentence(folder, int(listing.unreadable[folder].path.stem)))
            continue
        expired = [root / each.path for each in manifest.retired if each.retired_ns <= limit]
        present = [path for path in expired if path.exists()]
        is_due = bool(expired) or _has_replaced(manifest, listing)
        if is_due or (not isinstance(root, ObjectPath) and any(folder.glob("*.tmp"))):
            try:
                _sweep_writer(root, manifest.writer, grace_s, publishes=is_due)
            except WriterHeldError:
                continue
            except OSError as error:
                failures.append(error)
            count += sum(1 for path in present if not path.exists())
    if failures:
        say(unwritable_sentence(root, failures[0]))
    return count


def unwritable_sentence(root: Path, error: OSError) -> str:
    """What to do where nothing can be written."""
    if isinstance(root, ObjectPath):
        return (
            f"The store {root} cannot be written ({error}): see that it answers and lets you write, and run it again."
        )
    return (
        f"The store {root} cannot be written ({error}): make room for some megabytes on its disk, where `--grace 0` "
        "deletes replaced files at once, or let this user write to it, and try again."
    )


def _sweep_writer(root: Path, name: str, grace_s: float, *, publishes: bool) -> None:
    writer = ManifestWriter(root, name, grace_s=grace_s)
    try:
        if publishes and writer.is_whole:
            writer.publish()
    finally:
        writer.close()


def _remove_catalogs(root: Path) -> None:
    for folder in root.glob("_catalog-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > CATALOG_LEFT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _has_replaced(manifest: Manifest, listing: Listing) -> bool:
    return any(entry.path in listing.replaced for entry in manifest.files)
