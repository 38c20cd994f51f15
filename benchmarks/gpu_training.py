"""The trainer in processes of its own, with the recorder and without: losses, spans and their clock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from megascope.profiler.box import BoxReader
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.vocabulary import CLOCK_CODES
from megascope.trainer.config import Backend, DataConfig, ModelConfig, OptimizationConfig, ParallelConfig, TrainConfig
from megascope.trainer.worker import run_worker

STEPS = 10
TIMEOUT_S = 180.0


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
    return {
        "ok": recorded == bare and len(recorded[0]) == STEPS and is_timed,
        "ranks": ranks,
        "backend": backend,
        "device": first["device"],
        "losses_identical": recorded == bare,
        "losses": [round(loss, 6) for loss in (recorded[0][0], recorded[0][-1])],
        "spans_by_clock": first["clocks"],
    }


def _run_ranks(folder: Path, ranks: int, backend: str, *, is_recorded: bool) -> str:
    """The last line of what a rank that failed said; empty where all went well."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "benchmarks.gpu_training", str(folder), backend, str(int(is_recorded))]
    children = [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    problems = []
    try:
        for child in children:
            _, said = child.communicate(timeout=TIMEOUT_S)
            if child.returncode:
                problems.append((said.strip().splitlines() or [f"exit code {child.returncode}"])[-1])
    except subprocess.TimeoutExpired:
        problems.append(f"not done after {TIMEOUT_S:.0f} s")
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return problems[0] if problems else ""


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
    result = run_worker(configuration(ranks, backend), recorder)
    clocks: Counter[str] = Counter()
    if is_recorded:
        reader = BoxReader(folder / "spool" / "gpu" / "0" / f"rank-{rank:05d}.box")
        for ring in range(reader.layout.rings):
            clocks.update(str(CLOCK_CODES[int(code)]) for code in reader.read_ring(ring, 0).records["clock"])
    values = {"losses": result.losses, "clocks": dict(clocks), "device": _device()}
    (folder / f"{rank}.json").write_text(json.dumps(values))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    worker(Path(sys.argv[1]), sys.argv[2], is_recorded=sys.argv[3] == "1")
