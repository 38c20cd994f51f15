"""How long a rank works while it has a core: where ranks share cores, waiting for one is nobody's slowness."""

from __future__ import annotations

import contextlib
import os
import threading
from time import monotonic_ns, process_time_ns, thread_time_ns

_PATH = "/proc/thread-self/schedstat"
_BYTES = 96

HELPED = 0.25
"""Time that other threads of the process had a core, over the thread's own: where it is more, the thread may have
waited for them (parallel kernels, the interpreter's lock), and how long these waited for a core nobody tells."""


class WorkClock:
    """Runs while the thread that made it is inside of work, and stands still inside of anything else and in waits.

    Linux counts in nanoseconds how long each thread was ready to run and no core was free: the second number of its
    ``schedstat`` (Documentation/scheduler/sched-stats.rst). That is left out; what a thread sleeps of its own accord is
    not. A reading takes 1.5 us. Work may nest. Other threads' work is not counted, and makes a step unknown (`HELPED`).

    State changes before time is read: a garbage collection that strikes in a reading finds it consistent.
    """

    __slots__ = (
        "_depth", "_file", "_in_work", "_is_doubted", "_is_known", "_is_lost", "_is_watching",
        "_rests", "_since", "_taken", "_thread", "_waits_for", "_worked_ns",
    )  # fmt: skip

    def __init__(self, file: int) -> None:
        self._file, self._thread = file, threading.get_ident()
        self._depth = self._rests = self._worked_ns = 0
        self._taken, self._in_work = _ran_ns(), (0, 0)
        self._since: tuple[int, tuple[int, int]] | None = None
        self._waits_for: object = None
        self._is_known = self._is_doubted = self._is_lost = self._is_watching = False

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
                self._rests, self._waits_for = 0, None
                self._run()

    def leave(self) -> None:
        """The thread has worked."""
        if self._depth and threading.get_ident() == self._thread:
            self._depth -= 1
            if not self._depth:
                self._stop()

    def rest_begin(self) -> None:
        """Something else than work begins on a thread."""
        if self._depth and threading.get_ident() == self._thread:
            self._rests += 1
            self._stop()

    def rest_end(self) -> None:
        """It has ended."""
        if self._rests and self._depth and threading.get_ident() == self._thread:
            self._rests -= 1
            self._run()

    def wait_begin(self, operation: object) -> None:
        """A thread begins to wait for a communication."""
        if self._depth and self._waits_for is None and threading.get_ident() == self._thread:
            self._waits_for = operation
            self._stop()

    def wait_end(self, operation: object) -> None:
        """The wait is over, if there is one for this operation: one inside of it ends no other."""
        if self._waits_for is operation and self._depth and threading.get_ident() == self._thread:
            self._waits_for = None
            self._run()

    def doubt(self) -> None:
        """Work begins whose end nobody tells: inside of other work it is counted, else the step is not known."""
        if not self._depth and threading.get_ident() == self._thread:
            self._is_doubted = True

    def doubt_rest(self) -> None:
        """Something else than work begins whose end nobody tells: inside of work, the step is not known."""
        if self._depth and threading.get_ident() == self._thread:
            self._is_doubted = True

    def take(self) -> int | None:
        """Nanoseconds worked since the last call; None if no work was seen to end, or if they cannot be trusted.

        What other threads ran is read once a step, and with each reading only from the first step on in which it was
        too much: it may all lie outside of work.
        """
        before, self._taken = self._taken, _ran_ns()
        own, helped = self._in_work if self._is_watching else _between(before, self._taken)
        worked, is_known = self._worked_ns, self._is_known and not (self._is_doubted or self._is_lost)
        is_shared = self._is_known and helped > HELPED * own
        self._worked_ns, self._in_work = 0, (0, 0)
        self._is_known = self._is_doubted = False
        if is_shared and not self._is_watching:
            self._is_watching, self._is_doubted = True, self._since is not None  # begun without that reading
        return worked if is_known and not is_shared else None

    def stop(self) -> None:
        """Forget what is under way: nothing is counted until work begins anew."""
        self._depth, self._since = 0, None

    def close(self) -> None:
        """Let go of the file."""
        self.stop()
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):
            os.close(file)

    def _run(self) -> None:
        if self._depth and not self._rests and self._waits_for is None:
            self._since = self._now()

    def _stop(self) -> None:
        since, self._since = self._since, None
        if since is not None:
            now = self._now()
            self._worked_ns += now[0] - since[0]
            if self._is_watching:
                (own, helped), (more, more_helped) = self._in_work, _between(since[1], now[1])
                self._in_work = own + more, helped + more_helped
            self._is_known = True

    def _now(self) -> tuple[int, tuple[int, int]]:
        """A clock that stands still while no core is free; and what threads ran, where that is watched."""
        try:
            waited = int(os.pread(self._file, _BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):  # such as closed by another thread: training goes on
            self._is_lost = True
            return 0, (0, 0)
        return monotonic_ns() - waited, _ran_ns() if self._is_watching else (0, 0)


def _ran_ns() -> tuple[int, int]:
    """How long this thread, and how long the others of its process have had a core."""
    own = thread_time_ns()
    return own, process_time_ns() - own


def _between(before: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    return now[0] - before[0], now[1] - before[1]


class Rest:
    """Holds a clock of work inside of segments that are no work: stands where a `WorkClock` does."""

    __slots__ = ("doubt", "enter", "leave")

    def __init__(self, clock: WorkClock) -> None:
        self.enter, self.leave, self.doubt = clock.rest_begin, clock.rest_end, clock.doubt_rest
