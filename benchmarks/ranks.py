"""Runs a function on forked ranks in a gloo world, and gives what each of them returns."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PRELOADED = ("torch.fx.experimental.symbolic_shapes", "torch.distributed.device_mesh")


def run_ranks(ranks: int, work: Callable[[], Any], *, timeout_s: float) -> list[Any]:
    """What ``work`` returns on ranks 0 and on. RuntimeError where one fails or is late; no child is left over."""
    import importlib

    import torch

    torch.set_num_threads(1)
    for module in PRELOADED:
        importlib.import_module(module)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    children = [
        context.Process(target=_child, args=(rank, ranks, port, work, pipes[rank][1]), daemon=True)
        for rank in range(ranks)
    ]
    until = time.monotonic() + timeout_s
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking beside threads
            gc.freeze()  # or each child would look through all that is there, and copy it
            for child in children:
                child.start()
            gc.unfreeze()
        results = []
        for rank, (receiver, _) in enumerate(pipes):
            if not receiver.poll(max(0.0, until - time.monotonic())):
                raise RuntimeError(f"rank {rank} was not done after {timeout_s:.0f} s")
            is_done, value = receiver.recv()
            if not is_done:
                raise RuntimeError(f"rank {rank} failed:\n{value}")
            results.append(value)
        return results
    finally:
        for child in children:
            child.join(timeout=5)
            child.kill()


def _child(rank: int, ranks: int, port: str, work: Callable[[], Any], sender: Connection) -> None:
    import torch.distributed as dist

    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="")
    try:
        dist.init_process_group("gloo")
        sender.send((True, work()))
        dist.destroy_process_group()
    except BaseException:
        sender.send((False, traceback.format_exc()))
