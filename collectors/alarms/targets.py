"""Telling somebody of an alarm: a command that gets it on stdin, or an HTTP POST."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import IO

TIMEOUT_S = 10.0

AFTER_KILL_S = 2.0
"""A child that is not gone so long after SIGKILL hangs in the kernel, and nobody waits for it."""

KEPT_BYTES = 4096


class _Tail(threading.Thread):
    """Reads a stream to its end and keeps the last of it: a command may write without end."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(name="megascope-alarm-errors", daemon=True)
        self._stream, self.last = stream, b""

    def run(self) -> None:
        """Read until the stream ends, or is closed."""
        with contextlib.suppress(OSError, ValueError), self._stream:
            while piece := os.read(self._stream.fileno(), KEPT_BYTES):
                self.last = (self.last + piece)[-KEPT_BYTES:]


def call_command(command: str, content: str, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Run a shell command with ``content`` on stdin; None, or what went wrong. It and its children end in time."""
    try:
        with tempfile.TemporaryFile() as given:
            given.write(content.encode())
            given.seek(0)
            child = subprocess.Popen(
                command,
                shell=True,
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **variables},
                start_new_session=True,
                cwd="/",
            )
    except OSError as error:
        return f"the alarm command cannot be started ({error})"
    assert child.stderr is not None
    tail = _Tail(child.stderr)
    tail.start()
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"the alarm command did not end within {timeout_s:g} s and was killed"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(AFTER_KILL_S)
        tail.join(AFTER_KILL_S)
    if child.returncode:
        last = tail.last.decode(errors="replace").strip().splitlines()[-1:]
        return f"the alarm command ended with {child.returncode}" + (f": {last[0][:200]}" if last else "")
    return None


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a POST would become a GET without its content."""

    def redirect_request(self, *given: object, **named: object) -> None:
        """None: the answer counts as an error."""


def call_webhook(url: str, content: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """POST ``content`` as JSON, once; None, or what went wrong. The text never has the address: it may be a secret."""
    headers = {"Content-Type": "application/json", "User-Agent": "megascope"}
    try:
        request = urllib.request.Request(url, content.encode(), headers, method="POST")
        with urllib.request.build_opener(_Stay).open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"the webhook answered {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"the webhook cannot be reached ({type(error).__name__})"
