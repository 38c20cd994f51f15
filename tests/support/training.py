"""Small training jobs for tests: configurations, and runs on forked ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megascope.profiler.null import NullRecorder
from megascope.profiler.recorder import Recorder
from megascope.trainer.config import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    OptimizationConfig,
    ParallelConfig,
    Precision,
    TrainConfig,
)
from megascope.trainer.loop import TrainResult
from megascope.trainer.worker import run_worker

from .forkrun import run_ranks


def small_config(
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    chunks: int = 1,
    precision: Precision = Precision.FP32,
    parallel_block: bool = False,
    window: int | None = None,
    steps: int = 10,
    model: Mapping[str, Any] | None = None,
    parallel: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    fault: tuple[str, ...] = (),
    checkpoint: CheckpointConfig | None = None,
) -> TrainConfig:
    """Four layers of width 32 on the first 100 kB of Python's sources; buckets small enough that there are several."""
    base = ModelConfig(
        layers=4, width=32, heads=4, sequence=32, precision=precision, parallel_block=parallel_block, window=window
    )
    config = TrainConfig(
        model=replace(base, **(model or {})),
        parallel=ParallelConfig(tp=tp, pp=pp, dp=dp, chunks=chunks, bucket_bytes=32 * 1024, timeout_s=60),
        train=OptimizationConfig(steps=steps, batch=8, microbatches=4, warmup_steps=3, log_every=1),
        data=replace(DataConfig(limit_bytes=100_000), **(data or {})),
        checkpoint=checkpoint or CheckpointConfig(),
        fault=fault,
    )
    return replace(
        config, parallel=replace(config.parallel, **(parallel or {})), train=replace(config.train, **(train or {}))
    )


def run_config(
    config: TrainConfig, *, recorder: Recorder | NullRecorder | None = None, timeout_s: float = 60
) -> list[TrainResult]:
    """Train on as many forked ranks as the layout has; the results of all of them. Nothing is recorded by default."""
    return run_ranks(
        config.topology().world_size, lambda: run_worker(config, recorder or NullRecorder()), timeout_s=timeout_s
    )


def text_file(folder: Path, size: int = 20_000) -> Path:
    """A text of its own for a test."""
    path = folder / "text.txt"
    path.write_bytes(bytes((number * 7 + number // 13) % 251 for number in range(size)))
    return path
