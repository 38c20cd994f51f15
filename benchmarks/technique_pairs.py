"""Each technique off and on, in turns: CPU time, messages, bytes and memory of a step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.ranks import run_ranks
from megascope.trainer.config import (
    DataConfig,
    ModelConfig,
    OptimizationConfig,
    ParallelConfig,
    Precision,
    Recompute,
    TrainConfig,
)

REPEATS, STEPS, WARM_UP = 5, 5, 1
TIMEOUT_S = 400.0

BASE = TrainConfig(
    model=ModelConfig(layers=4, width=64, heads=4, sequence=64),
    parallel=ParallelConfig(bucket_bytes=2**16, timeout_s=100),
    train=OptimizationConfig(steps=STEPS, batch=16, microbatches=4, warmup_steps=2, log_every=1000),
    data=DataConfig(limit_bytes=2_000_000),
)
LONG = {"model.sequence": 2048, "train.batch": 2, "train.microbatches": 1}
LARGE_VOCABULARY = {"model.vocabulary": 4096, "model.layers": 8, "parallel.pp": 2}


@dataclass(frozen=True, slots=True)
class Pair:
    """A technique: what both sides have, and what each has of its own."""

    both: Mapping[str, Any]
    off: Mapping[str, Any]
    on: Mapping[str, Any]


PAIRS = {
    "control": Pair({"parallel.tp": 2}, {}, {}),
    "parallel block": Pair({"parallel.tp": 2}, {}, {"model.parallel_block": True}),
    "window": Pair(LONG, {}, {"model.window": 128}),
    "tied": Pair({"parallel.pp": 2}, {}, {"model.tied": True}),
    "dropout": Pair({}, {}, {"model.dropout": 0.1}),
    "uneven stages": Pair(LARGE_VOCABULARY, {}, {"parallel.stage_layers": (6, 2)}),
    "bf16": Pair({"parallel.dp": 2, "model.width": 128}, {}, {"model.precision": Precision.BF16}),
    "adaptive clip": Pair({}, {}, {"train.clip_factor": 2.0}),
    "pods": Pair({"parallel.dp": 4, "train.microbatches": 2}, {}, {"parallel.pod": 2}),
    "sequence and vocabulary over tp": Pair({}, {}, {"parallel.tp": 2}),
    "compile": Pair({"model.width": 128, "model.sequence": 256}, {}, {"train.compile": True}),
}


def with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """A configuration with some settings changed."""
    for name, value in settings.items():
        section, _, key = name.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    return config


def pairs() -> dict[str, Any]:
    """By technique: figures of both sides, and CPU of on over off as [smallest, median, largest] of the repeats.

    CPU is of all ranks, or of the busiest one (uneven stages are about it); messages and bytes are of rank 0.
    """
    result = {}
    for name, pair in PAIRS.items():
        sides = [with_settings(BASE, {**pair.both, **side}) for side in (pair.off, pair.on)]
        runs = [[_run(config) for config in sides] for _ in range(REPEATS)]
        ratios = {cpu: sorted(round(on[cpu] / off[cpu], 3) for off, on in runs) for cpu in ("cpu_ms", "busiest_cpu_ms")}
        result[name] = {
            "off": _middle([off for off, _ in runs]),
            "on": _middle([on for _, on in runs]),
            **{f"{cpu}_ratio": [each[0], each[REPEATS // 2], each[-1]] for cpu, each in ratios.items()},
        }
    return result


def _middle(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}


def _run(config: TrainConfig) -> dict[str, float]:
    ranks = run_ranks(config.topology().world_size, lambda: _rank(config), timeout_s=TIMEOUT_S)
    first = {name: value for name, value in ranks[0].items() if name != "cpu_ms"}
    times = [rank["cpu_ms"] for rank in ranks]
    return {**first, "cpu_ms": sum(times), "busiest_cpu_ms": max(times)}


def _rank(config: TrainConfig) -> dict[str, float]:
    """Of this rank: CPU of a step, messages and bytes of a step by kind, bytes of weights and state, and kept ones."""
    import time

    trainer = new_trainer(config)
    began: list[int] = []
    train_step = trainer.pipeline.train_step

    def noted(*arguments: Any) -> None:
        began.append(time.process_time_ns())
        train_step(*arguments)

    trainer.pipeline.train_step = noted
    traffic = trainer.run().traffic
    buckets = trainer.optimizer.buckets
    across = [one for name, one in traffic.items() if "_across_" in name]
    return {
        "cpu_ms": (began[-1] - began[WARM_UP]) / (len(began) - 1 - WARM_UP) / 1e6,
        "messages": sum(one.count for one in traffic.values()) / STEPS,
        "kb": sum(one.size_bytes for one in traffic.values()) / STEPS / 1e3,
        "kb_across_pods": sum(one.size_bytes for one in across) / STEPS / 1e3,
        "kb_gradients": sum(one.size_bytes for name, one in traffic.items() if name.startswith("dp_")) / STEPS / 1e3,
        "weights_kb": sum(bucket.weights.nbytes for bucket in buckets) / 1e3,
        "state_kb": sum(state.nbytes for bucket in buckets for state in bucket.state()) / 1e3,
        "saved_kb": _saved_bytes(trainer, config) / 1e3 if config.parallel.pp == 1 else 0.0,
    }


def _saved_bytes(trainer: Any, config: TrainConfig) -> int:
    """Bytes of the tensors that a micro-batch's forward saves for its backward, weights left out."""
    import torch

    (chunk,) = trainer.pipeline._chunks
    weights = {parameter.untyped_storage().data_ptr() for parameter in chunk.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.zeros(config.model.sequence, config.microbatch_sequences, dtype=torch.int64)
    assert config.train.recompute is Recompute.NONE
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = chunk.loss(chunk(tokens), tokens)
    assert loss.requires_grad
    return sum(saved.values())


def new_trainer(config: TrainConfig, recorder: Any = None) -> Any:
    """A trainer of this rank on the CPU, in an initialised world; recorded by nobody unless a recorder is given."""
    import torch

    from megascope.profiler.null import NullRecorder
    from megascope.trainer.loop import Trainer

    return Trainer(config, recorder or NullRecorder(), torch.device("cpu"))
