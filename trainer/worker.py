"""One rank from its environment: process group, device and recorder around the training loop."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from ..profiler.agent_process import serve_fallback
from ..profiler.automatic.automatic import Automatic
from ..profiler.cadence import chosen as chosen_cadence
from ..profiler.clock_exchange import join_exchange
from ..profiler.errors import MegascopeError, UsageError
from ..profiler.for_dumps import leave_topology
from ..profiler.identity import ATTEMPT_VARIABLE, RUN_VARIABLE, identify, next_attempt_in
from ..profiler.null import NullRecorder
from ..profiler.opening import RecorderSettings, default_spool, open_recorder
from ..profiler.recorder import AnyRecorder, Recorder
from ..profiler.rendezvous import in_rendezvous
from ..profiler.session import answer_dump_requests, install, shutdown
from ..profiler.store_address import store_address
from .config import Backend, TrainConfig
from .faults.switches import miss_rendezvous
from .inputs import check_inputs
from .loop import Progress, Trainer, TrainResult

log = logging.getLogger(__name__)

SHARED_STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Without it (torch 2.13) the workers of a restart read the gloo addresses of the attempt before."""


AUTOMATIC = frozenset({Automatic.EXIT, Automatic.EXCEPTIONS, Automatic.COMPILE, Automatic.GRAPHS})
"""Spans that the trainer does not open itself: its collections, data, checkpoints and collectives have their own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def place_from_environment(environment: Mapping[str, str]) -> Place | None:
    """The rank that torchrun or our launcher gave this process; None if neither started it.

    Raises UsageError where the variables are not numbers.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    try:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment.get("LOCAL_RANK", rank))
        return Place(rank, world_size, local_rank, int(environment.get("LOCAL_WORLD_SIZE", world_size)))
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE in the environment is not a number ({error}): unset it."
        ) from error


def run_worker(
    config: TrainConfig,
    recorder: AnyRecorder | None = None,
    *,
    progress: Progress | None = None,
    rendezvous: socket.socket | None = None,
    name: str = "train",
) -> TrainResult:
    """Train as the rank that the environment names; initialises the process group if that was not done.

    ``recorder`` None opens one as the configuration says; ``name`` is the beginning of the run's name where nobody has
    given it one. ``rendezvous`` is rank 0's listening socket, if it was given one. Raises what training raised, after
    noting it in the recorder.
    """
    place = place_from_environment(os.environ)
    if place is None:
        raise UsageError("RANK and WORLD_SIZE are not in the environment: start this under torchrun, or with --nproc.")
    config.validate(place.world_size)
    check_inputs(config)
    device = _choose_device(place, config.parallel.backend)
    close = shutdown if recorder is None else recorder.close
    if recorder is None:
        if not _has_name(config, os.environ):
            _join(config, place, device, rendezvous)  # all ranks take the name from rank 0, which they meet only there
        recorder, config = open_worker_recorder(config, place, device, name)
    try:
        miss_rendezvous(config.fault, place.rank, recorder, config.attempt(os.environ))
        if not dist.is_initialized():
            with in_rendezvous(recorder, place.world_size):
                _join(config, place, device, rendezvous)
        result = Trainer(config, recorder, device, progress if place.rank == 0 else None).run()
        dist.destroy_process_group()
    except KeyboardInterrupt:
        close("interrupted")
        raise
    except BaseException as error:
        recorder.exception(error)
        close("crashed")
        raise
    close("interrupted" if result.stopped else "finished")
    return result


def _has_name(config: TrainConfig, environment: Mapping[str, str]) -> bool:
    """Whether each rank can tell run and attempt by itself. Then the rendezvous is recorded too: jobs get stuck there.

    torchrun's run id is "none" where it was not given one. Where it restarts, a spare counts anew: rank 0 tells.
    """
    record = config.record
    is_named = record.run or environment.get(RUN_VARIABLE) or environment.get("TORCHELASTIC_RUN_ID", "none") != "none"
    is_counted = record.attempt is not None or ATTEMPT_VARIABLE in environment
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    return not record.enabled or bool(is_named and (is_counted or not restarts))


def open_worker_recorder(
    config: TrainConfig, place: Place, device: torch.device, name: str
) -> tuple[AnyRecorder, TrainConfig]:
    """The recorder of a rank, and the configuration with the run and the attempt that it is in."""
    record = config.record
    if not record.enabled:
        return NullRecorder(), config
    uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
    spool = record.spool or default_spool(record.store)
    who = identify(record.run, record.attempt, next_attempt=next_attempt_in(record.store, spool), prefix=name)
    settings = RecorderSettings(
        run=who.run,
        attempt=who.attempt,
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        spool=spool,
        device=uuid,
        cadence=chosen_cadence(who.run),
    )
    recorder = open_recorder(settings)
    if (agent := serve_fallback(recorder, spool, store_address(record.store))) is not None:
        agent.leave()
    leave_topology(recorder, settings, config.topology())
    install(recorder, AUTOMATIC if config.train.gc_every else AUTOMATIC | {Automatic.GC})
    answer_dump_requests(recorder, settings)
    if isinstance(recorder, Recorder):
        join_exchange(recorder, replace(who, **asdict(place)))
    return recorder, replace(config, record=replace(record, run=who.run, attempt=who.attempt))


def _choose_device(place: Place, backend: Backend) -> torch.device:
    """The rank's own GPU; with gloo the ranks share what there is; the CPU where there is none."""
    if not torch.cuda.is_available():
        if backend is Backend.NCCL:
            raise MegascopeError("parallel.backend is nccl, but there is no GPU: set it to auto, or to gloo.")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local_rank >= count and backend is not Backend.GLOO:
        raise MegascopeError(
            f"Local rank {place.local_rank} has no GPU: this host has {count}. "
            "Start fewer processes, let them share it with --backend gloo, or hide the GPUs with CUDA_VISIBLE_DEVICES= "
            "to train on the CPU."
        )
    device = torch.device("cuda", place.local_rank % count)
    torch.cuda.set_device(device)
    return device


def threads_of(place: Place, environment: Mapping[str, str]) -> int:
    """Threads of a rank on CPUs: its share of the cores, or what ``OMP_NUM_THREADS`` says where that is less.

    Hosts that are simulated on one machine say so: more threads than cores wait for each other, spinning.
    """
    share = max(1, (os.cpu_count() or 1) // place.local_world_size)
    given = environment.get("OMP_NUM_THREADS", "")
    return min(share, int(given)) if given.isdecimal() and int(given) > 0 else share


def _join(config: TrainConfig, place: Place, device: torch.device, rendezvous: socket.socket | None) -> None:
    """Initialise the default process group: gloo on a CPU, NCCL on CUDA unless gloo is asked for."""
    if dist.is_initialized():
        return
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ.get(SHARED_STORE_VARIABLE) != "1":
        log.warning(
            "Set %s=1 for torchrun: with its shared store, a restarted job finds dead peers.", SHARED_STORE_VARIABLE
        )
    if device.type == "cpu":
        torch.set_num_threads(threads_of(place, os.environ))
    backend = "nccl" if device.type == "cuda" and config.parallel.backend is not Backend.GLOO else "gloo"
    timeout = timedelta(seconds=config.parallel.timeout_s)
    if "MEGASCOPE_PORT" not in os.environ:
        dist.init_process_group(backend, timeout=timeout)
        return
    port = int(os.environ["MEGASCOPE_PORT"])
    listening = None if rendezvous is None else rendezvous.detach()
    store = TCPStore("127.0.0.1", port, place.world_size, place.rank == 0, timeout, master_listen_fd=listening)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)
