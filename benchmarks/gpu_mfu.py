"""Model FLOP/s utilization of one GPU: a model that fills it, in bf16, compiled and recomputed or not.

Each case trains in a process of its own; what counts are the steps after the warm-up, from one wait for the device to
the next.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from megascope.profiler.null import NullRecorder
from megascope.trainer.config import (
    Backend,
    DataConfig,
    ModelConfig,
    OptimizationConfig,
    ParallelConfig,
    Precision,
    Recompute,
    TrainConfig,
)
from megascope.trainer.flops import flops_per_token, peak_flops, utilization
from megascope.trainer.worker import run_worker

from .gpu_training import first_error, free_port

STEPS, WARM_UP = 20, 5
TIMEOUT_S = 150.0
LARGE_BYTES = 60 * 2**30
"""From so much memory on a device gets the large model."""

CASES: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compile": True},
    "recompute_selective": {"recompute": Recompute.SELECTIVE},
    "compiled_recompute_selective": {"compile": True, "recompute": Recompute.SELECTIVE},
}


def configuration(case: str, memory_bytes: int | None, backend: str) -> TrainConfig:
    """The training of a case on a device with so much memory; None is a CPU, which gets a tiny model."""
    model = ModelConfig(layers=2, width=32, heads=2, sequence=32, precision=Precision.BF16)
    train = OptimizationConfig(batch=4, microbatches=2)
    if memory_bytes is not None:
        large = memory_bytes >= LARGE_BYTES
        model = replace(model, layers=12 if large else 4, width=2048, heads=16, sequence=2048, vocabulary=32768)
        train = replace(train, batch=32 if large else 4, microbatches=4 if large else 2)
    train = replace(train, steps=STEPS, warmup_steps=2, log_every=10**6, **CASES[case])
    parallel = ParallelConfig(backend=Backend(backend), timeout_s=60)
    return TrainConfig(model=model, parallel=parallel, train=train, data=DataConfig(limit_bytes=4_000_000))


class SteadySteps(NullRecorder):
    """Takes the time of the steps after the warm-up, and the utilization that the trainer finds for each of them."""

    def __init__(self, synchronize: Any) -> None:
        self._synchronize = synchronize
        self.began_s = self.ended_s = 0.0
        self.utilizations: list[float] = []

    def step(self, number: int) -> None:
        """A step begins."""
        if number == WARM_UP:
            self._synchronize()
            self.began_s = time.perf_counter()

    def step_metrics(self, step: int, **values: Any) -> None:
        """What the trainer tells of a step."""
        if step >= WARM_UP and values.get("mfu") is not None:
            self.utilizations.append(values["mfu"])

    def end_step(self) -> None:
        """The last step is enqueued: what follows is the end of the training."""
        self._synchronize()
        self.ended_s = time.perf_counter()

    def step_s(self) -> float:
        """Mean seconds of a step."""
        return (self.ended_s - self.began_s) / (STEPS - WARM_UP)


def measure(case: str, backend: str, peak: float | None = None) -> dict[str, Any]:
    """Train in this process; ``peak`` stands for the device's FLOP/s, which else follow from its name.

    ``mfu`` is of the time that steps take one after the other, ``mfu_of_steps`` of that from each one's first operation
    on the device to its last: the median. Both are None where the peak is not known.
    """
    import torch

    cuda = torch.cuda if torch.cuda.is_available() else None
    memory = None if cuda is None else cuda.get_device_properties(0).total_memory
    config = configuration(case, memory, backend)
    steady = SteadySteps(cuda.synchronize if cuda is not None else lambda: None)
    result = run_worker(config, steady)
    seconds = steady.step_s()
    name = None if cuda is None else cuda.get_device_name()
    tokens_per_second = config.train.batch * config.model.sequence / seconds
    known = peak if peak is not None else peak_flops(name, config.model.precision)
    return {
        "device": name or "cpu",
        "peak_tflops": None if known is None else known / 1e12,
        "mfu": utilization(config.model, tokens_per_second, 1, known),
        "mfu_of_steps": statistics.median(steady.utilizations) if steady.utilizations else None,
        "tokens_per_second": tokens_per_second,
        "step_ms": seconds * 1e3,
        "model_tflop_per_step": flops_per_token(config.model) * config.train.batch * config.model.sequence / 1e12,
        "peak_memory_bytes": None if cuda is None else cuda.max_memory_allocated(),
        "losses": [round(result.losses[0], 4), round(result.losses[-1], 4)],
    }


def mfu_on_gpu(folder: Path, *, backend: str, peak: float | None = None) -> dict[str, Any]:
    """All cases. ``ok``: each trained, its loss fell, and utilization, where a peak is known, lies between 0 and 1."""
    cases = {case: _run(folder / case, case, backend, peak) for case in CASES}
    return {"ok": all(_is_plausible(found) for found in cases.values()), "cases": cases}


def _is_plausible(found: dict[str, Any]) -> bool:
    if "error" in found:
        return False
    first, last = found["losses"]
    return last < first and all(found[name] is None or 0 < found[name] < 1 for name in ("mfu", "mfu_of_steps"))


def _run(folder: Path, case: str, backend: str, peak: float | None) -> dict[str, Any]:
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.gpu_mfu", str(folder), case, backend]
    command += [] if peak is None else [repr(peak)]
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment = {**os.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    error = first_error(command, [environment], folder, TIMEOUT_S)
    if error:
        return {"error": error}
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


if __name__ == "__main__":
    given = sys.argv[4] if len(sys.argv) > 4 else None
    values = measure(sys.argv[2], sys.argv[3], None if given is None else float(given))
    Path(sys.argv[1], "result.json").write_text(json.dumps(values))
