"""The host's agent as a process of its own: started so that it outlives the rank, and started again if it dies."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from .null import NullRecorder
from .recorder import Recorder

log = logging.getLogger(__name__)

CHECK_INTERVAL_NS = 1_000_000_000
RESTART_INTERVAL_NS = 10_000_000_000
"""So long a start is given before the next: one that cannot work is not started over and over."""

IDLE_EXIT_S = 30.0
LAST_IDLE_EXIT_S = 1.0
"""The patience of an agent that is started only to write what a dead one left."""


class HostAgent:
    """``megascope collect`` for this host; a second one on the same spool ends by itself.

    It gets a session of its own: Ctrl-C in the terminal ends the ranks first, and the agent drains what they left.
    Its messages go to ``agent.log`` in the spool.
    """

    def __init__(self, spool: Path, store: Path, *, idle_exit_s: float = IDLE_EXIT_S) -> None:
        self._spool, self._store, self._idle_exit_s = spool, store, idle_exit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._next_check_ns = 0
        self._next_start_ns = 0

    def start(self) -> None:
        """Start it; where that fails, warn: what is recorded stays in the spool."""
        self._start(self._idle_exit_s)

    def _start(self, idle_exit_s: float) -> None:
        # -P: what lies in the job's working folder must not be imported in place of a library.
        command = [sys.executable, "-P", "-m", "megascope", "collect", str(self._spool), "--store", str(self._store)]
        self._next_start_ns = time.monotonic_ns() + RESTART_INTERVAL_NS
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
            with (self._spool / "agent.log").open("ab") as messages:
                self._process = subprocess.Popen(
                    [*command, "--idle-exit", str(idle_exit_s)],
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,
                    cwd="/",
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
        except OSError as error:
            log.warning("The agent cannot be started (%s): nothing is written to %s.", error, self._store)

    def ensure(self) -> None:
        """Start it again if it has ended: looks every second, and starts it every 10 s at most."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + CHECK_INTERVAL_NS
        if (self._process is None or self._process.poll() is not None) and now_ns >= self._next_start_ns:
            self.start()

    def revive(self) -> bool:
        """Start one that writes what a dead one left, and ends; False where none had died."""
        if self._process is None or self._process.poll() in (None, 0):
            return False
        self._start(LAST_IDLE_EXIT_S)
        return True

    def end(self, patience_s: float = 60.0) -> bool:
        """Let it write what is left and end; False if it still writes after the time given."""
        if self._process is None:
            return True
        deadline = time.monotonic() + patience_s
        if not self.revive():
            self._process.terminate()
        try:
            self._process.wait(patience_s)
            if self.revive():  # the signal came before it could listen
                self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def leave(self) -> None:
        """Let it go on by itself: it ends once everything is written."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # or the interpreter warns at its exit of a child that still runs
        self._process = None


def serve_fallback(recorder: Recorder | NullRecorder, spool: Path, store: Path) -> HostAgent | None:
    """Start an agent for the spool that a recorder had to fall back to; None where it is in its own, or is off."""
    if not isinstance(recorder, Recorder) or recorder.spool is None or recorder.spool == spool:
        return None
    agent = HostAgent(recorder.spool, store)
    agent.start()
    return agent
