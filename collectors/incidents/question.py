"""Asking an analyser: `megascope hang` or `megascope stragglers` as a child process, its verdict as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 120.0
"""12,288 ranks take a few seconds; a store on a slow file system more."""

AFTER_KILL_S = 2.0
_MOST_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict's object and its text, or why there is none."""

    verdict: Mapping[str, Any] | None
    problem: str | None
    took_s: float
    text: str | None = None


class Question:
    """One child that runs ``megascope VERB STORE --json ...``; its caller looks for the answer with `poll`.

    ``niceness``: it gets this one where the caller's own is less. ``problem``: why it could not be started. One that
    ``waits`` imports what it needs, and reads nothing of the store before `ask`.
    """

    def __init__(
        self,
        verb: str,
        store: Path,
        run: str,
        attempt: int,
        *more: str,
        timeout_s: float = TIMEOUT_S,
        niceness: int = 0,
        waits: bool = False,
    ) -> None:
        self._verb, self._timeout_s, self._began, self._waits = verb, timeout_s, time.monotonic(), waits
        module = "megascope.ready" if waits else "megascope"
        command = [sys.executable, "-P", "-m", module, verb, str(store.absolute())]  # it runs in another folder
        command += ["--run", run, "--attempt", str(attempt), "--json", *more]
        self.problem: str | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._err: IO[bytes] | None = None
        try:
            self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "OMP_NUM_THREADS": "1", "MEGASCOPE_OFF": "1"},
            )
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._child.pid, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
        except OSError as error:
            self.problem = f"{verb} cannot be asked ({error})"
            self.close()

    def ask(self) -> None:
        """Let one that waits begin. One that has ended meanwhile tells why with the next `poll`."""
        self._waits, self._began = False, time.monotonic()
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError), self._child.stdin as line:
                line.write(b"\n")

    def poll(self) -> Answer | None:
        """The answer, once; None while there is none. A child that takes too long is killed."""
        if self._waits and self._child is not None:
            return None
        took_s = time.monotonic() - self._began
        if self._child is None:
            return Answer(None, self.problem, took_s)
        code = self._child.poll()
        if code is None and took_s < self._timeout_s:
            return None
        if code is None:
            self.close()
            return Answer(None, f"{self._verb} gave no verdict within {self._timeout_s:g} s", took_s)
        answer = read_answer(self._verb, code, _content(self._out), _content(self._err), took_s)
        self.close()
        return answer

    def close(self) -> None:
        """Kill what runs."""
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel: nobody waits for it
                self._child.wait(AFTER_KILL_S)
        line = None if self._child is None else self._child.stdin
        for file in (self._out, self._err, line):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


def _content(file: IO[bytes] | None) -> str:
    if file is None:
        return ""
    file.seek(0)
    return file.read(_MOST_BYTES).decode(errors="replace")


def read_answer(verb: str, code: int, out: str, err: str, took_s: float) -> Answer:
    """What a child that has ended with ``code`` said: a verdict, or a problem in one sentence."""
    try:
        verdict = json.loads(out) if code == 0 else None
    except ValueError:
        verdict = None
    if isinstance(verdict, dict) and "verdict" in verdict:
        return Answer(verdict, None, took_s, out.strip())
    last = err.strip().splitlines()[-1:] or [f"it ended with {code} and said nothing"]
    return Answer(None, f"{verb} gave no verdict: {last[0][:300]}", took_s)
