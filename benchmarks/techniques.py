"""What the trainer's techniques do, measured: bubbles, waits, memory of ZeRO and recomputation, losses.

`python -m benchmarks.techniques [bubbles|overlap|zero|recompute|pairs|quality|lamb|clip ...]`: all where none is named.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import report
from benchmarks.ranks import run_ranks
from benchmarks.technique_losses import clip, lamb, quality
from benchmarks.technique_pairs import pairs
from benchmarks.technique_waits import overlap
from megascope.trainer.config import (
    DataConfig,
    ModelConfig,
    OptimizationConfig,
    Order,
    ParallelConfig,
    Recompute,
    TrainConfig,
)

TIMEOUT_S = 240.0
FORWARD_S, BACKWARD_S = 0.1, 0.2
"""How long a stage pretends to compute a micro-batch: asleep, so that more stages than cores can, and so long that the
milliseconds in which a busy machine wakes a process up do not count."""

BASE = TrainConfig(
    model=ModelConfig(layers=4, width=64, heads=4, sequence=64),
    parallel=ParallelConfig(bucket_bytes=2**16, timeout_s=200),
    train=OptimizationConfig(steps=4, batch=16, microbatches=4, warmup_steps=2, log_every=1000),
    data=DataConfig(limit_bytes=2_000_000),
)


def _trainer(config: TrainConfig, recorder: Any = None) -> Any:
    import torch

    from megascope.profiler.null import NullRecorder
    from megascope.trainer.loop import Trainer

    return Trainer(config, recorder or NullRecorder(), torch.device("cpu"))


# -- bubbles -------------------------------------------------------------------------------------------------------


def bubbles() -> dict[str, Any]:
    """Idle over busy time of four stages that sleep in place of computing, beside the formula.

    Smallest, median and largest of the steps after the first.
    """
    from megascope.trainer.bubble import ideal_bubble

    result = {}
    for name, order, chunks, microbatches in (
        ("gpipe", Order.GPIPE, 1, 8),
        ("1f1b", Order.ONE_F_ONE_B, 1, 8),
        ("interleaved, 2 chunks", Order.ONE_F_ONE_B, 2, 8),
        ("1f1b, four times the micro-batches", Order.ONE_F_ONE_B, 1, 32),
    ):
        layers = 8
        config = replace(
            BASE,
            model=replace(BASE.model, layers=layers, width=8, heads=1, sequence=8),
            parallel=replace(BASE.parallel, pp=4, chunks=chunks, schedule=order),
            train=replace(BASE.train, batch=microbatches, microbatches=microbatches),
        )
        with TemporaryDirectory() as folder:
            kept = run_ranks(4, lambda c=config, f=folder: _asleep(c, Path(f)), timeout_s=TIMEOUT_S)  # type: ignore[misc]
            measured = _bubbles_of(Path(folder), config.train.steps)
        formula = ideal_bubble(4, chunks, microbatches)
        result[name] = {"formula": formula, "measured": measured, "kept_on_first_stage": kept[0]}
    return result


def _asleep(config: TrainConfig, spool: Path) -> int:
    """One rank that sleeps in place of computing; the most micro-batches whose activations it kept."""
    import torch
    import torch.distributed as dist

    from megascope.profiler.opening import RecorderSettings, open_recorder

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            time.sleep(FORWARD_S / config.parallel.chunks)
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:
            time.sleep(BACKWARD_S / config.parallel.chunks)
            return gradients[0]

    settings = RecorderSettings(run="b", attempt=0, rank=dist.get_rank(), world_size=dist.get_world_size(), spool=spool)
    recorder = open_recorder(settings)
    trainer = _trainer(config, recorder)
    most = 0
    for chunk in trainer.pipeline._chunks:

        def forward(x: Any, original: Any = chunk.forward) -> Any:
            nonlocal most
            most = max(most, len(trainer.pipeline._saved) + 1)
            return Sleep.apply(original(x))  # type: ignore[no-untyped-call]

        chunk.forward = forward
    trainer.run()
    recorder.close()
    return most


def _bubbles_of(spool: Path, steps: int) -> list[float]:
    """After the first step: (first forward to last backward) over mean busy time, less 1; least, median, most."""
    bubbles = []
    spans = [list(_compute_spans(path)) for path in sorted(spool.rglob("*.box"))]
    for step in range(1, steps):
        own = [[(begun, took) for number, begun, took in each if number == step] for each in spans]
        begun = min(start for each in own for start, _ in each)
        ended = max(start + took for each in own for start, took in each)
        bubbles.append((ended - begun) / statistics.fmean(sum(took for _, took in each) for each in own) - 1)
    return [round(value, 4) for value in (min(bubbles), statistics.median(bubbles), max(bubbles))]


def _compute_spans(path: Path) -> Iterator[tuple[int, int, int]]:
    """(step, begun, duration) of a rank's forwards and backwards."""
    from megascope.profiler.box.box import BoxReader
    from megascope.profiler.box.metadata import MetadataKind, read_metadata

    lines = [line for _, line in read_metadata(path.with_suffix(".meta.jsonl"))]
    names = {line["index"]: line["name"] for line in lines if line["kind"] == MetadataKind.SEGMENT}
    reader = BoxReader(path)
    for ring in range(reader.layout.rings):
        for record in reader.read_ring(ring, 0).records:
            if names[int(record["segment"])] in ("forward", "backward"):
                yield int(record["step"]), int(record["begun_ns"]), int(record["duration_ns"])
    reader.close()


# -- memory --------------------------------------------------------------------------------------------------------


def live_bytes() -> int:
    """Bytes of all tensors that exist in this process."""
    import torch

    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def zero() -> dict[str, Any]:
    """Per stage of ZeRO, at dp 4 and two chunks on each of two stages: bytes of a rank's tensors between steps and the

    most bytes of whole gradients, and how often gradients and weights travel in a step.
    """
    result = {}
    for stage in (1, 2, 3):
        config = replace(BASE, parallel=replace(BASE.parallel, pp=2, dp=4, chunks=2, zero=stage))
        result[str(stage)] = run_ranks(8, lambda c=config: _memory(c), timeout_s=TIMEOUT_S)[0]  # type: ignore[misc]
    return result


def _memory(config: TrainConfig) -> dict[str, Any]:
    before = live_bytes()
    trainer = _trainer(config)
    buckets = trainer.optimizer.buckets
    reduce_scatter, most = buckets[0].channel.reduce_scatter, 0

    def noted(*arguments: Any, **options: Any) -> Any:
        nonlocal most
        most = max(most, sum(bucket.gradients.nbytes for bucket in buckets if bucket.gradients is not None))
        return reduce_scatter(*arguments, **options)

    buckets[0].channel.reduce_scatter = noted
    traffic = trainer.run().traffic
    steps = config.train.steps
    return {
        "tensor_bytes": live_bytes() - before,
        "most_gradient_bytes": most,
        "reduce_scatter_bytes_per_step": traffic["dp_reduce_scatter"].size_bytes // steps,
        "all_gather_bytes_per_step": traffic["dp_all_gather"].size_bytes // steps,
    }


def recompute() -> dict[str, Any]:
    """Bytes that a micro-batch's forward keeps for its backward, and CPU time of both, in one process."""
    config = replace(BASE, model=replace(BASE.model, width=128, sequence=256), train=replace(BASE.train, batch=8))
    result = {}
    for kind in Recompute:
        chosen = replace(config, train=replace(config.train, recompute=kind))
        result[str(kind)] = run_ranks(1, lambda c=chosen: _kept(c), timeout_s=TIMEOUT_S)[0]  # type: ignore[misc]
    return result


def _kept(config: TrainConfig) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    (chunk,) = _trainer(config).pipeline._chunks
    tokens = torch.zeros(config.model.sequence, config.microbatch_sequences, dtype=torch.int64)
    times = []
    for _ in range(12):
        start = time.process_time_ns()
        chunk.loss(chunk(tokens), tokens).backward()
        times.append(time.process_time_ns() - start)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        loss = chunk.loss(chunk(tokens), tokens)
    assert loss.requires_grad
    kept = sum(event.self_cpu_memory_usage for event in profiled.key_averages())
    return {"kept_bytes": kept, "cpu_ms": statistics.median(times[2:]) / 1e6}


def main() -> None:
    """Measure what is named and print the JSON object."""
    parts = {"bubbles": bubbles, "overlap": overlap, "zero": zero, "recompute": recompute, "pairs": pairs}
    parts |= {"quality": quality, "lamb": lamb, "clip": clip}
    chosen = sys.argv[1:] or list(parts)
    report("techniques", {name: parts[name]() for name in chosen})


if __name__ == "__main__":
    main()
