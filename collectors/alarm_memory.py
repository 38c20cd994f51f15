"""Which alarms were told of late: files in the store that agents of all hosts share."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

FOLDER = "_alarms"
"""Folder of the store."""

_SUFFIX = ".told"


class AlarmMemory:
    """Remembers keys for ``window_s``. Where the folder cannot be written, this process remembers by itself."""

    def __init__(self, folder: Path, window_s: float) -> None:
        self._folder, self._window_s = folder, window_s
        self._own: dict[str, float] = {}

    def claim(self, key: str) -> bool:
        """Whether this one is the first to tell of it within the window."""
        now = time.time()
        if now - self._own.get(key, -self._window_s) < self._window_s:
            return False
        self._own[key] = now
        try:
            return self._claim_file(key, now)
        except OSError:
            return True

    def _claim_file(self, key: str, now: float) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        for _ in range(2):
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(key + "\n")
                return True
            except FileExistsError:
                try:
                    if now - path.stat().st_mtime < self._window_s:
                        return False
                    # Of several that find it too old, only one can rename it away.
                    aside = path.with_suffix(f".{os.getpid()}.old")
                    path.rename(aside)
                    aside.unlink()
                except FileNotFoundError:
                    continue
        return False

    def forget(self, key: str) -> None:
        """It was not told after all: the next one may try."""
        self._own.pop(key, None)
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self._folder / (hashlib.sha256(key.encode()).hexdigest()[:24] + _SUFFIX)
