"""Xids: errors of a GPU that the NVIDIA driver writes into the kernel's log, read as they come."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PATH = Path("/dev/kmsg")

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]+)\): (?P<xid>\d+)")


def xids_in(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(number, PCI address of the device) of every Xid in lines of the kernel's log."""
    for line in lines:
        found = _XID.search(line)
        if found is not None:
            yield int(found["xid"]), found["device"].removeprefix("PCI:")


class KernelLog:
    """What is new in the kernel's log since this was made; nothing where it cannot be read, as in most containers."""

    def __init__(self, path: Path = PATH) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)

    def xids(self) -> list[tuple[int, str]]:
        """(number, device) of the Xids since the last call; a flood of messages is cut at 1000 a call."""
        lines = []
        for _ in range(1000):
            line = self._read()
            if not line:
                break
            lines.append(line)
        return list(xids_in(lines))

    def _read(self) -> str:
        if self._fd is None:
            return ""
        try:
            return os.read(self._fd, 8192).decode(errors="replace")
        except BrokenPipeError:  # messages were overwritten before they were read: go on with the next
            return "\n"
        except OSError:
            return ""
