"""Telling somebody of an alarm: a command that gets it on stdin, or an HTTP POST."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

TIMEOUT_S = 10.0
RETRIES = 3
RETRY_AFTER_S = 1.0

_CLIENT_ERROR, _SERVER_ERROR = 400, 500


def call_command(command: str, content: str, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Run a shell command with ``content`` on stdin; None, or what went wrong. It and its children end in time."""
    try:
        child = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
            start_new_session=True,
            cwd="/",
            text=True,
        )
    except OSError as error:
        return f"the alarm command cannot be started ({error})"
    try:
        _, messages = child.communicate(content, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"the alarm command did not end within {timeout_s:g} s and was killed"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.returncode is None:
            child.wait()
        for stream in (child.stdin, child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    if child.returncode:
        last = (messages or "").strip().splitlines()[-1:]
        return f"the alarm command ended with {child.returncode}" + (f": {last[0][:200]}" if last else "")
    return None


def call_webhook(
    url: str, content: str, timeout_s: float = TIMEOUT_S, retry_after_s: float = RETRY_AFTER_S
) -> str | None:
    """POST ``content`` as JSON; None, or what went wrong. What a server may cure is tried again, twice."""
    headers = {"Content-Type": "application/json", "User-Agent": "megascope"}
    problem = None
    for attempt in range(RETRIES):
        if attempt:
            time.sleep(retry_after_s * 2 ** (attempt - 1))
        try:
            request = urllib.request.Request(url, content.encode(), headers, method="POST")
            with urllib.request.urlopen(request, timeout=timeout_s):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"the webhook answered {error.code}"
            if _CLIENT_ERROR <= error.code < _SERVER_ERROR:
                return problem
        except (OSError, http.client.HTTPException, ValueError) as error:  # its text may hold the address: a secret
            problem = f"the webhook cannot be reached ({type(error).__name__})"
    return problem
