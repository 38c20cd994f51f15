"""The same training with the recorder on and off, in interleaved pairs: what it adds, and whether losses differ."""

from __future__ import annotations

import gc
import os
import random
import socket
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from megascope.profiler.box.box import BoxReader
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.trainer.config import DataConfig, ModelConfig, OptimizationConfig, TrainConfig
from megascope.trainer.worker import run_worker

PAIRS = 10
STEPS = 8
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class PairedOverhead:
    """CPU time of a run with the recorder over one without, minus 1, in percent: median and 95 % bootstrap interval."""

    overhead_percent: float
    interval_percent: tuple[float, float]
    pairs: int
    step_ms: float
    spans_per_step: list[float]
    losses_identical: bool


def paired_overhead(pairs: int = PAIRS) -> PairedOverhead:
    """Train pairs of runs in this process, in random order inside a pair; CPU time, since the machine is shared."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    os.environ.update(
        CUDA_VISIBLE_DEVICES="",
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        GLOO_SOCKET_IFNAME="lo",
    )
    order = random.Random(0)
    ratios, bare_ms, spans = [], [], []
    losses: set[tuple[float, ...]] = set()
    _train(recorded=True)  # warm-up
    for _ in range(pairs):
        cpu_ns: dict[bool, int] = {}
        for recorded in order.sample([True, False], 2):
            cpu_ns[recorded], result, count = _train(recorded=recorded)
            losses.add(result)
            if recorded:
                spans.append(count / STEPS)
        ratios.append(100 * (cpu_ns[True] / cpu_ns[False] - 1))
        bare_ms.append(cpu_ns[False] / STEPS / 1e6)
    resampled = sorted(statistics.median(order.choices(ratios, k=pairs)) for _ in range(RESAMPLES))
    interval = (resampled[RESAMPLES // 40], resampled[-RESAMPLES // 40])
    return PairedOverhead(
        statistics.median(ratios), interval, pairs, statistics.median(bare_ms), spans, len(losses) == 1
    )


def _train(*, recorded: bool) -> tuple[int, tuple[float, ...], int]:
    """(CPU ns of the run, losses, spans recorded)."""
    config = TrainConfig(
        model=ModelConfig(layers=4, width=128, sequence=128),
        train=OptimizationConfig(steps=STEPS, batch=8, microbatches=4, log_every=1000),
        data=DataConfig(limit_bytes=400_000),
    )
    with tempfile.TemporaryDirectory() as folder:
        if recorded:
            settings = RecorderSettings(run="paired", attempt=0, rank=0, world_size=1, spool=Path(folder))
            recorder = open_recorder(settings)
        gc.collect()
        start = time.process_time_ns()
        result = run_worker(config, recorder if recorded else NullRecorder())
        cpu_ns = time.process_time_ns() - start
        return cpu_ns, tuple(result.losses), _spans(Path(folder)) if recorded else 0


def _spans(folder: Path) -> int:
    reader = BoxReader(next(folder.glob("*/*/*.box")))
    count = sum(reader.head(ring) for ring in range(reader.layout.rings))
    reader.close()
    return count
