"""The kernel's log as it is written: /dev/kmsg, or a text file that a container is given in its place."""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .kernel_lines import KernelEvent, event_of

KMSG = Path("/dev/kmsg")
LOG_VARIABLE = "MEGASCOPE_KERNEL_LOG"
"""A text file with lines of the kernel's log, where /dev/kmsg is not to be read."""

MOST_LINES = 2000
"""Read in one turn; what is left waits for the next."""

BEFORE_S = 60.0
"""What was logged up to so long before the start is told too: it may be why the attempt before has ended."""

MOST_KEPT = 200
"""Events that are kept while nobody wants them."""

_MOST_BYTES = 8192
_MOST_FILE_BYTES = 1 << 20
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Logged:
    """An event, and how long ago it was logged by the clock of the kernel's log (about the monotonic one)."""

    event: KernelEvent
    age_ns: int


class KernelLog:
    """Reads what is new, without waiting. ``problem`` says once and for all why there is nothing to be read."""

    def __init__(self, path: Path | None = None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        given = os.environ.get(LOG_VARIABLE)
        self.path = path or (Path(given) if given else KMSG)
        self.problem: str | None = None
        self._clock = clock
        self._rest = b""
        self._kept: deque[tuple[int, Logged]] = deque(maxlen=MOST_KEPT)
        self._read_ns: int | None = None  # when all that had been logged was read; None until the first time
        self._is_device = False
        self._file: int | None = None
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._is_device = not self.path.is_file()
            if not self._is_device:
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        self.problem = (
            f"The kernel's log is not read: {self.path} cannot be opened ({reason}): run the agent with CAP_SYSLOG, or "
            f"name a text file in {LOG_VARIABLE}."
        )
        self.close()

    def read(self) -> list[Logged]:
        """What was logged since the last call, the first time and after `keep` since a minute ago."""
        now_ns = self._clock()
        aged = [Logged(one.event, one.age_ns + now_ns - at_ns) for at_ns, one in self._kept]
        self._kept.clear()
        return [*(one for one in aged if one.age_ns <= BEFORE_S * 1e9), *self._read()]

    def keep(self) -> None:
        """Read what is new while nobody wants it: for those who come within a minute, with the age that it has then."""
        now_ns = self._clock()
        self._kept.extend((now_ns, one) for one in self._read())

    def _read(self) -> list[Logged]:
        if self._file is None:
            return []
        return self._from_device() if self._is_device else self._from_file()

    def _from_device(self) -> list[Logged]:
        found = []
        before_ns = self._read_ns
        for _ in range(MOST_LINES):
            try:
                record = os.read(self._file or 0, _MOST_BYTES)
            except BlockingIOError:
                self._read_ns = self._clock()
                break
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten before it was read, or too long
                    continue
                self._fail(error)
                break
            if not record:
                break
            logged = self._logged(record.decode(errors="replace"), before_ns)
            if logged is not None:
                found.append(logged)
        return found

    def _logged(self, record: str, before_ns: int | None) -> Logged | None:
        """An event of one record: ``priority,number,microseconds,flags;text`` and lines with properties.

        What came after the log was read to its end at ``before_ns`` is new, whatever the log's clock says, which is not
        steered and may be minutes off.
        """
        head, _, rest = record.partition(";")
        event = event_of(_plain(rest.partition("\n")[0]))
        parts = head.split(",")
        if event is None or len(parts) < 3 or not parts[2].isdigit():
            return None
        age_ns = max(0, self._clock() - int(parts[2]) * 1000)
        if before_ns is not None:
            return Logged(event, min(age_ns, max(0, self._clock() - before_ns)))
        return Logged(event, age_ns) if age_ns <= BEFORE_S * 1e9 else None

    def _from_file(self) -> list[Logged]:
        """Lines that were added; they have just come, whatever time they carry."""
        try:
            if os.fstat(self._file or 0).st_size < os.lseek(self._file or 0, 0, os.SEEK_CUR):
                os.lseek(self._file or 0, 0, os.SEEK_SET)  # it was cut
                self._rest = b""
            piece = os.read(self._file or 0, _MOST_FILE_BYTES)
            if not piece and self._is_replaced():
                rest, self._rest = self._rest, b""
                os.close(self._file or 0)
                self._file = None
                self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                piece = rest + b"\n" + os.read(self._file, _MOST_FILE_BYTES)
        except OSError as error:
            self._fail(error)
            return []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = [event_of(line.decode(errors="replace")) for line in lines]
        return [Logged(event, 0) for event in events if event is not None]

    def _is_replaced(self) -> bool:
        """Whether another file has the log's name, and something in it: only then has its writer gone over to it."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(self._file or 0)
        return there.st_size > 0 and (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _plain(text: str) -> str:
    """A text without the escapes that the kernel writes for bytes that cannot be printed."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
