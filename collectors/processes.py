"""The state of a rank's process as seen from outside, without mistaking a reused process id for it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil


class ProcessState(StrEnum):
    """States in ``heartbeats``; exited means that the rank closed its black box first."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    DISK_SLEEP = "disk-sleep"
    STOPPED = "stopped"
    ZOMBIE = "zombie"
    GONE = "gone"
    EXITED = "exited"


DEAD_STATES = frozenset({ProcessState.ZOMBIE, ProcessState.GONE})

_STATES = {
    psutil.STATUS_RUNNING: ProcessState.RUNNING,
    psutil.STATUS_WAKING: ProcessState.RUNNING,
    psutil.STATUS_SLEEPING: ProcessState.SLEEPING,
    psutil.STATUS_IDLE: ProcessState.SLEEPING,
    psutil.STATUS_PARKED: ProcessState.SLEEPING,
    psutil.STATUS_WAITING: ProcessState.SLEEPING,
    psutil.STATUS_DISK_SLEEP: ProcessState.DISK_SLEEP,
    psutil.STATUS_STOPPED: ProcessState.STOPPED,
    psutil.STATUS_TRACING_STOP: ProcessState.STOPPED,
    psutil.STATUS_ZOMBIE: ProcessState.ZOMBIE,
    psutil.STATUS_DEAD: ProcessState.GONE,
}


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """State and CPU time so far (user and system, ns); None where it cannot be seen."""

    state: ProcessState | None
    cpu_ns: int | None


@functools.cache
def pid_namespace() -> int | None:
    """Which process ids this process sees (the inode of its namespace); None where the system does not tell."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


class ProcessWatch:
    """Watches one process id: the process is the rank's only if it has the rank's black box mapped."""

    def __init__(self, pid: int, box: Path) -> None:
        self._process = _find(pid, box)

    def sample(self) -> ProcessSample:
        """Look once."""
        if self._process is None:
            return ProcessSample(ProcessState.GONE, None)
        try:
            if not self._process.is_running():
                return ProcessSample(ProcessState.GONE, None)
            with self._process.oneshot():
                state = _STATES.get(self._process.status())
                times = self._process.cpu_times()
        except psutil.NoSuchProcess:
            return ProcessSample(ProcessState.GONE, None)
        except psutil.AccessDenied:
            return ProcessSample(None, None)
        return ProcessSample(state, round((times.user + times.system) * 1e9))


def _find(pid: int, box: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return process if _maps(pid, box) is not False else None


def _maps(pid: int, box: Path) -> bool | None:
    """Whether the process has the file mapped; None where that cannot be seen (another user's, a zombie, no /proc)."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        inode = str(box.stat().st_ino)
    except OSError:
        return None
    if not lines:
        return None
    fields = (line.split(maxsplit=5) for line in lines)
    return any(len(f) == 6 and (f[4] == inode or f[5] == str(box.resolve())) for f in fields)
