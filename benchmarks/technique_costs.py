"""What the techniques around the steps do, measured: attention's memory, data read ahead, token files, garbage, start.

`python -m benchmarks.technique_costs [attention|projections|prefetch|tokens|garbage|start|microbatches ...]`: all
where none is named. Counts and bytes do not depend on the machine; CPU times hold on a busy one, and seconds hardly.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from benchmarks.machine import report
from benchmarks.ranks import run_ranks
from benchmarks.technique_data import prefetch, tokens
from benchmarks.technique_pairs import BASE, new_trainer, with_settings
from megascope.profiler.null import NullRecorder
from megascope.trainer.config import TrainConfig

TIMEOUT_S = 240.0
REPEATS = 5


# -- attention -----------------------------------------------------------------------------------------------------


def attention(sequences: tuple[int, ...] = (256, 512, 1024, 2048)) -> dict[str, Any]:
    """By length: bytes that one layer's attention keeps for its backward, and CPU ms of both passes: torch's fused one,

    which the trainer uses, and one that is written out, with its scores. One sequence, 4 heads of 64 channels.
    """
    result = {}
    for length in sequences:
        result[str(length)] = run_ranks(1, lambda n=length: _attention(n), timeout_s=TIMEOUT_S)[0]  # type: ignore[misc]
    return result


def _attention(sequence: int) -> dict[str, Any]:
    import torch

    functional = torch.nn.functional

    def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    def written_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        later = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        mixed: torch.Tensor = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        return mixed

    parts = [torch.randn(1, 4, sequence, 64, requires_grad=True) for _ in range(3)]
    result = {}
    for name, attend in (("fused", fused), ("written_out", written_out)):
        times = []
        for _ in range(REPEATS):
            began = time.process_time_ns()
            attend(*parts).sum().backward()  # type: ignore[no-untyped-call]
            times.append((time.process_time_ns() - began) / 1e6)
        kept = kept_bytes(lambda attend=attend: attend(*parts))  # type: ignore[misc]
        result[name] = {"kept_bytes": kept, "cpu_ms": round(statistics.median(times), 2)}
    return result


def kept_bytes(forward: Callable[[], Any]) -> int:
    """Bytes of all tensors that a forward keeps for its backward, its inputs among them."""
    import torch

    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    assert result.requires_grad
    return sum(kept.values())


def projections(width: int = 256, tokens: int = 512) -> dict[str, Any]:
    """CPU ms, forward and backward, of one multiplication for queries, keys and values, and of three: the median."""
    return run_ranks(1, lambda: _projections(width, tokens), timeout_s=TIMEOUT_S)[0]  # type: ignore[no-any-return]


def _projections(width: int, tokens: int) -> dict[str, float]:
    import torch

    inputs = torch.randn(tokens, width, requires_grad=True)
    whole = torch.randn(3 * width, width, requires_grad=True)
    parts = [torch.randn(width, width, requires_grad=True) for _ in range(3)]
    sides = {"one": [whole], "three": parts}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(20 * REPEATS):
        for name, matrices in sides.items():
            began = time.process_time_ns()
            torch.stack([(inputs @ each.T).sum() for each in matrices]).sum().backward()  # type: ignore[no-untyped-call]
            times[name].append((time.process_time_ns() - began) / 1e6)
    return {name: round(statistics.median(each), 3) for name, each in times.items()}


# -- garbage -------------------------------------------------------------------------------------------------------


def garbage(every: tuple[int, ...] = (0, 100), steps: int = 300) -> dict[str, Any]:
    """On two stages, by ``train.gc_every``: collections of a rank, steps in which only one of the two collects, and

    CPU ms that collections take in all, on the slower rank.
    """
    result = {}
    for number in every:
        settings = {"parallel.pp": 2, "train.steps": steps, "train.gc_every": number}
        config = with_settings(BASE, {**settings, "model.layers": 2, "model.width": 32})
        ranks = run_ranks(2, lambda c=config: _collections(c), timeout_s=TIMEOUT_S)  # type: ignore[misc]
        one, other = (set(rank["steps"]) for rank in ranks)
        result[str(number)] = {
            "collections": [len(rank["steps"]) for rank in ranks],
            "steps_of_one_rank_alone": len(one ^ other),
            "cpu_ms": round(max(rank["cpu_ms"] for rank in ranks), 2),
        }
    return result


def _collections(config: TrainConfig) -> dict[str, Any]:
    """Steps of this rank in which Python's collector ran, once for each time, and its CPU ms."""
    now, began, cpu_ns, steps = [-1], [0], [0], []

    class Noting(NullRecorder):
        def step(self, number: int) -> None:
            now[0] = number

        def end_step(self) -> None:
            now[0] = -1

    def note(phase: str, _: Mapping[str, int]) -> None:
        if now[0] >= 0 and phase == "start":
            began[0] = time.thread_time_ns()
        elif now[0] >= 0:
            steps.append(now[0])
            cpu_ns[0] += time.thread_time_ns() - began[0]

    trainer = new_trainer(config, Noting())
    gc.callbacks.append(note)
    trainer.run()
    gc.callbacks.remove(note)
    return {"steps": steps, "cpu_ms": cpu_ns[0] / 1e6}


# -- start ---------------------------------------------------------------------------------------------------------


def start(layout: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Without barriers, and with torch's after each group: barriers of all ranks, and seconds until all have their

    groups: the median of the repeats.
    """
    sizes = layout or {"tp": 2, "pp": 2, "dp": 2, "chunks": 2}
    config = with_settings(BASE, {f"parallel.{name}": size for name, size in sizes.items()})
    ranks = config.topology().world_size
    result = {}
    for name, setting in (("without", "0"), ("with", "1")):
        os.environ["TORCH_DIST_INIT_BARRIER"] = setting
        try:
            runs = [run_ranks(ranks, lambda: _begun(config), timeout_s=TIMEOUT_S) for _ in range(REPEATS)]
        finally:
            del os.environ["TORCH_DIST_INIT_BARRIER"]
        seconds = statistics.median(max(rank["seconds"] for rank in run) for run in runs)
        result[name] = {"barriers": runs[0][0]["barriers"], "seconds": round(seconds, 3)}
    return result


def _begun(config: TrainConfig) -> dict[str, Any]:
    import torch.distributed as dist

    barriers, original = [0], dist.distributed_c10d._store_based_barrier

    def counted(*arguments: Any, **named: Any) -> None:
        barriers[0] += 1
        original(*arguments, **named)

    dist.distributed_c10d._store_based_barrier = counted
    began = time.perf_counter()
    new_trainer(config)
    return {"barriers": barriers[0], "seconds": time.perf_counter() - began}


# -- micro-batches -------------------------------------------------------------------------------------------------


def microbatches(numbers: tuple[int, ...] = (16, 8, 4, 2, 1)) -> dict[str, Any]:
    """By ``train.microbatches``, of a batch of 16 on one process: CPU ms of a step and MB that a micro-batch keeps."""
    result = {}
    for number in numbers:
        config = with_settings(BASE, {"train.microbatches": number, "train.steps": 8})
        result[str(number)] = run_ranks(1, lambda c=config: _step(c), timeout_s=TIMEOUT_S)[0]  # type: ignore[misc]
    return result


def _step(config: TrainConfig) -> dict[str, float]:
    import torch

    began: list[int] = []

    class Noting(NullRecorder):
        def step(self, _: int) -> None:
            began.append(time.process_time_ns())

    trainer = new_trainer(config, Noting())
    trainer.run()
    (chunk,) = trainer.pipeline._chunks
    ids = torch.zeros(config.model.sequence, config.microbatch_sequences, dtype=torch.int64)
    weights = sum(bucket.weights.nbytes for bucket in trainer.optimizer.buckets)
    kept = kept_bytes(lambda: chunk.loss(chunk(ids), ids)) - weights
    times = [(later - before) / 1e6 for before, later in pairwise(began[1:])]
    return {"cpu_ms": round(statistics.median(times), 1), "kept_mb": round(kept / 1e6, 2)}


def main() -> None:
    """Measure what is named and print the JSON object."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "attention": attention, "prefetch": prefetch, "tokens": tokens, "garbage": garbage, "start": start,
        "microbatches": microbatches, "projections": projections,
    }  # fmt: skip
    chosen = sys.argv[1:] or list(parts)
    report("technique_costs", {name: parts[name]() for name in chosen})


if __name__ == "__main__":
    main()
