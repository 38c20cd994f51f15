"""What recording a collective that torch issues itself costs: gloo, alone and between two ranks, bare and recorded."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from megascope.profiler.c10d.c10d import install_collectives
from megascope.profiler.c10d.hooks import has_hooks
from megascope.profiler.opening import RecorderSettings, open_recorder

from .machine import report

ROUNDS = 9
CALLS = 2000


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of the process a call, all its threads: medians over rounds of bare and recorded calls in turn.

    ``added_cpu_us`` is the median of their differences; CPU time, since the machine is shared and ranks wait.
    """

    bare_cpu_us: float
    recorded_cpu_us: float
    added_cpu_us: float
    rounds: int
    calls: int


def measure(call: Callable[[], object], folder: Path, *, rounds: int = ROUNDS, calls: int = CALLS) -> Cost:
    """Time a call with and without its span, in turn, so that both meet the same machine."""
    import torch.distributed as dist

    recorder = open_recorder(
        RecorderSettings(run="bench", attempt=0, rank=dist.get_rank(), world_size=dist.get_world_size(), spool=folder)
    )
    bare, recorded = [], []
    for _ in range(rounds):
        bare.append(_per_call_cpu_us(call, calls))
        undo = install_collectives(recorder, None)
        assert undo is not None
        recorded.append(_per_call_cpu_us(call, calls))
        undo()
    recorder.close()
    added = [after - before for before, after in zip(bare, recorded, strict=True)]
    bare_us, recorded_us, added_us = (round(statistics.median(values), 2) for values in (bare, recorded, added))
    return Cost(bare_us, recorded_us, added_us, rounds, calls)


def _per_call_cpu_us(call: Callable[[], object], calls: int) -> float:
    call()
    start = time.process_time_ns()
    for _ in range(calls):
        call()
    return (time.process_time_ns() - start) / calls / 1e3


def calls_to_measure() -> dict[str, Callable[[], object]]:
    """By name: a synchronous and an asynchronous all-reduce of 4 bytes, and a barrier."""
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1)

    def wait_for_it() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()

    return {"all_reduce": lambda: dist.all_reduce(tensor), "all_reduce_async": wait_for_it, "barrier": dist.barrier}


def in_world(rank: int, size: int, port: int, folder: Path, *, calls: int) -> dict[str, dict[str, float]]:
    """All calls on one rank of a gloo world."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    result = {name: asdict(measure(call, folder, calls=calls)) for name, call in calls_to_measure().items()}
    dist.barrier()
    dist.destroy_process_group()
    return result


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        alone = in_world(0, 1, free_port(), Path(folder) / "alone", calls=CALLS)
        port = free_port()
        child = os.fork()
        if child == 0:
            try:
                in_world(1, 2, port, Path(folder) / "two", calls=CALLS // 4)
            finally:
                sys.stdout.flush()
                os._exit(0)
        two = in_world(0, 2, port, Path(folder) / "two", calls=CALLS // 4)
        os.waitpid(child, 0)
    way = "hooks" if has_hooks(torch._C._distributed_c10d.ProcessGroup) else "wrapper"
    report("collectives", {"torch": torch.__version__, "way": way, "one_rank": alone, "two_ranks": two})


if __name__ == "__main__":
    main()
