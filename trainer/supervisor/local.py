"""Hosts that are simulated on one machine: a node agent each, with a host name and a spool of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ...profiler.host import HOST_VARIABLE
from ...profiler.opening import SPOOL_VARIABLE
from .wire import TOKEN_VARIABLE

END_S = 30.0

LEFT_S = 120.0
"""A collector that lost its ranks ends well before."""

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "megascope-hosts-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-(\d+)-\w+")


def names(count: int) -> list[str]:
    """Names of simulated hosts."""
    return [f"node-{number}" for number in range(count)]


def environment_of(name: str, spools: Path) -> dict[str, str]:
    """What makes a process one of a simulated host."""
    return {HOST_VARIABLE: name, SPOOL_VARIABLE: str(spools / name), "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def spool_folder() -> Iterator[Path]:
    """A folder for the spools of simulated hosts, in memory where there is some; removed at the end.

    What one that was killed has left there is removed first.
    """
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    remove_left(parent)
    me = psutil.Process()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{me.pid}-{me.create_time():.0f}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left(parent: Path) -> None:
    """Remove folders of this user whose process is gone, once their collectors have had time to write what was left."""
    for folder in parent.glob(f"{_PREFIX}*"):
        name = _NAME.fullmatch(folder.name)
        with contextlib.suppress(OSError):
            is_own = name is not None and folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
            if name is not None and is_own and not _runs(int(name[1]), int(name[2])) and _age_s(folder) > LEFT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int, began_s: int) -> bool:
    """Whether this process runs; another one that has got its number began at another moment."""
    try:
        return abs(psutil.Process(pid).create_time() - began_s) < 10
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _age_s(folder: Path) -> float:
    """Seconds since anything in it was last changed."""
    return time.time() - max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


@contextlib.contextmanager
def local_nodes(count: int, port: int, token: str, slots: int, log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """``count`` node agents on this machine, as processes of their own; none is left over at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with spool_folder() as spools, contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(end_all, processes)
        for name in names(count):
            command = [sys.executable, "-P", "-m", "megascope", "node", f"127.0.0.1:{port}", "--nproc", str(slots)]
            with log.open("ab") as messages:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=messages,
                        stderr=messages,
                        start_new_session=True,
                        env={**os.environ, **environment_of(name, spools), TOKEN_VARIABLE: token},
                    )
                )
        yield processes


def end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for node agents that were told to end, and kill the groups of those that do not."""
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
