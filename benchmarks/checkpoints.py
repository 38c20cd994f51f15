"""What a checkpoint costs: the stall beside a plain copy of as many bytes, the write beside training, and loading."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from megascope.collectors.reading.store import Store
from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.checkpointer import Checkpointer
from megascope.trainer.checkpoints.commit import read_commit
from megascope.trainer.checkpoints.files import committed_steps
from megascope.trainer.config import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    OptimizationConfig,
    ParallelConfig,
    TrainConfig,
)
from megascope.trainer.loop import Trainer

from .machine import report
from .ranks import run_ranks

ROOT = Path(__file__).resolve().parents[1]
LARGE = ModelConfig(layers=7, width=1024, heads=8, vocabulary=256, sequence=64)
"""88 million parameters: 1.06 GB of master weights and moments."""

PARTS = ("demo", "large")
LARGE_TIMEOUT_S = 400.0

REPEATS = 4
STEPS, EVERY, WHOLE_EVERY = 24, 4, 3
OTHER_LAYOUT = ("--parallel.tp", "1", "--parallel.pp", "4", "--parallel.chunks", "1")


def main() -> None:
    """Print one JSON object: of the parts that are named (`demo`, `large`), of both where none is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    chosen, values = parser.parse_args().parts or PARTS, dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        if "demo" in chosen:
            values["demo"] = demo_costs(Path(folder) / "demo")
        if "large" in chosen:
            values["large"] = large_costs(Path(folder) / "large-1", 1)
            values["large_2"] = large_costs(Path(folder) / "large-2", 2)
    report("checkpoints", values)


def demo_costs(folder: Path) -> dict[str, Any]:
    """The demo's model on 8 ranks, with checkpoints; then loaded under the same layout and under another."""
    _train(folder, "saved", str(STEPS))
    checkpoints = folder / "checkpoints"
    commits = [read_commit(checkpoints, step) for step in sorted(committed_steps(checkpoints))]
    between = [commit for number, commit in enumerate(commits) if number % WHOLE_EVERY]
    changed = [commit.size_bytes / commit.state_bytes for commit in between]
    _train(folder, "same", str(STEPS + 1))
    _train(folder, "other", str(STEPS + 1), *OTHER_LAYOUT)
    return {
        "ranks": 8,
        "state_bytes": commits[0].state_bytes,
        "step_ms": _durations(folder, "saved", "step")[0],
        "stall_ms": _durations(folder, "saved", "checkpoint_stage"),
        "copy_ms": _durations(folder, "saved", "checkpoint_snapshot"),
        "save_ms": _durations(folder, "saved", "checkpoint_save"),
        "commit_ms": _durations(folder, "saved", "checkpoint_commit"),
        "load_ms": _durations(folder, "same", "checkpoint_load"),
        "load_other_layout_ms": _durations(folder, "other", "checkpoint_load"),
        "incremental_share": round(statistics.median(changed), 4),
    }


def _train(folder: Path, run: str, steps: str, *more: str) -> None:
    command = [sys.executable, "-m", "megascope", "train", str(ROOT / "trainer" / "configs" / "demo.toml")]
    settings = {
        "--train.steps": steps,
        "--train.eval_every": "0",
        "--checkpoint.folder": str(folder / "checkpoints"),
        "--checkpoint.every": str(EVERY if run == "saved" else 0),
        "--checkpoint.keep": "9",
        "--checkpoint.whole_every": str(WHOLE_EVERY),
        "--record.run": run,
        "--record.store": str(folder / "store"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [part for pair in settings.items() for part in pair]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MEGASCOPE_SHADOW": "0"}
    done = subprocess.run(
        [*command, *arguments, *more], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def _durations(folder: Path, run: str, segment: str) -> list[float]:
    """Median and largest duration in ms over ranks and checkpoints (of steps: over ranks and steps)."""
    store = Store(folder / "store")
    if segment == "step":
        sql = "SELECT median(duration_ns) AS middle, max(duration_ns) AS largest FROM steps"
        values: list[Any] = []
    else:
        sql = (
            "SELECT median(e.duration_ns) AS middle, max(e.duration_ns) AS largest FROM events e "
            "JOIN segments s USING (run, attempt, segment) WHERE s.name = ?"
        )
        values = [segment]
    (row,) = store.query(sql, values, store.attempt(run)).to_pylist()
    return [round(row[name] / 1e6, 3) for name in ("middle", "largest")]


def large_costs(folder: Path, ranks: int = 1) -> dict[str, Any]:
    """About a gigabyte of state over so many ranks, which save at once; of rank 0, the stall beside a memory copy of

    as many bytes, in turns, which all make at once too.
    """
    checkpoint = CheckpointConfig(folder=folder, every=1, keep=1)
    config = TrainConfig(
        model=LARGE,
        parallel=ParallelConfig(dp=ranks),
        train=OptimizationConfig(batch=4 * ranks, microbatches=1),
        data=DataConfig(limit_bytes=100_000),
        checkpoint=checkpoint,
    )
    return dict(run_ranks(ranks, lambda: _large(config), timeout_s=LARGE_TIMEOUT_S)[0])


def _large(config: TrainConfig) -> dict[str, Any]:
    ranks, folder = config.parallel.dp, config.checkpoint.folder
    assert folder is not None
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
    checkpointer = trainer._checkpointer
    assert checkpointer is not None
    position = checkpointer.begin().position
    for bucket in trainer.optimizer.buckets:
        for state in bucket.state():
            state.add_(1e-3)  # moments that were never written to have no memory yet
    assert checkpointer._host is not None
    source = np.ones(checkpointer._host.size_bytes, np.uint8)
    target = np.zeros_like(source)
    target.fill(1)
    stalls, copies, writes = [], [], []
    for number in range(REPEATS):
        copies.append(_seconds(lambda: np.copyto(target, source)))
        stalls.append(_seconds(lambda number=number: checkpointer.save(number + 1, position)))
        writes.append(_seconds(checkpointer.finish))
    loads = [_seconds(lambda: _load(config, trainer)) for _ in range(2)]
    size, stall, copy = source.nbytes, statistics.median(stalls), statistics.median(copies)
    return {
        "ranks": ranks,
        "state_bytes": read_commit(folder, REPEATS).state_bytes,
        "state_bytes_of_a_rank": size,
        "stall_ms": [round(1e3 * value, 1) for value in stalls],
        "copy_ms": [round(1e3 * value, 1) for value in copies],
        "stall_over_copy": round(statistics.median(a / b for a, b in zip(stalls, copies, strict=True)), 2),
        "stall_gb_per_s": round(size / stall / 1e9, 2),
        "copy_gb_per_s": round(size / copy / 1e9, 2),
        "write_s": round(statistics.median(writes), 2),
        "load_s": round(min(loads), 2),
        "threads": torch.get_num_threads(),
    }


def _load(config: TrainConfig, trainer: Trainer) -> None:
    checkpointer = Checkpointer(config, trainer._mesh, trainer.optimizer, trainer._world, trainer._probe)
    assert checkpointer._restorer.restore() is not None


def _seconds(work: Any) -> float:
    """How long it takes, once all ranks have come."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
