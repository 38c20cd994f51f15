"""Asking the analysers: `megascope hang` and `megascope stragglers` as child processes, their answers as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict's object, or why there is none."""

    verdict: Mapping[str, Any] | None
    problem: str | None
    took_s: float


class Question:
    """One child that runs ``megascope VERB STORE --json ...``; its caller looks for the answer with `poll`."""

    def __init__(
        self, verb: str, store: Path, run: str, attempt: int, *more: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._began, self._timeout_s = time.monotonic(), timeout_s
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-P", "-m", "megascope", verb, str(store.absolute())]
        command += ["--run", run, "--attempt", str(attempt), "--json", *more]
        self._child: subprocess.Popen[bytes] | None = None
        self._problem: str | None = None
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "OMP_NUM_THREADS": "1", "MEGASCOPE_OFF": "1"},
            )
        except OSError as error:
            self._problem = f"{verb} cannot be asked ({error})"

    def poll(self) -> Answer | None:
        """The answer; None while there is none. A child that takes too long is killed."""
        took_s = time.monotonic() - self._began
        if self._child is None:
            return Answer(None, self._problem, took_s)
        code = self._child.poll()
        if code is None and took_s < self._timeout_s:
            return None
        if code is None:
            self.close()
            return Answer(None, f"no verdict came within {self._timeout_s:g} s", took_s)
        answer = _read(code, _content(self._out), _content(self._err), took_s)
        self.close()
        return answer

    def close(self) -> None:
        """Kill what runs."""
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._out.close()
        self._err.close()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _read(code: int, out: str, err: str, took_s: float) -> Answer:
    try:
        verdict = json.loads(out) if code == 0 else None
    except ValueError:
        verdict = None
    if isinstance(verdict, dict) and "verdict" in verdict:
        return Answer(verdict, None, took_s)
    last: Sequence[str] = err.strip().splitlines()[-1:] or [f"it ended with {code} and said nothing"]
    return Answer(None, f"no verdict: {last[0][:300]}", took_s)
