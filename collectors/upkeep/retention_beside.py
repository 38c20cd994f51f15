"""What lies beside the tables of an attempt: dumps, alarms, claims, logs; deleted within the limits of the raw data."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from ..alarms.memory import FOLDER as ALARMS
from ..alarms.rules import WINDOW_S
from ..incidents.diagnosing import FOLDER as DIAGNOSES
from ..incidents.dumps import STORED as DUMPS
from ..incidents.phases import FOLDER as PHASES
from ..manifests.manifest import FileEntry, Pruned
from ..storage.object_path import ObjectPath

SUPERVISOR = "_supervisor"
"""Folder of the logs of supervised ranks. What a run keeps there for itself, as its fences, stays."""

FOLDERS = (DUMPS, ALARMS, DIAGNOSES, PHASES, SUPERVISOR)
"""Folders of the store; each has folders of run and attempt, and nobody lists their files in a manifest."""

_NUMBER = re.compile(r"attempt=(\d+)")
_RUN = "run="


def beside_tables(root: Path) -> list[FileEntry]:
    """An entry for each folder of an attempt: its files' size together, and when the newest of them was changed.

    ``rows`` is the number of files. What cannot be read now is left out.
    """
    return [entry for name in FOLDERS for folder in _folders(root / name) if (entry := _entry(root, name, folder))]


def is_beside(entry: FileEntry) -> bool:
    """Whether an entry is one of `beside_tables`."""
    return entry.table in FOLDERS


def _folders(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.glob("run=*/attempt=*") if path.is_dir() and not path.is_symlink())


def _entry(root: Path, name: str, folder: Path) -> FileEntry | None:
    number = _NUMBER.fullmatch(folder.name)
    if number is None:
        return None
    found = _files(folder)
    newest = max((state.st_mtime_ns for state in found), default=None)
    if newest is None:
        with contextlib.suppress(OSError):
            newest = folder.stat().st_mtime_ns
    run = unquote(folder.parent.name.removeprefix(_RUN))
    size = sum(state.st_size for state in found)
    path = folder.relative_to(root).as_posix()
    return FileEntry(path, name, run, int(number[1]), "", rows=len(found), size_bytes=size, committed_ns=newest)


def _files(folder: Path) -> list[os.stat_result]:
    if isinstance(folder, ObjectPath):
        return [state for _, state in folder.files()]
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if not path.is_dir():
                found.append(path.lstat())
    return found


def is_quiet(entry: FileEntry, quiet_s: float) -> bool:
    """Whether nobody has written there for so long; what keeps alarms from being told again has its own time."""
    age_s = (time.time_ns() - (entry.committed_ns or 0)) / 1e9
    return age_s >= max(quiet_s, WINDOW_S if entry.table == ALARMS else 0.0)


def delete_beside(root: Path, entries: Sequence[FileEntry]) -> list[Pruned]:
    """Delete the folders of these entries; what went. OSError where one cannot be deleted."""
    gone = []
    for entry in entries:
        folder = root / entry.path
        if isinstance(folder, ObjectPath):
            folder.remove_all()
        else:
            shutil.rmtree(folder)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
        gone.append(pruned_beside(entry))
    return gone


def pruned_beside(entry: FileEntry) -> Pruned:
    """What a report says of one: files, no rows."""
    return Pruned(
        entry.run, entry.attempt, entry.table, None,
        files=entry.rows, rows=0, size_bytes=entry.size_bytes, until_ns=entry.committed_ns, last_step=None,
    )  # fmt: skip
