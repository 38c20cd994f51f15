"""Starts all ranks of one host: imports once, forks a child per rank, and ends all of them when one fails."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping

from ..profiler.errors import MegascopeError
from ..profiler.exits import ExitNotes, notes_on
from ..profiler.identity import ATTEMPT_VARIABLE, RUN_VARIABLE, mint_run, next_attempt_in
from ..profiler.opening import default_spool
from .children import Children
from .config import RecordConfig, TrainConfig
from .inputs import check_inputs
from .worker import place_from_environment, run_worker

log = logging.getLogger(__name__)

PRELOADED = ("torch.fx.experimental.symbolic_shapes", "torch.distributed.device_mesh", "torch.nn.functional")
"""What a first step imports lazily; a backward with a gradient alone costs 1.1 s of sympy, once instead of per rank."""


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
    return guarded(lambda: run_worker(config, progress=say, name=name))


def launch(config: TrainConfig, nproc: int, *, environment: Mapping[str, str], name: str = "train") -> int:
    """Run ``nproc`` ranks on this host until all have ended.

    ``environment`` is added to theirs before they look for a device: CUDA_VISIBLE_DEVICES="" trains on the CPU.
    Returns 0, the exit code of the first rank that failed, or 130 after Ctrl-C; then all ranks are ended: SIGTERM, and
    SIGKILL after a grace of 5 seconds. Raises UsageError for a layout that the number of processes does not fit, and
    MegascopeError for a text or a checkpoint folder that cannot be used, before any rank is started.
    """
    config.validate(nproc)
    check_inputs(config)
    preload()
    with socket.create_server(("127.0.0.1", 0), backlog=max(64, nproc)) as server:
        port = server.getsockname()[1]
        common = {**environment, "WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), "MEGASCOPE_PORT": str(port)}
        _name(config.record, common, name)
        if sys.platform == "linux":
            common.setdefault("GLOO_SOCKET_IFNAME", "lo")
        children = Children(_notes(config.record, common))
        with children.ended_on_signals():
            for rank in range(nproc):
                children.fork(rank, lambda rank=rank: _child(config, rank, common, server))  # type: ignore[misc]
            server.close()
            return children.wait()


def preload() -> None:
    """Import what ranks need in their first step, before they are forked; starts no thread.

    Of what is there by then no rank looks for garbage, which would copy nearly all of it, page by page.
    """
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _name(record: RecordConfig, environment: dict[str, str], prefix: str) -> None:
    """Add run and attempt to the ranks' environment, where neither they nor the configuration have them."""
    run = record.run or environment.get(RUN_VARIABLE) or os.environ.get(RUN_VARIABLE) or mint_run(prefix)
    environment[RUN_VARIABLE] = run
    if record.attempt is None and ATTEMPT_VARIABLE not in {**os.environ, **environment}:
        spool = record.spool or default_spool(record.store)
        environment[ATTEMPT_VARIABLE] = str(next_attempt_in(record.store, spool)(run))


def _notes(record: RecordConfig, environment: Mapping[str, str]) -> ExitNotes:
    """Where the ends of the ranks are noted: beside their boxes. Nowhere, where the attempt has no number yet."""
    attempt = {**os.environ, **environment}.get(ATTEMPT_VARIABLE, "") if record.attempt is None else str(record.attempt)
    if not record.enabled or not attempt.isdecimal():
        return ExitNotes()
    return notes_on(record.spool or default_spool(record.store), environment[RUN_VARIABLE], int(attempt))


def _child(config: TrainConfig, rank: int, common: Mapping[str, str], server: socket.socket) -> int:
    os.environ.update(common)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    if rank != 0:
        server.close()
    return guarded(lambda: run_worker(config, progress=say, rendezvous=server if rank == 0 else None))


def guarded(work: Callable[[], object]) -> int:
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


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
