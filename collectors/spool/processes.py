"""The state of a rank's process as seen from outside, without mistaking a reused process id for it."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .exit_codes import ExitCode, code_of_zombie


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
    "R": ProcessState.RUNNING,
    "W": ProcessState.RUNNING,
    "S": ProcessState.SLEEPING,
    "I": ProcessState.SLEEPING,
    "P": ProcessState.SLEEPING,
    "D": ProcessState.DISK_SLEEP,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "Z": ProcessState.ZOMBIE,
    "X": ProcessState.GONE,
    "x": ProcessState.GONE,
}
"""The letters of `/proc/PID/stat` (proc(5))."""

_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """State and CPU time so far (user and system, ns); None where it cannot be seen.

    ``exit_code`` of one that has ended: negative for a signal, None where the kernel does not tell.
    """

    state: ProcessState | None
    cpu_ns: int | None
    exit_code: int | None = None


@functools.cache
def pid_namespace() -> int | None:
    """Which process ids this process sees (the inode of its namespace); None where the system does not tell."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


class ProcessWatch:
    """Watches one process id: the process is the rank's only if it has the rank's black box mapped.

    The open `/proc/PID/stat` belongs to that process for ever: a later process with its number does not answer there.
    One look costs a read of some microseconds.
    """

    def __init__(self, pid: int, box: Path) -> None:
        self._fd = -1
        self._problem: ProcessState | None = None
        self._exit = ExitCode(pid)
        try:
            self._fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._problem = ProcessState.GONE if Path("/proc/self").exists() else None
            return
        except OSError:  # hidden, or too many open files: nothing is known
            return
        if _maps(pid, box) is False:
            self._problem = ProcessState.GONE
        if self._problem is not None:  # that exit is another process'
            self._exit.close()

    def sample(self) -> ProcessSample:
        """Look once."""
        if self._problem is not None or self._fd < 0:
            return ProcessSample(self._problem, None)
        try:
            text = os.pread(self._fd, 4096, 0)
        except ProcessLookupError:
            return ProcessSample(ProcessState.GONE, None, self._exit.read())
        except OSError:
            return ProcessSample(None, None)
        fields = text[text.rfind(b")") + 1 :].split()  # the name before it may hold anything
        if len(fields) < 13:
            return ProcessSample(None, None)
        state = _STATES.get(fields[0].decode())
        code = code_of_zombie(fields) if state == ProcessState.ZOMBIE else None
        return ProcessSample(state, (int(fields[11]) + int(fields[12])) * _TICK_NS, code)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._exit.close()


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
