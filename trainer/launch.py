"""Starts all ranks of one host: imports once, forks a child per rank, and ends all of them when one fails."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from ..profiler.errors import MegascopeError
from ..profiler.identity import ATTEMPT_VARIABLE, RUN_VARIABLE, mint_run, next_attempt_in
from ..profiler.opening import default_spool
from .config import RecordConfig, TrainConfig
from .inputs import check_inputs
from .worker import place_from_environment, run_worker

log = logging.getLogger(__name__)

GRACE_S = 5.0
PRELOADED = ("torch.fx.experimental.symbolic_shapes", "torch.distributed.device_mesh", "torch.nn.functional")
"""What a first step imports lazily; a backward with a gradient alone costs 1.1 s of sympy, once instead of per rank."""

_PR_SET_PDEATHSIG = 1


def train(
    config: TrainConfig,
    nproc: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    name: str = "train",
) -> int:
    """Train as the rank that the environment names, or else start ``nproc`` ranks (None: as many as the layout has).

    ``name`` is the beginning of the run's name where nobody has given it one, such as the stem of the configuration's
    file. Returns the exit code. Raises what `launch` raises.
    """
    place = place_from_environment(os.environ)
    if place is None:
        count = config.topology().world_size if nproc is None else nproc
        return launch(config, count, environment=environment or {}, name=name)
    config.validate(place.world_size)
    os.environ.update(environment or {})
    return _guarded(lambda: run_worker(config, progress=_say, name=name))


def launch(config: TrainConfig, nproc: int, *, environment: Mapping[str, str], name: str = "train") -> int:
    """Run ``nproc`` ranks on this host until all have ended.

    ``environment`` is added to theirs before they look for a device: CUDA_VISIBLE_DEVICES="" trains on the CPU.
    Returns 0, the exit code of the first rank that failed, or 130 after Ctrl-C; then all ranks are ended: SIGTERM, and
    SIGKILL after a grace of 5 seconds. Raises UsageError for a layout that the number of processes does not fit, and
    MegascopeError for a text or a checkpoint folder that cannot be used, before any rank is started.
    """
    config.validate(nproc)
    check_inputs(config)
    for module in PRELOADED:
        importlib.import_module(module)
    with socket.create_server(("127.0.0.1", 0), backlog=max(64, nproc)) as server:
        port = server.getsockname()[1]
        common = {**environment, "WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), "MEGASCOPE_PORT": str(port)}
        _name(config.record, common, name)
        if sys.platform == "linux":
            common.setdefault("GLOO_SOCKET_IFNAME", "lo")
        children = _Children()
        with children.ended_on_signals():
            for rank in range(nproc):
                children.fork(rank, lambda rank=rank: _child(config, rank, common, server))  # type: ignore[misc]
            server.close()
            return children.wait()


def _name(record: RecordConfig, environment: dict[str, str], prefix: str) -> None:
    """Add run and attempt to the ranks' environment, where neither they nor the configuration have them."""
    run = record.run or environment.get(RUN_VARIABLE) or os.environ.get(RUN_VARIABLE) or mint_run(prefix)
    environment[RUN_VARIABLE] = run
    if record.attempt is None and ATTEMPT_VARIABLE not in {**os.environ, **environment}:
        spool = record.spool or default_spool(record.store)
        environment[ATTEMPT_VARIABLE] = str(next_attempt_in(record.store, spool)(run))


def _child(config: TrainConfig, rank: int, common: Mapping[str, str], server: socket.socket) -> int:
    os.environ.update(common)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    if rank != 0:
        server.close()
    return _guarded(lambda: run_worker(config, progress=_say, rendezvous=server if rank == 0 else None))


def _guarded(work: Callable[[], object]) -> int:
    """Run a rank's work; its exit code. An error of ours is one sentence, any other a traceback with the rank."""
    rank = os.environ.get("RANK", "?")
    try:
        work()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except MegascopeError as error:
        sys.stderr.write(f"rank {rank}: {error}\n")
        return error.exit_code
    except Exception:
        sys.stderr.write(f"rank {rank} failed:\n{traceback.format_exc()}")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Children:
    """The forked ranks."""

    def __init__(self) -> None:
        self._rank_of: dict[int, int] = {}
        self._signalled: int | None = None

    def fork(self, rank: int, work: Callable[[], int]) -> None:
        """Fork a child that runs ``work`` and exits with its result, and that dies with this process."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads: those of the parent hold no lock that a child takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid != 0:
            self._rank_of[pid] = rank
            return
        code = 1
        try:
            _die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a terminal's Ctrl-C reaches all
            signal.signal(signal.SIGTERM, _interrupt)
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    @contextlib.contextmanager
    def ended_on_signals(self) -> Iterator[None]:
        """Within, SIGINT and SIGTERM end the children; whatever happens, none is left over."""
        before = {number: signal.signal(number, self._note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._signalled = number

    def wait(self) -> int:
        """Wait until all have ended well (0), or one has not, or a signal came."""
        while self._rank_of:
            if self._signalled is not None:
                return 128 + self._signalled
            ended = self._reap()
            if not ended:
                time.sleep(0.05)
            # Who was killed comes first: the others that ended in the same moment may only have lost a peer.
            for rank, code in sorted(ended, key=lambda end: end[1]):
                if code != 0:
                    reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    sys.stderr.write(f"rank {rank} {reason}: all ranks are ended\n")
                    return 128 - code if code < 0 else code
        return 0

    def _reap(self) -> list[tuple[int, int]]:
        """(rank, exit code, negative for a signal) of children that have ended, without waiting."""
        ended = []
        for pid in list(self._rank_of):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append((self._rank_of.pop(pid), os.waitstatus_to_exitcode(status)))
        return ended

    def _end(self) -> None:
        for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 60.0)):
            for pid in self._rank_of:
                os.kill(pid, number)
            deadline = time.monotonic() + patience_s
            while self._rank_of and time.monotonic() < deadline:
                self._reap()
                time.sleep(0.02)


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
