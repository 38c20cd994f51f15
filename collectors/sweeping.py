"""Tidying up after writers that are gone: what was replaced before the grace is deleted, under the writer's lock."""

from __future__ import annotations

import time
from pathlib import Path

from .listing import Listing
from .manifest import Manifest
from .manifest_writer import GRACE_S, ManifestWriter, WriterHeldError


def sweep(root: Path, grace_s: float = GRACE_S) -> int:
    """Delete what writers that are gone had replaced before the grace; return the number of files.

    What a compactor has replaced of them leaves their manifests first, and the disk with a later sweep. Living writers
    look after their own files. Raises OSError where the store cannot be written.
    """
    listing = Listing(root)
    listing.refresh()
    limit = time.time_ns() - int(grace_s * 1e9)
    count = 0
    for manifest in listing.manifests().values():
        expired = [root / each.path for each in manifest.retired if each.retired_ns <= limit]
        present = sum(1 for path in expired if path.exists())
        if expired or _has_replaced(manifest, listing):
            try:
                writer = ManifestWriter(root, manifest.writer, grace_s=grace_s)
            except WriterHeldError:
                continue
            try:
                writer.publish()
            finally:
                writer.close()
            count += present
    return count


def _has_replaced(manifest: Manifest, listing: Listing) -> bool:
    return any(entry.path in listing.replaced for entry in manifest.files)
