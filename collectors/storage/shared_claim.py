"""The right to do something, of one process of the fleet at a time: a file in the store, alive while it is renewed."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from .durable import make_folders
from .object_path import ObjectPath

LEASE_S = 30.0
"""A claim that nobody renewed for so long is free again. Who waits counts by a clock of its own."""

_FREE = "free"


class SharedClaim:
    """A claim under ``folder``, of the name given. ``holder`` tells this process from all others of the fleet.

    Who takes it makes a file with the next higher number, which only one can: so two that find a claim too old at the
    same moment never have both. The file with the highest number counts; its holder renews it by its time of change.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        holder: str,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._name, self._holder = folder, name, holder
        self._lease_s, self._clock = lease_s, clock
        self._own: Path | None = None
        self._renewed = 0.0
        self._seen: tuple[str, int] | None = None
        self._seen_at = 0.0

    @property
    def is_own(self) -> bool:
        """Whether this process took it and has not seen anybody else take it since."""
        return self._own is not None

    @property
    def path(self) -> Path | None:
        """The file by which this process has it; None where it has not."""
        return self._own

    def take(self) -> bool:
        """Whether it is this process's now, which renews it. OSError where the store cannot be read or written.

        One that is this process's and does not show in the store is no loss before nobody has renewed it for its time.
        """
        newest = self.newest()
        if self._own is not None:
            is_unseen = _number(newest) < _number(self._own)
            if newest == self._own or (is_unseen and _is_there(self._own)):  # a listing may be an old one
                self._renew()
                return True
            if is_unseen and self._clock() - self._renewed < self._lease_s:
                raise OSError(errno.ENOENT, "The claim does not show in the store", str(self._own))
            self._own = None  # this process was silent for so long that somebody took over
        if newest is not None and not self._is_free(newest):
            return False
        return self._make(newest)

    def keep(self) -> None:
        """Renew it, where it is this process's."""
        if self._own is not None:
            with contextlib.suppress(OSError):
                self.take()

    def give_free(self) -> None:
        """Let anybody else have it at once."""
        own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(OSError):
                own.write_text(_FREE, encoding="utf-8")

    @staticmethod
    def set_free(path: Path) -> None:
        """Free what a process held that is known to be gone; ``path`` is its file. OSError where that is gone too."""
        with path.open("r+", encoding="utf-8") as file:
            file.truncate()
            file.write(_FREE)

    def newest(self) -> Path | None:
        """The file that counts, whoever has it; None where there is none. OSError where that cannot be told."""
        return max(self._all(), key=_number, default=None)

    def _all(self) -> list[Path]:
        try:  # not by a pattern: that passes errors over, and nobody would have it
            return [path for path in self._folder.iterdir() if path.name.startswith(f"{self._name}.claim-")]
        except FileNotFoundError:
            return []

    def _is_free(self, path: Path) -> bool:
        try:
            seen = path.read_text(encoding="utf-8", errors="replace"), path.stat().st_mtime_ns
        except FileNotFoundError:  # somebody took over meanwhile
            return False
        if seen[0] == _FREE:
            return True
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at >= self._lease_s

    def _make(self, before: Path | None) -> bool:
        make_folders(self._folder)
        path = self._folder / f"{self._name}.claim-{_number(before) + 1:06d}"
        if not _created(path, self._holder):
            return False
        self._own, self._renewed = path, self._clock()
        with contextlib.suppress(OSError):  # the one with the highest number counts
            for old in self._all():
                if _number(old) < _number(path):
                    old.unlink(missing_ok=True)
        return True

    def _renew(self) -> None:
        if self._own is not None and self._clock() - self._renewed >= self._lease_s / 5:
            now = self._clock()
            if isinstance(self._own, ObjectPath):
                self._own.write_text(self._holder)
            else:
                os.utime(self._own)
            self._renewed = now  # one that fails is tried again the next time


def _created(path: Path, holder: str) -> bool:
    """Whether a file that was not there is there now, of this holder."""
    if isinstance(path, ObjectPath):
        return path.create(holder.encode())
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(holder)
    except FileExistsError:
        return False
    return True


def _is_there(path: Path) -> bool:
    """Whether a file is there. OSError where that cannot be told."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _number(path: Path | None) -> int:
    text = "" if path is None else path.name.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0
