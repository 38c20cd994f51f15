"""Writing files so that a reader, or a crash at any moment, never meets half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_durably(path: Path, write: Callable[[Path], None]) -> int:
    """Let ``write`` fill a temporary file, force it to disk and rename it to ``path``; return its size in bytes.

    The temporary name ends in ``.tmp``: DuckDB's globs do read names with a leading dot or underscore. On an error
    (OSError: full disk, no permission) the temporary file is removed and nothing is seen of it.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        write(temporary)
        fd = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(fd)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return size


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk: a rename is durable only then."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents; each new entry is forced to disk."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)
