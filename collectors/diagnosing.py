"""Asking `megascope hang` for the verdict on a job that stands still: one child at a time, one host of the fleet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .manifest import quote_name
from .shared_claim import SharedClaim

TIMEOUT_S = 120.0
"""12,288 ranks take a few seconds; a store on a slow file system more."""

FOLDER = "_diagnoses"
"""Folder of the store with the claims."""

_MOST_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """What came of one child: the verdict's object and its text, or a problem in one sentence."""

    verdict: dict[str, Any] | None
    text: str | None
    problem: str | None
    took_s: float


def diagnosis_claim(store: Path, run: str, attempt: int, holder: str) -> SharedClaim:
    """The right to diagnose an attempt, of one host of the fleet; its holder renews it while the stall lasts."""
    return SharedClaim(store / FOLDER / f"run={quote_name(run)}" / f"attempt={attempt}", "diagnosis", holder)


AFTER_KILL_S = 2.0


class Diagnoser:
    """Runs ``python -m megascope hang STORE --json`` beside its caller, who looks for the answer with `poll`."""

    def __init__(self, store: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._store, self._timeout_s = store.absolute(), timeout_s  # the child runs in another folder
        self._child: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._err: IO[bytes] | None = None
        self._began = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a child runs, or has an answer that nobody took."""
        return self._child is not None

    def start(self, run: str, attempt: int) -> str | None:
        """Begin; None, or what is in the way."""
        if self._child is not None:
            return "a diagnosis is under way already"
        command = [sys.executable, "-P", "-m", "megascope", "hang", str(self._store)]
        command += ["--run", run, "--attempt", str(attempt), "--json"]
        self._began = time.monotonic()
        try:
            self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "OMP_NUM_THREADS": "1", "MEGASCOPE_OFF": "1"},
            )
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._child.pid, 10)
        except OSError as error:
            self._drop()
            return f"the diagnosis cannot be started ({error})"
        return None

    def poll(self) -> Diagnosed | None:
        """The answer, once; None while there is none. A child that takes too long is killed."""
        if self._child is None:
            return None
        took_s = time.monotonic() - self._began
        if self._child.poll() is None:
            if took_s < self._timeout_s:
                return None
            self._drop()
            return Diagnosed(None, None, f"the diagnosis did not end within {self._timeout_s:g} s", took_s)
        code, out, err = self._child.returncode, _content(self._out), _content(self._err)
        self._drop()
        return _read(code, out, err, took_s)

    def close(self) -> None:
        """Kill what runs."""
        self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            if self._child.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel: nobody waits for it
                self._child.wait(AFTER_KILL_S)
        for file in (self._out, self._err):
            if file is not None:
                file.close()
        self._child = self._out = self._err = None


def _content(file: IO[bytes] | None) -> str:
    if file is None:
        return ""
    file.seek(0)
    return file.read(_MOST_BYTES).decode(errors="replace")


def _read(code: int, out: str, err: str, took_s: float) -> Diagnosed:
    try:
        verdict = json.loads(out) if code == 0 else None
    except ValueError:
        verdict = None
    if isinstance(verdict, dict) and "verdict" in verdict:
        return Diagnosed(verdict, out.strip(), None, took_s)
    last = err.strip().splitlines()[-1:] or [f"it ended with {code} and said nothing"]
    return Diagnosed(None, None, f"the diagnosis failed: {last[0][:300]}", took_s)
