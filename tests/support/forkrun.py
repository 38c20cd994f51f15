"""Runs a function on N gloo ranks forked from this process, which has imported torch once for all of them."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """How a rank ended: its value, or the traceback of its error; ``code`` is negative for a signal."""

    rank: int
    code: int
    value: T | None = None
    error: str | None = None


def run_ranks(
    nproc: int, work: Callable[[], T], *, timeout_s: float = 60, environment: Mapping[str, str] | None = None
) -> list[T]:
    """The values that ``work`` returns on ranks 0 to nproc - 1, each in an initialised gloo world.

    AssertionError, with the first traceback, where a rank fails or is not done in time. No child is left over.
    """
    outcomes = fork_ranks(nproc, work, timeout_s=timeout_s, environment=environment)
    for outcome in outcomes:
        if outcome.error is not None:
            raise AssertionError(f"rank {outcome.rank}:\n{outcome.error}")
    bad = [(outcome.rank, outcome.code) for outcome in outcomes if outcome.code != 0]
    if bad:
        raise AssertionError(f"(rank, exit code) of ranks that ended badly: {bad}")
    return [outcome.value for outcome in outcomes]  # type: ignore[misc]


def fork_ranks(
    nproc: int,
    work: Callable[[], T],
    *,
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
    settle_s: float | None = None,
    until: Callable[[], bool] | None = None,
) -> list[Outcome[T]]:
    """How every rank ended.

    When one has failed, or ``until`` holds, the rest get ``settle_s`` (None: the whole time) before they are killed.
    """
    _preload()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        results = Path(folder)
        gc.freeze()  # what is there already is looked at, and copied, by no child's collections
        try:
            pids = {
                _fork(rank, nproc, work, server, results, timeout_s, environment or {}): rank for rank in range(nproc)
            }
        finally:
            gc.unfreeze()
        server.close()
        codes = _reap(pids, timeout_s, settle_s, until or (lambda: False))
        return [_outcome(rank, codes[rank], results / f"{rank}.pickle") for rank in range(nproc)]


def _preload() -> None:
    import torch
    import torch.distributed.device_mesh
    import torch.fx.experimental.symbolic_shapes  # a second of sympy, once instead of per rank

    torch.set_num_threads(1)


def _fork(
    rank: int,
    nproc: int,
    work: Callable[[], Any],
    server: socket.socket,
    results: Path,
    timeout_s: float,
    environment: Mapping[str, str],
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking beside threads
        pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.alarm(0)
        faulthandler.dump_traceback_later(timeout_s, exit=True)
        port = server.getsockname()[1]
        os.environ.update(environment)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(nproc), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
        result: tuple[int, Any, str | None]
        try:
            result = 0, _in_world(rank, nproc, work, server, port, timeout_s), None
        except BaseException:
            result = 1, None, traceback.format_exc()
        (results / f"{rank}.tmp").write_bytes(pickle.dumps(result))
        (results / f"{rank}.tmp").rename(results / f"{rank}.pickle")
        code = result[0]
    finally:
        os._exit(code)


def _in_world(rank: int, nproc: int, work: Callable[[], T], server: socket.socket, port: int, timeout_s: float) -> T:
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    timeout = timedelta(seconds=timeout_s)
    listening = server.detach() if rank == 0 else None
    if rank != 0:
        server.close()
    store = TCPStore("127.0.0.1", port, nproc, rank == 0, timeout, master_listen_fd=listening)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=nproc, timeout=timeout)
    value = work()
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


def _reap(
    pids: Mapping[int, int], timeout_s: float, settle_s: float | None, until: Callable[[], bool]
) -> dict[int, int]:
    left, codes = dict(pids), {}
    deadline = time.monotonic() + timeout_s + 2
    is_settling = False
    while left:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[left.pop(pid)] = os.waitstatus_to_exitcode(status)
        if not is_settling and settle_s is not None and (any(codes.values()) or until()):
            is_settling = True
            deadline = min(deadline, time.monotonic() + settle_s)
        if left and time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.01)
    return codes


def _outcome(rank: int, code: int, path: Path) -> Outcome[Any]:
    if not path.exists():
        return Outcome(rank, code)
    _, value, error = pickle.loads(path.read_bytes())
    return Outcome(rank, code, value, error)
