"""The trainer on eight ranks beside the same model in one plain process and in torch-native parallelism of its layout.

CPU time is that of all ranks together: the machine is shared, and wall time on fewer cores than ranks says little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import report
from benchmarks.ranks import run_ranks
from megascope.trainer.config import DataConfig, ModelConfig, OptimizationConfig, ParallelConfig, TrainConfig

STEPS, WARM_UP = 8, 2
TIMEOUT_S = 240.0

CONFIG = TrainConfig(
    model=ModelConfig(layers=4, width=64, heads=4, sequence=64),
    parallel=ParallelConfig(tp=2, pp=2, dp=2, chunks=2, bucket_bytes=2**18, timeout_s=200),
    train=OptimizationConfig(steps=STEPS, batch=16, microbatches=4, warmup_steps=3, log_every=1000),
    data=DataConfig(limit_bytes=400_000),
)
EXPOSED = ("dp_", "recv_", "send_")
"""Segments that the switches overlap; tensor-parallel ones block either way."""


def ours(config: TrainConfig, spool: Path | None = None) -> dict[str, Any]:
    """One rank of the trainer: losses, CPU and wall ns of a step after the warm-up; recorded where there is a spool."""
    import torch
    import torch.distributed as dist

    from megascope.profiler.null import NullRecorder
    from megascope.profiler.opening import RecorderSettings, open_recorder
    from megascope.trainer.loop import Trainer

    rank, ranks = dist.get_rank(), dist.get_world_size()
    recorder: Any = NullRecorder()
    if spool is not None:
        recorder = open_recorder(RecorderSettings(run="b", attempt=0, rank=rank, world_size=ranks, spool=spool))
    trainer = Trainer(config, recorder, torch.device("cpu"))
    began: list[tuple[int, int]] = []
    train_step = trainer.pipeline.train_step

    def noted(*arguments: Any) -> None:
        began.append((time.process_time_ns(), time.monotonic_ns()))
        train_step(*arguments)

    trainer.pipeline.train_step = noted  # type: ignore[method-assign, assignment]
    result = trainer.run()
    steps = STEPS - 1 - WARM_UP
    cpu_ns, wall_ns = ((began[-1][side] - began[WARM_UP][side]) / steps for side in (0, 1))
    if spool is not None:
        recorder.close()
    return {"losses": result.losses, "cpu_ns": cpu_ns, "wall_ns": wall_ns}


def plain(config: TrainConfig) -> dict[str, Any]:
    """The model in one process and plain PyTorch, micro-batch by micro-batch."""
    import torch

    from benchmarks.trainer_plain import PlainStage, cross_entropy, make_adamw, open_batches, rows_of
    from megascope.trainer.optim import learning_rate

    train, model, batches = config.train, PlainStage(config, 0, 1), open_batches(config)
    optimizer = make_adamw(model.parameters(), config)
    losses, cpu_ns, wall_ns = [], 0, 0
    for step in range(train.steps):
        if step == WARM_UP:
            cpu_ns, wall_ns = time.process_time_ns(), time.monotonic_ns()
        total = 0.0
        for rows in rows_of(batches, step, 0, train.batch).chunk(train.microbatches):
            loss = cross_entropy(model(rows[:, :-1]), rows[:, 1:]) / train.microbatches
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    steps = STEPS - WARM_UP
    return {
        "losses": losses,
        "cpu_ns": (time.process_time_ns() - cpu_ns) / steps,
        "wall_ns": (time.monotonic_ns() - wall_ns) / steps,
    }


def native(config: TrainConfig) -> dict[str, Any]:
    """One rank of torch's own parts in the same layout."""
    from benchmarks.trainer_native import train_natively

    return train_natively(config, WARM_UP)


def exposed_ms(folder: Path, segments: tuple[str, ...] = EXPOSED) -> float:
    """Mean exposed wait of a rank and step in segments whose names begin so, after the warm-up."""
    from megascope.profiler.box.box import ABSENT_I64, BoxReader
    from megascope.profiler.box.metadata import MetadataKind, read_metadata

    totals = []
    for path in sorted(folder.rglob("*.box")):
        lines = [line for _, line in read_metadata(path.with_suffix(".meta.jsonl"))]
        names = {line["index"]: line["name"] for line in lines if line["kind"] == MetadataKind.SEGMENT}
        reader = BoxReader(path)
        total = 0
        for ring in range(reader.layout.rings):
            for record in reader.read_ring(ring, 0).records:
                is_late = WARM_UP <= record["step"] < STEPS and record["exposed_ns"] != ABSENT_I64
                if is_late and names[int(record["segment"])].startswith(segments):
                    total += int(record["exposed_ns"])
        reader.close()
        totals.append(total / 1e6 / (STEPS - WARM_UP))
    return statistics.fmean(totals)


def main() -> None:
    """Run all of them once and print the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=CONFIG.model.width, help="of the model")
    parser.add_argument("--sequence", type=int, default=CONFIG.model.sequence, help="tokens")
    parser.add_argument("--no-native", action="store_true", help="leave torch's own parts out")
    given = parser.parse_args()
    config = replace(CONFIG, model=replace(CONFIG.model, width=given.width, sequence=given.sequence))
    ranks, tokens = config.topology().world_size, config.train.batch * config.model.sequence
    own = run_ranks(ranks, lambda: ours(config), timeout_s=TIMEOUT_S)
    single = run_ranks(1, lambda: plain(config), timeout_s=TIMEOUT_S)[0]
    values: dict[str, Any] = {
        "ranks": ranks,
        "width": given.width,
        "tokens_per_step": tokens,
        "cpu_ms_per_step": _total_ms(own),
        "single_process_cpu_ms_per_step": single["cpu_ns"] / 1e6,
        "cpu_ratio_to_single_process": _total_ms(own) / (single["cpu_ns"] / 1e6),
        **speeds("", tokens, own),
        **speeds("single_process_", tokens, [single]),
        "largest_loss_difference": _difference(own[0]["losses"], single["losses"]),
        "exposed_wait_ms": _exposed_off_and_on(config),
    }
    if not given.no_native:
        other = run_ranks(ranks, lambda: native(config), timeout_s=TIMEOUT_S)
        values |= {
            "torch_native_cpu_ms_per_step": _total_ms(other),
            "torch_native_cpu_ratio": _total_ms(other) / _total_ms(own),
            **speeds("torch_native_", tokens, other),
            "torch_native_largest_loss_difference": _difference(other[-1]["losses"], single["losses"]),
        }
    report("trainer", values)


def speeds(name: str, tokens: int, ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Of a training whose steps have so many tokens, under names that begin so: wall time of a step in ms, tokens a

    second by the wall time of rank 0, and a second of processor time, of which all ranks together use so much.
    """
    return {
        f"{name}wall_ms_per_step": ranks[0]["wall_ns"] / 1e6,
        f"{name}tokens_per_second": tokens * 1e9 / ranks[0]["wall_ns"],
        f"{name}tokens_per_second_per_core": tokens * 1e3 / _total_ms(ranks),
    }


def _exposed_off_and_on(config: TrainConfig) -> dict[str, float]:
    exposed = {}
    blocking = replace(config, parallel=replace(config.parallel, overlap=False, recv_ahead=0))
    for name, chosen in (("off", blocking), ("on", config)):
        with TemporaryDirectory() as folder:
            ranks = config.topology().world_size
            run_ranks(ranks, lambda c=chosen, f=folder: ours(c, Path(f)), timeout_s=TIMEOUT_S)  # type: ignore[misc]
            exposed[name] = exposed_ms(Path(folder))
    return exposed


def _total_ms(results: list[dict[str, Any]]) -> float:
    return float(sum(result["cpu_ns"] for result in results)) / 1e6


def _difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
