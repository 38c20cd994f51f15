"""The files of one writer as they lie there: its last snapshot, what nobody lists, and what was left by a kill."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ...profiler.errors import MegascopeError
from ..manifests.manifest import FileEntry, Manifest, quote_name, read_manifest
from ..storage.durable import TEMPORARY
from ..storage.object_path import ObjectPath
from ..tables.schemas import SCHEMA_VERSION

LEFT_AFTER_S = 86400.0
"""A temporary folder of this machine that has not changed for so long is nobody's."""


def orphans(
    root: Path, writer: str, pattern: str, listed: Collection[str], *, has_gap: bool, searches: bool
) -> Iterator[Path]:
    """What an earlier incarnation of a writer staged and did not live to commit: its files that are not ``listed``.

    Where a manifest could not be read once (``has_gap``), nobody knows which files those are: there are none, in later
    incarnations too. Temporary files are never listed.

    Whoever lists a whole object store pays for each thousand files: there it is done only if one ``searches``, and else
    in the folders of the runs that have listed files.
    """
    name = re.compile(re.escape(quote_name(writer)) + r"-\d{12}(-\d+)?\.parquet(\.tmp)?")
    if not isinstance(root, ObjectPath):
        candidates: Iterable[Path] = root.glob(pattern)
    else:
        candidates = _searched(root, pattern) if searches else _beside(root, listed)
    for path in candidates:
        match, relative = name.fullmatch(path.name), path.relative_to(root).as_posix()
        is_free = match is not None and (match[2] is not None or not has_gap)
        if is_free and relative not in listed:
            yield path


def _searched(root: ObjectPath, pattern: str) -> Iterator[Path]:
    """The files that may fit: of one run by listing its folders, of any run by listing all that there is."""
    is_one_run = "*" not in pattern.split("/")[1]
    return root.glob(pattern) if is_one_run else root.rglob("*.parquet")


def _beside(root: ObjectPath, listed: Iterable[str]) -> Iterator[Path]:
    """The files of the runs that a writer has listed files of."""
    for folder in sorted({"/".join(path.split("/")[:2]) for path in listed}):
        yield from (root / folder).rglob("*.parquet")


def torn_sentence(folder: Path, newest: int) -> str:
    """What to do about a newest manifest that cannot be read."""
    return (
        f"{folder / f'{newest:012d}.json'} cannot be read, so the files of this writer are left as they are: put it "
        "back from a copy of the store, or delete it to give up the files that only it lists."
    )


def remove_left_over(folder: Path) -> None:
    """Delete what an earlier holder of the lock wrote for the time being, and was killed over."""
    if isinstance(folder, ObjectPath):
        _remove_left_on_this_machine()
        return
    for path in folder.glob("*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _remove_left_on_this_machine() -> None:
    """Delete what a process was killed over that wrote files for an object store, a day ago or longer."""
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > LEFT_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)


def read_own(folder: Path, writer: str, newest: int) -> Manifest:
    """The last snapshot of a writer, or one without files where it has none yet.

    Raises MegascopeError where there are snapshots and none can be read: its files would be taken for left-overs.
    """
    manifest = read_manifest(folder)
    if manifest is None and newest:
        raise MegascopeError(
            f"None of the manifests in {folder} can be read: put one back from a copy of the store, or remove the "
            "folder to give up the files that they list."
        )
    return manifest or Manifest(writer, 0)


def stamped(entry: FileEntry, now: int) -> FileEntry:
    """A staged file as it is listed: with its moment, which a merged file has from what went into it."""
    return replace(entry, committed_ns=entry.committed_ns or now, schema=SCHEMA_VERSION)
