"""Runs the real command line in processes of its own, and cleans up whatever they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

MEGASCOPE = [sys.executable, "-P", "-m", "megascope"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a command whose spool lies in ``folder``, marked so that its processes can be found."""
    spool = folder / "spool"
    return {**os.environ, "MEGASCOPE_SPOOL": str(spool), "OMP_NUM_THREADS": "1", "MEGASCOPE_TEST": str(folder), **more}


@contextmanager
def started(folder: Path, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A running ``megascope`` command; whatever is left of it, its ranks and its agent is killed at the end."""
    child = subprocess.Popen(
        [*MEGASCOPE, *arguments],
        env=environment(folder, **more),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        child.kill()
        for process in relatives(folder):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        child.communicate(timeout=20)


def finished(folder: Path, *arguments: str, timeout_s: float = 240, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with started(folder, *arguments, **more) as child:
        out, _ = child.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(child.args, child.returncode, out, "")


def relatives(folder: Path) -> list[psutil.Process]:
    """Processes alive that a command in ``folder`` started, in whatever session."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("MEGASCOPE_TEST") == str(folder) and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The condition's first true value; AssertionError after the time given."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come within {timeout_s} s")


def interrupt(child: subprocess.Popen[str]) -> None:
    """Ctrl-C: SIGINT to the whole foreground group of the command."""
    os.killpg(child.pid, signal.SIGINT)
