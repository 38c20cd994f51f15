"""Which files of a store may be read: listed in a manifest, there, whole. The rest is reported with its reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..storage.object_files import note_size
from ..storage.object_path import ObjectPath
from ..storage.remote import UNANSWERED
from ..tables.parquet import read_parquet
from .manifest import FileEntry

_MAGIC = b"PAR1"
_FOOTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that is listed in a manifest but cannot be read, and why."""

    path: Path
    reason: str


class FileChecker:
    """Looks at each file once: its size and its two magic words, no more, until a query meets a damaged one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.damaged: dict[Path, DamagedFile] = {}
        self._sound: dict[Path, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def is_sound(self, entry: FileEntry) -> bool:
        """Whether a listed file may be read; if not, it is in ``damaged`` afterwards."""
        path = self.root / entry.path
        if isinstance(path, ObjectPath):  # an object is whole or absent, and asking for each of them takes too long
            note_size(path, entry.size_bytes)
            return path not in self.damaged
        try:
            status = path.stat()
            identity = (status.st_size, status.st_mtime_ns)
            if self._sound.get(path) == identity:
                return path not in self.damaged
            reason = _quick_check(path, status.st_size, entry.size_bytes)
        except OSError as error:
            identity, reason = (-1, -1), f"it cannot be opened: {error.strerror or error}"
        with self._lock:
            self._sound[path] = identity
            if reason is None:
                self.damaged.pop(path, None)
            else:
                self.damaged[path] = DamagedFile(path, reason)
        return reason is None

    def check_thoroughly(self, paths: list[Path]) -> bool:
        """Read every page of the files; True if one was found damaged that was taken for sound before.

        Raises UnreachableError or PermissionError where an object store does not answer, or refuses the credentials,
        which says nothing of its files.
        """
        found = False
        for path in paths:
            try:
                read_parquet(path)
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, UNANSWERED) and isinstance(path, ObjectPath):
                    raise
                reason = f"its content cannot be decoded: {str(error).splitlines()[0][:200]}"
                with self._lock:
                    self.damaged[path] = DamagedFile(path, reason)
                found = True
        return found


def _quick_check(path: Path, size: int, expected: int) -> str | None:
    if size != expected:
        return f"it has {size} of {expected} bytes"
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        file.seek(max(0, size - _FOOTER_BYTES))
        tail = file.read()
    if head != _MAGIC or not tail.endswith(_MAGIC):
        return "it is no Parquet file"
    if int.from_bytes(tail[:4], "little") + 2 * len(_MAGIC) + 4 > size:
        return "its footer is damaged"
    return None
