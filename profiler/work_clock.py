"""How long a rank works while it has a core: where ranks share cores, waiting for one is nobody's slowness."""

from __future__ import annotations

import contextlib
import os
import threading
from time import monotonic_ns

_PATH = "/proc/thread-self/schedstat"
_BYTES = 96


class WorkClock:
    """Runs while the thread that made it is inside of work, and stands still while it waits for communication.

    Linux counts in nanoseconds how long each thread was ready to run and no core was free: the second number of its
    ``schedstat`` (Documentation/scheduler/sched-stats.rst). That is left out; what a thread sleeps of its own accord is
    not. A reading takes 1.5 us. Work may nest; of other threads nothing is counted.
    """

    __slots__ = ("_depth", "_file", "_is_known", "_is_lost", "_since_ns", "_thread", "_worked_ns")

    def __init__(self, file: int) -> None:
        self._file, self._thread = file, threading.get_ident()
        self._depth = self._since_ns = self._worked_ns = 0
        self._is_known = self._is_lost = False

    @classmethod
    def of_this_thread(cls) -> WorkClock | None:
        """None where the kernel does not count it."""
        try:
            file = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(os.pread(file, _BYTES, 0).split()[2]):  # times that the thread was given a core: it has one now
                return cls(file)
        os.close(file)
        return None

    def enter(self) -> None:
        """The thread begins to work."""
        if threading.get_ident() == self._thread:
            self._depth += 1
            if self._depth == 1:
                self._since_ns = self._now_ns()

    def leave(self) -> None:
        """The thread has worked."""
        if self._depth and threading.get_ident() == self._thread:
            if self._depth == 1:
                self._stop()
            self._depth -= 1

    def wait_begin(self) -> None:
        """A thread begins to wait for communication."""
        if self._depth and threading.get_ident() == self._thread:
            self._stop()

    def wait_end(self) -> None:
        """The wait is over."""
        if self._depth and threading.get_ident() == self._thread:
            self._since_ns = self._now_ns()

    def take(self) -> int | None:
        """Nanoseconds worked since the last call; None if no work was seen to end."""
        worked = self._worked_ns if self._is_known and not self._is_lost else None
        self._worked_ns, self._is_known = 0, False
        return worked

    def stop(self) -> None:
        """Forget what is under way: nothing is counted until work begins anew."""
        self._depth = 0

    def close(self) -> None:
        """Let go of the file."""
        self.stop()
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):
            os.close(file)

    def _stop(self) -> None:
        self._worked_ns += self._now_ns() - self._since_ns
        self._is_known = True

    def _now_ns(self) -> int:
        """A clock that stands still while no core is free."""
        try:
            waited = int(os.pread(self._file, _BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):  # such as closed by another thread: training goes on
            self._is_lost = True
            return 0
        return monotonic_ns() - waited
