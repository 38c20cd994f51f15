"""The room that a store may take on its disk."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from pathlib import Path

from .object_path import ObjectPath

log = logging.getLogger(__name__)

DEFAULT_BYTES = 20 * 2**30
DEFAULT_SHARE = 0.1
MEASURE_EVERY_S = 60.0
NO_LIMIT = 2**62


def default_quota(root: Path) -> int:
    """20 GiB, or a tenth of the disk where that is less; an object store has no end."""
    if isinstance(root, ObjectPath):
        return NO_LIMIT
    folder = root.absolute()
    while not folder.exists():
        folder = folder.parent
    return min(DEFAULT_BYTES, int(shutil.disk_usage(folder).total * DEFAULT_SHARE))


def folder_bytes(root: Path) -> int:
    """Size of all files below a folder; what vanishes meanwhile does not count."""
    if isinstance(root, ObjectPath):
        return sum(state.st_size for _, state in root.files())
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118  (twice as fast as a Path)
            except FileNotFoundError:
                continue
    return total


def size_text(size_bytes: float) -> str:
    """Bytes as people read them: ``"1.5 GB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


class Quota:
    """Tells whether the store is full: measured every minute, and in between by what this agent has written."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root, self.limit_bytes = root, limit_bytes
        self._measured_bytes = self._written_then = 0
        self._measured_at = self._asked_at = -MEASURE_EVERY_S
        self._said = False

    @property
    def measured_bytes(self) -> int | None:
        """Size of the store when it was last measured; None before that."""
        return self._measured_bytes if self._measured_at >= 0 else None

    def is_exceeded(self, written_bytes: int) -> bool:
        """Whether there is no more room; ``written_bytes`` is the size of all that this agent has written."""
        now = time.monotonic()
        if self.limit_bytes >= NO_LIMIT:
            return False
        if now - self._asked_at >= MEASURE_EVERY_S:
            self._asked_at = now
            with contextlib.suppress(OSError):  # the store does not answer: what was measured last goes on counting
                self._measured_bytes, self._written_then = folder_bytes(self.root), written_bytes
                self._measured_at = now
        size = self._measured_bytes + written_bytes - self._written_then
        if size <= self.limit_bytes:
            return False
        if not self._said:
            self._said = True
            log.warning(
                "The store %s has %d MiB, more than its quota of %d MiB: spans are dropped from here on and counted in "
                "heartbeats.lost_spans; rank_windows, steps and heartbeats go on. Make room with `megascope prune %s`, "
                "or raise the quota.",
                self.root,
                size >> 20,
                self.limit_bytes >> 20,
                self.root,
            )
        return True
