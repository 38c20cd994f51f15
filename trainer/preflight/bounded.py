"""Processes that are bounded in time: the work of a check in a fork of its own, which is killed at the limit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..children import die_with
from .measurements import Status

Note = Callable[[str], None]

REAP_S = 2.0
"""A killed process that the kernel cannot end (it waits for a disk or a driver) is left after so long."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a bounded piece of work ended. ``notes``: what it said on its way; ``seconds``: how long it took."""

    status: Status
    value: Any
    message: str
    notes: tuple[str, ...]
    seconds: float


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child that dies with this process; its process id. The child's exit code is 0 or 1."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside threads: those of this process hold no lock that the child takes.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
        code = 0
    finally:
        os._exit(code)


def run_bounded(work: Callable[[Note], Any], timeout_s: float) -> Ended:
    """Run ``work`` in a child for at most ``timeout_s`` seconds; its value has to be what JSON can hold.

    The child's own output is dropped: libraries print there what nobody asked for.
    """
    reading, writing = os.pipe()
    began = time.monotonic()
    pid = fork(lambda: _in_child(work, reading, writing))
    os.close(writing)
    try:
        text, in_time = _read(reading, began + timeout_s)
    finally:
        os.close(reading)
        if not end(pid, wait_s=0.2):
            end(pid, kill=True)
    seconds = time.monotonic() - began
    lines = [json.loads(line) for line in text.decode(errors="replace").splitlines(keepends=True) if line[-1] == "\n"]
    notes = tuple(str(line["note"]) for line in lines if "note" in line)
    for line in lines:
        if "value" in line:
            return Ended(Status.OK, line["value"], "", notes, seconds)
        if "error" in line:
            return Ended(Status.FAILED, None, str(line["error"]), notes, seconds)
    if in_time:
        return Ended(Status.FAILED, None, "the process of the check died", notes, seconds)
    last = f" after: {notes[-1]}" if notes else ""
    return Ended(Status.HUNG, None, f"not done in {timeout_s:g} s{last}", notes, seconds)


def _in_child(work: Callable[[Note], Any], reading: int, writing: int) -> None:
    os.close(reading)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def say(**line: Any) -> None:
        os.write(writing, (json.dumps(line) + "\n").encode())

    try:
        say(value=work(lambda note: say(note=note)))
    except BaseException as error:
        text = " ".join(str(error).split())
        say(error=f"{type(error).__name__}: {text[:400]}")


def _read(source: int, deadline: float) -> tuple[bytes, bool]:
    """All that comes until the other end is closed (True) or the deadline has passed (False)."""
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([source], [], [], left)
        if ready:
            part = os.read(source, 1 << 16)
            if not part:
                return text, True
            text += part
    return text, False


def end(pid: int, *, kill: bool = False, wait_s: float = REAP_S) -> bool:
    """Wait for a child, after killing it if asked to; whether it is gone."""
    if kill:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return True
        if done:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
