"""Writing files so that a reader, or a crash at any moment, never meets half of one."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .object_path import ObjectPath

TEMPORARY = "megascope-object-"
"""How the names of folders of this machine begin in which a file of an object store is made."""

_numbers = itertools.count()

Stage = Callable[[str], AbstractContextManager[Any]]


def write_durably(
    path: Path, write: Callable[[Path], None], *, stage: Stage = lambda _: contextlib.nullcontext()
) -> int:
    """Let ``write`` fill a temporary file, force it to disk and rename it to ``path``; return its size in bytes.

    ``stage`` gives the context in which each of the three happens: "write", "sync", "rename".

    The temporary name ends in ``.tmp``: DuckDB's globs do read names with a leading dot or underscore. On an error
    (OSError: full disk, no permission) the temporary file is removed and nothing is seen of it, unless it was only the
    rename that could not be forced to disk: then ``path`` is there. Into an object store the file is put as a whole.
    """
    if isinstance(path, ObjectPath):
        return _put_whole(path, write, stage)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with stage("write"):
            write(temporary)
        with stage("sync"):
            size = _sync(temporary)
        with stage("rename"):
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with stage("sync"):
        sync_folder(path.parent)
    return size


def _put_whole(path: ObjectPath, write: Callable[[Path], None], stage: Stage) -> int:
    """Let ``write`` fill a file of this machine, and put it: nobody ever sees a part of an object."""
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        temporary = Path(folder, "content")
        with stage("write"):
            write(temporary)
        size = temporary.stat().st_size
        with stage("rename"):
            path.put_file(temporary)
    return size


def replace_text(path: Path, text: str) -> None:
    """Put a small file that a crash may lose in place of what is there: nobody sees half of it, nothing is forced."""
    if isinstance(path, ObjectPath):
        path.write_text(text)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{next(_numbers)}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def place_durably(temporary: Path, path: Path) -> None:
    """Force a temporary file that is complete to disk and rename it to ``path``."""
    _sync(temporary)
    temporary.replace(path)
    sync_folder(path.parent)


def _sync(path: Path) -> int:
    """Force a file to disk; its size in bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk: a rename is durable only then."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents; each new entry is forced to disk. In an object store there are none."""
    if isinstance(folder, ObjectPath):
        return
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)
