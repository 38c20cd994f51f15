"""The exit code of a process that is not our child: from the kernel, while it is a zombie, or by a pidfd afterwards."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Sequence

_STATUS_FIELD = 49
"""exit_code, the 52nd field of `/proc/PID/stat` (proc(5)), counted from the state, which is the third."""

_GET_INFO = 0xC040FF0B
"""PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info) with that structure's first size, 64 bytes (linux/pidfd.h)."""

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info: mask, cgroup, eleven ids, and the status as waitpid(2) gives it."""

_WITH_EXIT = 1 << 3
"""PIDFD_INFO_EXIT, since Linux 6.15: the status of a process that was waited for by its parent."""


def code_of_zombie(fields: Sequence[bytes]) -> int | None:
    """Exit code (negative for a signal) of a zombie, by its `/proc/PID/stat` from the state on.

    None for 0: the kernel gives that also to those who may not know.
    """
    try:
        status = int(fields[_STATUS_FIELD])
        return os.waitstatus_to_exitcode(status) if status else None
    except (ValueError, IndexError):
        return None


class ExitCode:
    """Follows a process to its end by a descriptor that is its own for ever, whoever gets its number afterwards."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        try:
            self._fd = os.pidfd_open(pid)
        except (OSError, AttributeError):  # gone already, too many open files, or not Linux: nothing is known
            return
        os.set_inheritable(self._fd, False)

    def read(self) -> int | None:
        """Exit code, negative for a signal; None while it is not known, or where this kernel does not tell."""
        if self._fd < 0:
            return None
        asked = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(self._fd, _GET_INFO, asked)
        except OSError as error:
            if error.errno != errno.ESRCH:
                self.close()
            return None
        told = _INFO.unpack(asked)
        return os.waitstatus_to_exitcode(told[-1]) if told[0] & _WITH_EXIT else None

    def close(self) -> None:
        """Give the descriptor free."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
