"""What befalls a rank in its work: it stops, freezes, holds the interpreter, raises, has no memory left, is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable

import psutil
import torch

from .kinds import FaultKind

LAUNCHERS = ("MEGASCOPE_PORT", "TORCHELASTIC_RUN_ID", "MEGASCOPE_NODE")
"""Set by our launcher, by torchrun and by the agent of a supervised host for the ranks that they start: then the parent
is the launcher of this host."""


HEADROOM_BYTES = 256 * 2**20
"""What a process that runs out of memory may still allocate."""


class InjectedError(RuntimeError):
    """Raised by the fault ``raise``."""


def act(kind: FaultKind, text: str) -> None:
    """Let a fault of one of the kinds in `kinds.ACTS` happen in this process; ``text`` names it."""
    if kind is FaultKind.RAISE:
        raise InjectedError(f"the fault {text!r} was put in on purpose")
    _ACTS[kind]()


def _stop() -> None:
    while True:
        time.sleep(3600)


def _freeze() -> None:
    """Stop the process as a debugger does, or a container that is paused; a SIGCONT lets it go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _hold_gil() -> None:
    """Sleep in C without giving the interpreter's lock free: no thread of the process runs any Python."""
    while True:
        ctypes.PyDLL(None).sleep(3600)


def _use_up_memory() -> None:
    """Allocate tensors until the allocator fails: the process may have little more than it has now (Linux)."""
    limit = psutil.Process().memory_info().vms + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    held: list[torch.Tensor] = []
    try:
        while True:
            held.append(torch.ones(2**20))
    finally:
        held.clear()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_host() -> None:
    """Kill all that the launcher of this host has started, with the agent, then the launcher, and this process."""
    me = os.getpid()
    if any(name in os.environ for name in LAUNCHERS):  # else the parent is somebody's shell
        launcher = psutil.Process(os.getppid())
        for process in [*launcher.children(recursive=True), launcher]:
            if process.pid != me:
                _kill_quietly(process)
    os.kill(me, signal.SIGKILL)


def _kill_quietly(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):  # a sibling was quicker
        process.kill()


_ACTS: dict[FaultKind, Callable[[], None]] = {
    FaultKind.STOP: _stop,
    FaultKind.FREEZE: _freeze,
    FaultKind.HOLD_GIL: _hold_gil,
    FaultKind.OUT_OF_MEMORY: _use_up_memory,
    FaultKind.KILL: _kill,
    FaultKind.KILL_HOST: _kill_host,
}
