"""Forked ranks: started from one process that has imported everything, watched, and ended; none is left over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

from ..profiler.exits import ExitNotes, exit_words

GRACE_S = 5.0

_PR_SET_PDEATHSIG = 1


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


class Children:
    """The forked ranks of one launch; how they ended is noted in ``notes``."""

    def __init__(self, notes: ExitNotes | None = None) -> None:
        self._rank_of: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        self._notes = notes or ExitNotes()
        self._noted: dict[int, int] = {}
        self._signalled: int | None = None

    def note_in(self, notes: ExitNotes) -> None:
        """Where the ends of ranks are noted from now on."""
        self._notes = notes

    def fork(self, rank: int, work: Callable[[], int]) -> None:
        """Fork a child that runs ``work`` and exits with its result, and that dies with this process."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads: those of the parent hold no lock that a child takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid != 0:
            self._rank_of[pid] = rank
            return
        code = 1
        try:
            die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a terminal's Ctrl-C reaches all
            signal.signal(signal.SIGTERM, _interrupt)
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def __len__(self) -> int:
        """Those that have not ended, and those of whose end `reap` has not told."""
        return len(self._rank_of) + len(self._ended)

    @property
    def pids(self) -> dict[int, int]:
        """Rank to process id, of those that are not known to have ended."""
        return {rank: pid for pid, rank in self._rank_of.items()}

    def send(self, number: int) -> None:
        """Send a signal that ends them to all that are left. Who ended before it is noted not to have been asked."""
        self._take_ended()
        for pid, rank in self._rank_of.items():
            if self._noted.get(pid) != number:  # one that stays in the kernel is told again and again
                self._notes.asked(rank, pid, number)
                self._noted[pid] = number
            os.kill(pid, number)  # a child that has ended is not reaped yet: its id is nobody else's

    @contextlib.contextmanager
    def ended_on_signals(self) -> Iterator[None]:
        """Within, SIGINT and SIGTERM end the children; whatever happens, none is left over."""
        before = {number: signal.signal(number, self._note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._signalled = number

    def wait(self) -> int:
        """Wait until all have ended well (0), or one has not, or a signal came."""
        while self._rank_of:
            if self._signalled is not None:
                return 128 + self._signalled
            ended = self.reap()
            if not ended:
                time.sleep(0.05)
            # Who was killed comes first: the others that ended in the same moment may only have lost a peer.
            for rank, code in sorted(ended, key=lambda end: end[1]):
                if code != 0:
                    sys.stderr.write(f"rank {rank} {exit_words(code)}: all ranks are ended\n")
                    return 128 - code if code < 0 else code
        return 0

    def reap(self) -> list[tuple[int, int]]:
        """(rank, exit code, negative for a signal) of children that have ended, without waiting."""
        self._take_ended()
        ended, self._ended = self._ended, []
        return ended

    def _take_ended(self) -> None:
        for pid in list(self._rank_of):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                rank, code = self._rank_of.pop(pid), os.waitstatus_to_exitcode(status)
                self._noted.pop(pid, None)
                self._ended.append((rank, code))
                self._notes.ended(rank, pid, code)

    def kill(self, patience_s: float = 1.0) -> None:
        """Kill all that are left, and take over that they ended; one that stays in the kernel is reaped later."""
        self.send(signal.SIGKILL)
        deadline = time.monotonic() + patience_s
        while self._rank_of and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.005)

    def end(self) -> None:
        """End all that are left: SIGTERM, and SIGKILL after a grace."""
        for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 60.0)):
            self.send(number)
            deadline = time.monotonic() + patience_s
            while self._rank_of and time.monotonic() < deadline:
                self.reap()
                time.sleep(0.02)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
