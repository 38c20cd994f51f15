"""Collectives and messages per step, counted and in bytes, against numbers derived from the configuration alone."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest

from megascope.trainer.config import Precision, TrainConfig
from megascope.trainer.loop import TrainResult
from support.training import run_config, small_config

STEPS = 3
Expected = dict[str, tuple[int, int]]
"""Segment to (operations, bytes) of one rank in one step."""


def expected_traffic(config: TrainConfig, stage: int) -> Expected:
    """What a rank of a pipeline stage sends and receives in one step.

    Per layer and micro-batch the serial block gathers and scatters twice forward and twice backward, the parallel
    block half of that. The embedding scatters forward and gathers backward, the output the other way round.
    """
    model, parallel, train = config.model, config.parallel, config.train
    tp, pp, dp, chunks = parallel.tp, parallel.pp, parallel.dp, parallel.chunks
    item = 2 if model.precision is Precision.BF16 else 4
    tokens = model.sequence * train.batch // (dp * train.microbatches)
    activation = tokens * model.width * item
    is_first, is_last = stage == 0, stage == pp - 1
    result: Expected = {"world_all_reduce": (1, 24)} if tp * pp * dp > 1 else {}
    if tp > 1:
        per_layer = 1 if model.parallel_block else 2
        ends = is_first + is_last
        each_way = train.microbatches * (per_layer * model.layers // pp * 2 + ends)
        result["tp_all_gather"] = result["tp_reduce_scatter"] = (each_way, each_way * activation)
        norms = _replicated_elements(config, stage)
        loss_bytes = train.microbatches * (tokens * 4 + 2 * tokens * 4) if is_last else 0
        loss_count = 2 * train.microbatches if is_last else 0
        norm_bytes = sum(math.ceil(elements / dp) * 4 for elements in norms)
        result["tp_all_reduce"] = (loss_count + chunks, loss_bytes + norm_bytes)
        if is_first or is_last:
            sequences = train.batch // dp
            result["tp_broadcast"] = (1, sequences * (model.sequence + 1) * 8)
    if dp > 1:
        sizes = [size for chunk in range(chunks) for size in _bucket_elements(config, chunk * pp + stage)]
        padded = [math.ceil(size / dp) * dp for size in sizes]
        result["dp_reduce_scatter"] = (len(padded), sum(padded) * 4)
        result["dp_all_gather"] = (len(padded), sum(padded) * item)
    below = chunks - is_first  # chunks of this rank that have a virtual stage before them
    above = chunks - is_last
    for segment, count in {
        "send_forward": above,
        "recv_backward": above,
        "recv_forward": below,
        "send_backward": below,
    }.items():
        if count and pp > 1:
            messages = count * train.microbatches
            result[segment] = (messages, messages * activation // tp)
    return result


def _replicated_elements(config: TrainConfig, stage: int) -> list[int]:
    """Elements of the norms of each chunk of a stage: scale and shift."""
    model, parallel = config.model, config.parallel
    layers = model.layers // (parallel.pp * parallel.chunks)
    norms = layers * (1 if model.parallel_block else 2)
    last = parallel.pp * parallel.chunks - 1
    return [2 * model.width * (norms + (chunk * parallel.pp + stage == last)) for chunk in range(parallel.chunks)]


def _bucket_elements(config: TrainConfig, virtual: int) -> list[int]:
    """Elements of every bucket of a virtual stage: matrices from the last to the first, then the norms."""
    model, parallel = config.model, config.parallel
    virtual_stages = parallel.pp * parallel.chunks
    square = model.width**2 // parallel.tp
    table = model.vocabulary * model.width // parallel.tp
    matrices = [table] if virtual == virtual_stages - 1 else []
    for _ in range(model.layers // virtual_stages):
        matrices += [model.feed_forward * square, model.feed_forward * square, square, 3 * square]
    matrices += [table] if virtual == 0 else []
    buckets, size = [], 0
    for matrix in matrices:
        size += matrix
        if size * 4 >= parallel.bucket_bytes:
            buckets.append(size)
            size = 0
    return [
        *buckets,
        *([size] if size else []),
        _replicated_elements(config, virtual % parallel.pp)[virtual // parallel.pp],
    ]


def measured_traffic(result: TrainResult) -> Expected:
    for segment, traffic in result.traffic.items():
        assert traffic.count % STEPS == 0, segment
        assert traffic.size_bytes % STEPS == 0, segment
    return {name: (t.count // STEPS, t.size_bytes // STEPS) for name, t in result.traffic.items()}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"tp": 2},
        {"tp": 2, "parallel_block": True, "precision": Precision.BF16},
        {"pp": 2, "dp": 2, "chunks": 2},
        {"tp": 2, "pp": 2, "dp": 2, "chunks": 2},
        {"tp": 2, "pp": 2, "parallel_block": True},
    ],
    ids=["single", "tp2", "tp2-parallel-bf16", "pp2-dp2-v2", "tp2-pp2-dp2-v2", "tp2-pp2-parallel"],
)
def test_traffic_equals_what_the_configuration_implies(layout: dict[str, Any]) -> None:
    config = small_config(steps=STEPS, **layout)
    topology = config.topology()
    for rank, result in enumerate(run_config(config)):
        stage = topology.coordinates(rank)["pp"]
        assert measured_traffic(result) == expected_traffic(config, stage), f"rank {rank}"


OUTSIDE_THE_FUNNEL = {
    "DeviceMesh", "ProcessGroup", "ReduceOp", "destroy_process_group", "device_mesh", "distributed_c10d", "get_rank",
    "get_world_size", "group", "init_device_mesh", "init_process_group", "is_initialized", "new_group",
}  # fmt: skip
"""What other modules may use of torch.distributed: it sets up, ends or names, and moves no tensor."""


def test_nothing_but_the_funnel_communicates() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((Path(__file__).parents[2] / "trainer").glob("*.py")):
        used = distributed_names(ast.parse(path.read_text()))
        if path.name != "comm.py":
            found[path.name] = used - OUTSIDE_THE_FUNNEL
        else:
            assert used >= {"all_reduce", "broadcast", "isend", "irecv"}
    assert len(found) > 15
    assert {name: used for name, used in found.items() if used} == {}


def distributed_names(tree: ast.Module) -> set[str]:
    """What a module takes from torch.distributed, by whatever name it imports it."""
    aliases, used = {"torch.distributed"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname for alias in node.names if alias.name == "torch.distributed" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "distributed"}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return used | {node.attr for node in attributes if ast.unparse(node.value) in aliases}


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist\ndist.barrier()",
        "import torch\ntorch.distributed.barrier()",
        "from torch import distributed as d\nd.barrier()",
        "from torch.distributed import barrier",
    ],
)
def test_a_collective_is_seen_by_whatever_name(source: str) -> None:
    assert "barrier" in distributed_names(ast.parse(source))


def test_evaluation_is_not_counted_as_training() -> None:
    train = {"eval_every": 2, "eval_batches": 1}
    config = small_config(steps=STEPS, tp=2, train=train)
    result = run_config(config)[0]
    assert list(result.eval_losses) == [1]
    assert measured_traffic(result) == expected_traffic(config, 0)
