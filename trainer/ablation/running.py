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
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ...profiler.errors import MegascopeError
from ...profiler.null import NullRecorder
from ..children import Children
from ..config import Backend, TrainConfig
from ..inputs import check_inputs
from ..launch import guarded, preload
from ..worker import run_worker
from .estimating import Run
from .switches import Variant

Progress = Callable[[int, int], None]

WARM_UP_STEPS = 2


class Stopwatch(NullRecorder):
    """Notes when steps begin, and nothing else."""

    def __init__(self) -> None:
        self.wall_ns: list[int] = []
        self.cpu_ns: list[int] = []

    def step(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        self.wall_ns.append(time.monotonic_ns())
        self.cpu_ns.append(time.process_time_ns())

    def end_step(self, *_: Any, **__: Any) -> None:
        """The last step has ended."""
        self.step()


def run_variants(
    variants: Sequence[Variant], *, repeats: int, steps: int, seed: int = 0, progress: Progress | None = None
) -> list[Run]:
    """Train every variant ``repeats`` times for ``steps`` steps, after two that are not counted.

    The variants of a repeat follow each other in random order, so that what the machine does meanwhile falls on all
    alike. Raises MegascopeError where a rank fails.
    """
    short = [replace(one, config=_short(one.config, steps + WARM_UP_STEPS)) for one in variants]
    for variant in short:
        check_inputs(variant.config)
    preload()
    world = variants[0].config.topology().world_size
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
            watch = threading.Thread(target=_watch, args=(path, repeats * len(short), progress, ended), daemon=True)
            watch.start()
            code = children.wait()
            ended.set()
            watch.join()
        if code != 0:
            raise MegascopeError("A process of the ablation failed, as said above: no effect can be told.")
        return [Run(**json.loads(line)) for line in path.read_text().splitlines()]


def _short(config: TrainConfig, steps: int) -> TrainConfig:
    """The same training for a few steps: without recording, checkpoints, evaluation and faults of its own."""
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
        order, number = random.Random(seed), 0
        for repeat in range(-1, repeats):  # the first, which warms the processes up, is not written
            for variant in order.sample(list(variants), len(variants)):
                number += 1
                run = _train(variant, PrefixStore(f"run/{number}", store), rank, world, limit)
                if rank == 0 and repeat >= 0:
                    with path.open("a") as file:
                        file.write(json.dumps(asdict(replace(run, repeat=repeat))) + "\n")
        store.set(f"done/{rank}", "1")
        if rank == 0:  # which holds the store
            store.wait([f"done/{other}" for other in range(world)], limit)

    return guarded(work)


def _train(variant: Variant, store: PrefixStore, rank: int, world: int, limit: timedelta) -> Run:
    config, watch = variant.config, Stopwatch()
    has_gpu = torch.cuda.is_available()
    backend = "nccl" if has_gpu and config.parallel.backend is not Backend.GLOO else "gloo"
    if not has_gpu:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    result = run_worker(config, watch)
    gc.collect()
    gc.freeze()  # training looks for garbage as it begins: then at what is its own
    steps = len(watch.wall_ns) - 1
    walls = [after - before for before, after in zip(watch.wall_ns, watch.wall_ns[1:], strict=False)]
    return Run(
        variant=variant.name,
        repeat=0,
        tokens=config.train.batch * config.model.sequence,
        wall_ns=float(median(walls[WARM_UP_STEPS:])),
        cpu_ns=(watch.cpu_ns[-1] - watch.cpu_ns[WARM_UP_STEPS]) / (steps - WARM_UP_STEPS),
        messages=sum(one.count for one in result.traffic.values()) / steps,
        size_bytes=sum(one.size_bytes for one in result.traffic.values()) / steps,
    )
