"""The trainer's layout out of torch's own parts: DTensor tensor and sequence parallelism, FSDP2 and pipelining."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.trainer_plain import PlainStage, clip_, cross_entropy, make_adamw, open_batches, rows_of
from megascope.trainer.config import TrainConfig
from megascope.trainer.optim import learning_rate


def train_natively(config: TrainConfig, warm_up: int) -> dict[str, Any]:
    """One rank of the layout: losses of the last stage, CPU ns and wall ns of the steps after ``warm_up``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
    from torch.distributed.tensor.parallel import loss_parallel

    parallel, train = config.parallel, config.train
    mesh = init_device_mesh("cpu", (parallel.pp, parallel.dp, parallel.tp), mesh_dim_names=("pp", "dp", "tp"))
    stage, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    stages = parallel.pp * parallel.chunks
    modules = [_shard(PlainStage(config, number, stages), mesh) for number in range(stage, stages, parallel.pp)]
    group = mesh["pp"].get_group()
    pipeline: list[Any] = [
        PipelineStage(module, number, stages, torch.device("cpu"), group=group)
        for module, number in zip(modules, range(stage, stages, parallel.pp), strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(pipeline, train.microbatches, loss_fn=cross_entropy)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = make_adamw(parameters, config)
    batches, rows = open_batches(config), train.batch // parallel.dp
    losses: list[float] = []
    cpu_ns = wall_ns = 0
    for step in range(train.steps):
        if step == warm_up:
            cpu_ns, wall_ns = time.process_time_ns(), time.monotonic_ns()
        batch = rows_of(batches, step, replica * rows, (replica + 1) * rows)
        parts: list[Tensor] = []
        with loss_parallel() if parallel.tp > 1 else nullcontext():
            if stage == 0:
                schedule.step(batch[:, :-1])
            else:
                schedule.step(target=batch[:, 1:], losses=parts)
        clip_([_local(p.grad) for p in parameters if p.grad is not None], _norm(parameters, parallel.tp), train.clip)
        for settings in optimizer.param_groups:
            settings["lr"] = learning_rate(train, step)
        optimizer.step()
        optimizer.zero_grad()
        if parts:
            losses.append(float(torch.stack([_full(part) for part in parts]).mean()))
    steps = train.steps - warm_up
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.monotonic_ns() - wall_ns
    if losses:  # each replica knows its own part of the batch
        mean = torch.tensor(losses)
        dist.all_reduce(mean, group=mesh["dp"].get_group())
        losses = (mean / parallel.dp).tolist()
    return {"losses": losses, "cpu_ns": cpu_ns / steps, "wall_ns": wall_ns / steps}


def _shard(module: PlainStage, mesh: Any) -> PlainStage:
    """Tensor and sequence parallelism over tp, then FSDP2 over dp.

    The projections gather the sequence themselves, so that their inputs' gradients are scattered, not all-reduced.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    split, gathers, scatters = (
        Shard(1),
        ColwiseParallel(input_layouts=Shard(1)),
        RowwiseParallel(output_layouts=Shard(1)),
    )
    if mesh["tp"].size() > 1:
        plan: dict[str, Any] = {}
        for name in module.layers:
            plan |= {f"layers.{name}.{norm}": SequenceParallel(use_local_output=True) for norm in ("norm", "feed_norm")}
            plan |= {f"layers.{name}.{part}": gathers for part in ("attention.qkv", "feed.up")}
            plan |= {f"layers.{name}.{part}": scatters for part in ("attention.out", "feed.down")}
        if module.embedding is not None:
            plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=split)
        if module.head is not None:
            plan["final_norm"] = SequenceParallel(use_local_output=True)
            plan["head"] = ColwiseParallel(input_layouts=split, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(module, mesh["tp"], plan)
    for layer in module.layers.values():
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    return module


def _local(tensor: Any) -> Tensor:
    result: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return result


def _full(tensor: Any) -> Tensor:
    result: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result.detach()


def _norm(parameters: list[Any], tp: int) -> Tensor:
    """The gradients' norm over all ranks, in one all-reduce: what tp ranks hold alike counts once."""
    total = torch.zeros(1)
    for parameter in parameters:
        if parameter.grad is not None:
            square = torch.linalg.vector_norm(_local(parameter.grad)).square()
            total += square / (tp if parameter.dim() == 1 else 1)
    dist.all_reduce(total)
    return total.sqrt()
