"""The trainer in processes of its own, with the recorder and without: losses, spans and their clock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megascope.profiler.box.box import BoxReader
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.vocabulary import CLOCK_CODES
from megascope.trainer.config import Backend, DataConfig, ModelConfig, OptimizationConfig, ParallelConfig, TrainConfig
from megascope.trainer.worker import run_worker

STEPS = 10
TIMEOUT_S = 180.0
POLL_S = 0.02
SYNCHRONISING = "called a synchronizing CUDA operation"
"""What torch warns of where something waits for the device."""


def train_on_gpu(folder: Path, *, ranks: int, backend: str) -> dict[str, Any]:
    """Train with ``ranks`` processes, recorded and not: whether losses are equal, and what was recorded."""
    runs = {}
    for is_recorded in (True, False):
        place = folder / ("recorded" if is_recorded else "bare")
        place.mkdir(parents=True)
        errors = _run_ranks(place, ranks, backend, is_recorded=is_recorded)
        if errors:
            return {"ok": False, "ranks": ranks, "backend": backend, "error": errors}
        runs[is_recorded] = [json.loads((place / f"{rank}.json").read_text()) for rank in range(ranks)]
    recorded, bare = ([run["losses"] for run in runs[is_recorded]] for is_recorded in (True, False))
    first = runs[True][0]
    is_timed = first["device"] == "cpu" or first["clocks"].get("device", 0) > 0
    waits = {is_recorded: sum(run["waits"] for run in each) for is_recorded, each in runs.items()}
    return {
        "ok": recorded == bare and len(recorded[0]) == STEPS and is_timed and waits[True] <= waits[False],
        "ranks": ranks,
        "backend": backend,
        "device": first["device"],
        "losses_identical": recorded == bare,
        "losses": [round(loss, 6) for loss in (recorded[0][0], recorded[0][-1])],
        "spans_by_clock": first["clocks"],
        "waits_for_device": {"recorded": waits[True], "bare": waits[False]},
    }


def _run_ranks(folder: Path, ranks: int, backend: str, *, is_recorded: bool) -> str:
    """The last line of what the first rank that failed said; empty where all went well."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "benchmarks.gpu_training", str(folder), backend, str(int(is_recorded))]
    environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return first_error(command, environments, folder, TIMEOUT_S)


def free_port() -> str:
    """A port of this machine that nobody uses just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def first_error(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], folder: Path, timeout_s: float
) -> str:
    """Run a process in each environment; the last line of what the first one said that failed, empty where none did.

    The others are ended then: they would only complain of the one that is missing. What they say goes to files, which
    take any amount.
    """
    said = [folder / f"{number}.stderr" for number in range(len(environments))]
    children = []
    try:
        for environment, path in zip(environments, said, strict=True):
            with path.open("wb") as file:
                children.append(subprocess.Popen(command, env=environment, stderr=file))
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            codes = [child.poll() for child in children]
            for code, path in zip(codes, said, strict=True):
                if code:
                    return (path.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"])[-1]
            if all(code == 0 for code in codes):
                return ""
            time.sleep(POLL_S)
        return f"not done after {timeout_s:.0f} s"
    finally:
        for child in children:
            child.kill()
            child.wait()


def configuration(ranks: int, backend: str) -> TrainConfig:
    """A small model, and a tiny one where there is no GPU; four ranks are two stages of two replicas."""
    pp = 2 if ranks % 2 == 0 else 1
    size = 256 if _device() == "cuda" else 32
    return TrainConfig(
        model=ModelConfig(layers=4, width=size, sequence=size),
        parallel=ParallelConfig(pp=pp, dp=ranks // pp, backend=Backend(backend), timeout_s=60),
        train=OptimizationConfig(steps=STEPS, batch=8, microbatches=4, warmup_steps=2, log_every=1000),
        data=DataConfig(limit_bytes=400_000),
    )


def worker(folder: Path, backend: str, *, is_recorded: bool) -> None:
    """One rank: train, and leave what came of it in a file."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    settings = RecorderSettings(run="gpu", attempt=0, rank=rank, world_size=ranks, spool=folder / "spool")
    recorder = open_recorder(settings) if is_recorded else NullRecorder()
    with counted_waits() as waits:
        result = run_worker(configuration(ranks, backend), recorder)
    clocks: Counter[str] = Counter()
    if is_recorded:
        reader = BoxReader(folder / "spool" / "gpu" / "0" / f"rank-{rank:05d}.box")
        for ring in range(reader.layout.rings):
            clocks.update(str(CLOCK_CODES[int(code)]) for code in reader.read_ring(ring, 0).records["clock"])
    values = {"losses": result.losses, "clocks": dict(clocks), "device": _device(), "waits": waits[0]}
    (folder / f"{rank}.json").write_text(json.dumps(values))


@contextmanager
def counted_waits() -> Iterator[list[int]]:
    """Count what waits for the device, as torch's synchronisation debug mode sees it, into the list's only number.

    A trainer may read values, whoever records it: recording may add nothing to that.
    """
    import torch

    counted = [0]
    with warnings.catch_warnings():
        show = warnings.showwarning

        def count(message: Warning | str, *args: Any, **named: Any) -> None:
            if SYNCHRONISING in str(message):
                counted[0] += 1
            else:
                show(message, *args, **named)

        warnings.showwarning = count
        warnings.filterwarnings("always", message=f".*{SYNCHRONISING}")
        if _device() == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield counted
        finally:
            if _device() == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    worker(Path(sys.argv[1]), sys.argv[2], is_recorded=sys.argv[3] == "1")
