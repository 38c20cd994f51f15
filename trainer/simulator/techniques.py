"""The techniques of large runs, each on or off, and what each changes in the costs of a simulated step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ...profiler.topology import Topology
from .config import BYTES, ClusterConfig, SimulatedModel, SimulationConfig, costs_of
from .costs import Costs
from .grid import Grid


class Technique(StrEnum):
    """What can be switched on, in the order in which published ablations add them."""

    PARALLEL_BLOCK = "parallel-block"
    WINDOW = "window"
    TP_OVERLAP = "tp-overlap"
    PP_OVERLAP = "pp-overlap"
    DP_OVERLAP = "dp-overlap"
    OPERATORS = "efficient-operators"
    DATA = "data-pipeline"
    LARGE_BATCH = "large-batch"


MEANING = {
    Technique.PARALLEL_BLOCK: "attention and feed-forward from one input: half as many tensor-parallel collectives",
    Technique.WINDOW: "attention over 4,096 tokens at most; sequences of 2,048 are shorter, so that nothing changes",
    Technique.TP_OVERLAP: "tensor-parallel collectives cut into as many pieces as ranks, beside the multiplication "
    "next to them: one piece stays exposed, and what is longer than the multiplication",
    Technique.PP_OVERLAP: "receives posted two actions ahead; off: posted when the stage is ready for them",
    Technique.DP_OVERLAP: "reduce-scatter and all-gather of each chunk beside compute; off: all of them after the last "
    "backward and before the first forward",
    Technique.OPERATORS: "attention scores are never written to memory",
    Technique.DATA: "data are loaded during the step before; off: each GPU's process reads for itself, one after the "
    "other",
    Technique.LARGE_BATCH: "four times as many micro-batches a step (LAMB)",
}

WINDOW = 4096
BATCH_FACTOR = 4

CLUSTER = ClusterConfig(
    peak_tflops=312.0,
    efficiency=0.849,
    nvlink_gbytes=200.0,
    nvlink_latency_us=3.0,
    network_gbits=191.0,
    network_latency_us=10.0,
    memory_gbytes=1118.0,
    data_ms=2.0,
)

COMPUTE_FACTOR = 1.183
"""How much longer compute takes in a job than the rates of single operations give: from one published point."""

ASSUMPTIONS = (
    "Peak 312 TFLOP/s (A100, bf16, data sheet); a multiplication reaches 84.9 % of it, as measured on a real A100 host "
    "(264.9 TFLOP/s).",
    "The rest of a layer is bound by memory: what it keeps for the backward, (34 + 5 a s / h) bytes per token and "
    "unit of width (Korthikanti et al. 2022, equation 1; a heads, s tokens, h width), is written and read once, and "
    "twice in the backward, at 1,118 GB/s, as measured there. With efficient operators the term with a is gone.",
    "The backward multiplies twice what the forward does, and computes attention once more (selective recomputation).",
    f"All compute takes {COMPUTE_FACTOR} times as long as these rates give: with it the 530B model without techniques "
    "on 2,240 GPUs has the 54.2 % that were published of it (Korthikanti et al. 2022, abstract). No other point is "
    "fitted. It stands for what is not told apart: launches of kernels, and multiplications that are small or cut.",
    "NVLink 200 GB/s, the bus bandwidth measured there for 64 MiB; network 191 Gb/s a GPU, as its network card reached "
    "there; latencies 3 and 10 microseconds; rings carry (n - 1) / n of the bytes.",
    "Sequences of 2,048 tokens, one in a micro-batch; interleaved 1F1B; ZeRO with float32 gradients reduced and bf16 "
    "weights gathered once a step; loading a step's data takes 2 ms.",
    "MFU counts 6 N + 12 L D S FLOPs a token (PaLM, appendix B), with the whole sequence also where a window is used.",
    "Left out: differences between machines, congestion, checkpoints, restarts, stragglers, and memory limits.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A step to simulate. ``serial_ns`` is added to its length; ``recv_ahead``, ``microbatches``: as the job has them.

    ``shards``: whether the engine walks the data-parallel communication.
    """

    costs: Costs
    microbatches: int
    recv_ahead: int
    serial_ns: float
    shards: bool


def work_of(
    model: SimulatedModel,
    heads: int,
    layout: Mapping[str, int],
    *,
    microbatches: int,
    chunks: int,
    on: Collection[Technique],
    cluster: ClusterConfig = CLUSTER,
) -> Work:
    """The step of a job with some of the techniques; ``layout`` maps axis to size, the outermost first."""
    used = replace(
        model,
        parallel_block=Technique.PARALLEL_BLOCK in on,
        window=WINDOW if Technique.WINDOW in on else None,
    )
    batches = microbatches * (BATCH_FACTOR if Technique.LARGE_BATCH in on else 1)
    readers = 0 if Technique.DATA in on else cluster.gpus_per_host
    config = SimulationConfig(model=used, cluster=replace(cluster, data_ms=cluster.data_ms * readers))
    costs = costs_of(config, layout, microbatches=batches, chunks=chunks)
    width = Grid.of(Topology.from_mapping(layout), cluster.gpus_per_host).width
    layers = used.layers // (layout.get("pp", 1) * chunks)
    costs = _with_memory(costs, used, heads, layers, width, cluster, scores=Technique.OPERATORS not in on)
    if Technique.TP_OVERLAP in on and width > 1:
        costs = replace(costs, tp_ns=_exposed_ns(costs, width))
    shards = Technique.DP_OVERLAP in on
    serial = 0.0 if shards else chunks * (costs.reduce_scatter_ns + costs.all_gather_ns)
    return Work(
        costs=costs, microbatches=batches, recv_ahead=2 if Technique.PP_OVERLAP in on else 0, serial_ns=serial,
        shards=shards,
    )  # fmt: skip


def _with_memory(
    costs: Costs, model: SimulatedModel, heads: int, layers: int, width: int, cluster: ClusterConfig, *, scores: bool
) -> Costs:
    """Costs whose compute also moves what it keeps for the backward, and computes attention once more there."""
    tokens, size = model.sequence, BYTES[model.precision] / 2
    kept = model.width * (34 + (5 * heads * model.sequence / model.width if scores else 0.0)) * size
    memory_ns = 2 * kept * tokens * layers / width / cluster.memory_gbytes
    attended = model.sequence if model.window is None else min(model.window, model.sequence)
    rate = cluster.peak_tflops * 1e3 * cluster.efficiency
    again_ns = 4 * attended * model.width * tokens * layers / width / rate
    return replace(
        costs,
        forward_ns=tuple(COMPUTE_FACTOR * (one + memory_ns) for one in costs.forward_ns),
        backward_ns=tuple(COMPUTE_FACTOR * (one + 2 * memory_ns + again_ns) for one in costs.backward_ns),
    )


def _exposed_ns(costs: Costs, width: int) -> float:
    """What of a tensor-parallel collective is waited for, when it runs beside the multiplication next to it."""
    beside = min(costs.forward_ns) / (2 * costs.tp_pairs)
    return max(costs.tp_ns / width, costs.tp_ns - beside)
