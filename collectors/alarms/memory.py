"""Which alarms wait to be told and which were told of late: files in the store that all of the fleet share."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from ...profiler.host import host_name
from ..storage.durable import make_folders, replace_text
from ..storage.shared_claim import LEASE_S, SharedClaim
from .record import FOLDER, TOLD, WAITING, Recorded, alarm_folder, told_text
from .rules import Alarm

_CLAIMS = "claims"
_numbers = itertools.count()


class AlarmMemory:
    """Remembers for ``window_s``. Where the store cannot be written, this process remembers by itself."""

    def __init__(self, folder: Path, window_s: float, lease_s: float = LEASE_S) -> None:
        self._root, self._window_s, self._lease_s = folder, window_s, lease_s
        self._own: dict[str, float] = {}
        self._holder = f"{host_name()}:{os.getpid()}:{next(_numbers)}"

    def is_told(self, alarm: Alarm) -> bool:
        """Whether anybody told of it within the window."""
        since = self._own.get(alarm.key)
        if since is not None and time.time() - since < self._window_s:
            return True
        with contextlib.suppress(OSError):
            return time.time() - self._path(alarm, TOLD).stat().st_mtime < self._window_s
        return False

    def note_told(self, alarm: Alarm, targets: Collection[str] = ()) -> None:
        """It was told, and these targets took it: nobody has to within the window."""
        self._own[alarm.key] = time.time()
        with contextlib.suppress(OSError):
            make_folders(self._folder(alarm))
            told = Recorded(alarm, time.time_ns(), tuple(sorted(targets)), host_name())
            self._path(alarm, TOLD).write_text(told_text(told), encoding="utf-8")
        self.drop(alarm)

    def keep(self, alarm: Alarm) -> None:
        """Have it wait in the store, where others find it if this process ends before it told of it."""
        with contextlib.suppress(OSError):
            make_folders(self._folder(alarm))
            replace_text(self._path(alarm, WAITING), json.dumps(asdict(alarm), default=str))

    def drop(self, alarm: Alarm) -> None:
        """It waits no more."""
        with contextlib.suppress(OSError):
            self._path(alarm, WAITING).unlink(missing_ok=True)

    def claim(self, alarm: Alarm) -> SharedClaim:
        """The right to tell of it and of all that are told with it."""
        return SharedClaim(self._folder(alarm) / _CLAIMS, _name(alarm.told_with), self._holder, self._lease_s)

    def companions(self, alarm: Alarm) -> list[Alarm]:
        """What waits to be told with it and was not yet, itself included; it comes first."""
        if alarm.fate is None:
            return [alarm]
        found = {alarm.key: alarm}
        for other in _read_all(self._folder(alarm)):
            if other.told_with == alarm.told_with and not self.is_told(other):
                found.setdefault(other.key, other)
        return list(found.values())

    def left(self, least_s: float) -> Iterator[Alarm]:
        """What has waited for so long at least; what has for longer than the window is no news, and is removed."""
        for folder in self._root.glob("run=*/attempt=*"):
            for alarm in _read_all(folder):
                path = self._path(alarm, WAITING)
                with contextlib.suppress(OSError):
                    waited_s = time.time() - path.stat().st_mtime
                    if waited_s > self._window_s:
                        path.unlink()
                    elif waited_s >= least_s:
                        yield alarm

    def _folder(self, alarm: Alarm) -> Path:
        return alarm_folder(self._root, alarm.run, alarm.attempt)

    def _path(self, alarm: Alarm, suffix: str) -> Path:
        return self._folder(alarm) / (_name(alarm.key) + suffix)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()[:24]


def _read_all(folder: Path) -> Iterator[Alarm]:
    """The alarms that wait in a folder; a damaged file is none."""
    for path in sorted(folder.glob(f"*{WAITING}")):
        with contextlib.suppress(OSError, ValueError):
            yield Alarm.parse(json.loads(path.read_text(encoding="utf-8")))


__all__ = ["FOLDER", "AlarmMemory"]
