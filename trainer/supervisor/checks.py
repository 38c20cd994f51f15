"""A self-check of one host: any command. A verdict in its output counts, else its exit code: 0 sound, 1 not.

`megascope preflight --json` gives a verdict.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..children import die_with

FAILED = 1
"""Any other code than 0 and this one says nothing about the host: the check itself did not work."""

REPORT_BYTES = 4000
MOST_BYTES = 2**20
VERDICTS = {"healthy": True, "findings": False}
"""Any other verdict says nothing about the host."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``passed`` is None where the check could not be made; ``report``: the end of what it printed, or the problem."""

    passed: bool | None
    report: str


class Check:
    """A check that runs beside its caller, who looks for the result with `poll`. ``{python}`` is this interpreter.

    It is killed when its caller dies, who has no threads.
    """

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._deadline, self._timeout_s = time.monotonic() + timeout_s, timeout_s
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._child: subprocess.Popen[bytes] | None = None
        self._problem, parent = "", os.getpid()
        try:
            self._child = subprocess.Popen(
                [sys.executable if part == "{python}" else part for part in command],
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with(parent),  # noqa: PLW1509
            )
        except OSError as error:
            self._problem = f"the self-check cannot be started ({error})"

    def poll(self) -> CheckResult | None:
        """The result, once; None while there is none. A check that takes too long says nothing, and is killed."""
        if self._child is None:
            self._out.close()
            return CheckResult(None, self._problem)
        code = self._child.poll()
        if code is None and time.monotonic() < self._deadline:
            return None
        if code is None:
            self.close()
            return CheckResult(None, f"the self-check did not end within {self._timeout_s:g} s")
        size = self._out.seek(0, os.SEEK_END)
        self._out.seek(max(0, size - MOST_BYTES))
        report = self._out.read().decode(errors="replace").strip()
        self._out.close()
        verdict = _verdict_in(report) if code == 0 else None
        report = report[-REPORT_BYTES:]
        if verdict is not None:
            return CheckResult(VERDICTS.get(verdict), report)
        if code in (0, FAILED):
            has_broken_down = code == FAILED and "Traceback (most recent call last)" in report
            return CheckResult(None if has_broken_down else code == 0, report)
        return CheckResult(None, f"the self-check ended with code {code}: {report[-300:]}")

    def close(self) -> None:
        """Kill it and all that it started."""
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._out.close()


def _verdict_in(output: str) -> str | None:
    """The verdict of the last line that is a JSON object; None without one."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                verdict = value.get("verdict")
                return None if verdict is None else str(verdict)
    return None
