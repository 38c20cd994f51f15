"""Whether a folder is on a file system of this machine, where a lock reaches all who can see it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .object_path import ObjectPath

MOUNTS = Path("/proc/self/mountinfo")

LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "ramfs", "bcachefs"})
"""Types of file systems that only one machine mounts; of others it is not known."""


def is_local(folder: Path) -> bool:
    """Whether a folder is on a file system that no other machine can write; False where that cannot be told."""
    if isinstance(folder, ObjectPath):
        return False
    try:
        found = mount_type(folder.resolve(), MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return False
    return found in LOCAL


def mount_type(folder: Path, lines: Iterable[str]) -> str | None:
    """The type of the file system that a folder is on. ``lines`` are those of mountinfo (proc(5)).

    >>> mount_type(Path("/data/store"), ["1 0 8:1 / / rw - ext4 /dev/sda rw", "2 1 0:9 / /data rw - nfs4 s:/ rw"])
    'nfs4'
    """
    best: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or not after:
            continue
        point = Path(_unescaped(before.split()[4]))
        # Of mounts at one point, the later one covers the earlier.
        if folder.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split()[0])
    return None if best is None else best[1]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
