"""Giving back the room of what was read of a file, while its writer goes on appending: offsets stay what they are."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_PAGE_BYTES = 4096


def free_until(path: Path, end: int) -> bool:
    """Make a hole of the first ``end`` bytes; False where the system or the file system has no holes."""
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is None:
        return False
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            done: int = fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(end))
            return done == 0
        finally:
            os.close(fd)
    return False


def first_data(path: Path) -> int:
    """Offset of the first byte that is not in a hole and not zero; the end of the file where there is none."""
    with path.open("rb") as file:
        try:
            offset = os.lseek(file.fileno(), 0, os.SEEK_DATA)
        except OSError:  # nothing but a hole, or an empty file
            return os.fstat(file.fileno()).st_size
        file.seek(offset)
        while page := file.read(_PAGE_BYTES):
            text = page.lstrip(b"\0")
            offset += len(page) - len(text)
            if text:
                break
        return offset
