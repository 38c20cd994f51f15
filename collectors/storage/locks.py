"""Locks between processes that no crash leaves behind: on files, and leases in an object store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from .lease import Lease
from .object_path import ObjectPath

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)


class Lock(Protocol):
    """What `acquire_lock` gives. ``is_real`` is False where it keeps nobody away.

    ``was_held``: somebody is known to have had it before; a file does not tell.
    """

    is_real: bool
    was_held: bool

    def release(self, *, delete: bool = False) -> None:
        """Give it free."""


def acquire_lock(path: Path) -> Lock | None:
    """The lock at a path, or None where somebody holds it. OSError where it cannot be made."""
    return Lease.acquire(path) if isinstance(path, ObjectPath) else FileLock.acquire(path)


class FileLock:
    """An exclusive lock on a file, held until `release`, until nobody refers to it, or until the process ends.

    ``is_real`` is False on a file system without locks, where it keeps nobody away.
    """

    was_held = False

    def __init__(self, path: Path, fd: int, *, is_real: bool = True) -> None:
        self.path, self._fd, self.is_real = path, fd, is_real

    @classmethod
    def acquire(cls, path: Path) -> FileLock | None:
        """Take the lock, or return None where somebody holds it. OSError where the file cannot be made.

        On a file system without locks it is always granted: the callers' own order has to do there.
        """
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            is_real = True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(fd)
                    raise
                is_real = False
            # Whoever held it may have deleted the file between our open and our lock.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(fd).st_ino:
                    return cls(path, fd, is_real=is_real)
            os.close(fd)

    def release(self, *, delete: bool = False) -> None:
        """Give the lock free; ``delete`` removes the file too."""
        if self._fd < 0:
            return
        if delete:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self.release()
