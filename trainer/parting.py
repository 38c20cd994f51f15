"""Hanging up: this rank's connections to its peers are closed, so that those that wait for it learn it at once."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

_SOCKETS = Path("/proc/self/fd")


def hang_up() -> int:
    """Close this process's TCP connections for writing, but for those of the rendezvous store; how many.

    Torch has no way to end a gloo group while its process lives (2.13's ``abort`` closes nothing): its peers would
    wait until their time is up. What was sent before still arrives. Does nothing where there is no /proc.
    """
    kept_ports, closed = _ports_of_store(), 0
    for number in _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                continue
            if kept_ports.isdisjoint({one.getsockname()[1], one.getpeername()[1]}):
                one.shutdown(socket.SHUT_WR)
                closed += 1
    return closed


def _ports_of_store() -> set[int]:
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return {store.port} if hasattr(store, "port") else set()


def _sockets() -> Iterator[int]:
    for entry in _SOCKETS.iterdir() if _SOCKETS.is_dir() else ():
        with contextlib.suppress(OSError):  # the folder's own, which is closed again
            if str(entry.readlink()).startswith("socket:"):
                yield int(entry.name)
