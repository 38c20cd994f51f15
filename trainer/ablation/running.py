"""Runs the variants: one set of processes trains them all, in random order within each repeat."""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ...profiler.errors import MegascopeError
from ..children import Children
from ..config import Backend, TrainConfig
from ..flops import peak_flops, utilization
from ..inputs import check_inputs
from ..launch import guarded, preload
from ..loop import TrainResult
from ..worker import run_worker
from .estimating import Run
from .memory import HostMemory, count_on_device, device_bytes
from .planning import Variant
from .stopwatch import WARM_UP_STEPS, Stopwatch

Progress = Callable[[int, int], None]

UNTIMED = 2
"""Repeats before those that are timed, which warm the processes up and tell how much memory is held."""


def run_variants(
    variants: Sequence[Variant], *, repeats: int, steps: int, seed: int = 0, progress: Progress | None = None
) -> list[Run]:
    """Train every variant ``repeats`` times for ``steps`` steps, after two that are not counted, and twice untimed.

    The variants of a repeat follow each other in random order, so that what the machine does meanwhile falls on all
    alike. Raises MegascopeError where a rank fails.
    """
    short = [replace(one, config=_short(one.config, steps + WARM_UP_STEPS)) for one in variants]
    for variant in short:
        check_inputs(variant.config)
    preload()
    world, total = variants[0].config.topology().world_size, (UNTIMED + repeats) * len(variants)
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0), backlog=max(64, world)) as server,
    ):
        path = Path(folder) / "runs.jsonl"
        path.touch()
        children, ended = Children(), threading.Event()
        with children.ended_on_signals():
            for rank in range(world):
                children.fork(rank, lambda rank=rank: _rank(rank, world, server, short, repeats, seed, path))  # type: ignore[misc]
            server.close()
            watch = threading.Thread(target=_watch, args=(path, total, progress, ended), daemon=True)
            watch.start()
            code = children.wait()
            ended.set()
            watch.join()
        if code != 0:
            raise MegascopeError("A process of the ablation failed, as said above: no effect can be told.")
        return [Run(**json.loads(line)) for line in path.read_text().splitlines() if line]


def _short(config: TrainConfig, steps: int) -> TrainConfig:
    """The same training for a few steps: without recording, checkpoints and evaluation."""
    return replace(
        config,
        train=replace(config.train, steps=steps, eval_every=0, log_every=steps, warmup_steps=0),
        checkpoint=replace(config.checkpoint, folder=None),
        record=replace(config.record, enabled=False),
    )


def _watch(path: Path, total: int, progress: Progress | None, ended: threading.Event) -> None:
    while progress is not None and not ended.wait(0.5):
        progress(path.read_text().count("\n"), total)


def _rank(
    rank: int, world: int, server: socket.socket, variants: Sequence[Variant], repeats: int, seed: int, path: Path
) -> int:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port = server.getsockname()[1]
    limit = timedelta(seconds=variants[0].config.parallel.timeout_s)
    listening = server.detach() if rank == 0 else None
    if rank != 0:
        server.close()

    def work() -> None:
        store = TCPStore("127.0.0.1", port, world, rank == 0, limit, master_listen_fd=listening)
        order, number, host_bytes = random.Random(seed), 0, dict[str, int | None]()
        for repeat in range(-UNTIMED, repeats):
            for variant in order.sample(list(variants), len(variants)):
                number += 1
                place = _Place(PrefixStore(f"run/{number}", store), rank, world, limit)
                run = None
                if repeat < 0:
                    memory = HostMemory()
                    _train(variant, place, memory)
                    host_bytes[variant.name] = _smaller(host_bytes.get(variant.name), memory.most_bytes())
                else:
                    run = _measured(variant, place, host_bytes[variant.name])
                if rank == 0:
                    line = "" if run is None else json.dumps(asdict(replace(run, repeat=repeat)))
                    with path.open("a") as file:
                        file.write(line + "\n")
        store.set(f"done/{rank}", "1")
        if rank == 0:  # which holds the store
            store.wait([f"done/{other}" for other in range(world)], limit)

    return guarded(work)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank trains one variant: its store, and who else there is."""

    store: PrefixStore
    rank: int
    world: int
    limit: timedelta


def _measured(variant: Variant, place: _Place, host_bytes: int | None) -> Run | None:
    """What a training was like, on rank 0; None on the others, which tell it what they have measured."""
    has_gpu, config = torch.cuda.is_available(), variant.config
    watch = Stopwatch(count_on_device) if has_gpu else Stopwatch()
    result = _train(variant, place, watch)
    waits = None if has_gpu else watch.wait_per_step()
    own = {"wait_ns": waits, "memory_bytes": device_bytes() if has_gpu else host_bytes}
    keys = [f"measured/{rank}" for rank in range(place.world)]
    place.store.set(keys[place.rank], json.dumps(own))
    if place.rank != 0:
        return None
    place.store.wait(keys, place.limit)
    ranks = [json.loads(place.store.get(key)) for key in keys]
    wall_ns = watch.median_wall_ns()
    tokens, steps = config.train.batch * config.model.sequence, len(watch.wall_ns) - 1
    peak = peak_flops(torch.cuda.get_device_name() if has_gpu else None, config.model.precision)
    return Run(
        variant=variant.name,
        repeat=0,
        tokens=tokens,
        wall_ns=wall_ns,
        cpu_ns=watch.cpu_per_step(),
        messages=sum(one.count for one in result.traffic.values()) / steps,
        size_bytes=sum(one.size_bytes for one in result.traffic.values()) / steps,
        wait_ns=_mean([one["wait_ns"] for one in ranks]),
        memory_bytes=_largest([one["memory_bytes"] for one in ranks]),
        mfu=utilization(config.model, tokens * 1e9 / wall_ns, place.world, peak),
    )


def _smaller(earlier: int | None, size: int | None) -> int | None:
    """Of two trainings the one that held less: the other also allocated what a process keeps for ever."""
    return size if earlier is None or size is None else min(earlier, size)


def _mean(waits: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    total: Counter[str] = Counter()
    for one in waits:
        if one is None:
            return None
        total.update(one)
    return {axis: value / len(waits) for axis, value in total.items()}


def _largest(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _train(variant: Variant, place: _Place, watch: Stopwatch) -> TrainResult:
    config = variant.config
    has_gpu = torch.cuda.is_available()
    backend = "nccl" if has_gpu and config.parallel.backend is not Backend.GLOO else "gloo"
    if not has_gpu:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // place.world))
    dist.init_process_group(backend, store=place.store, rank=place.rank, world_size=place.world, timeout=place.limit)
    result = run_worker(config, watch)
    gc.collect()
    gc.freeze()  # training looks for garbage as it begins: then at what is its own
    return result
