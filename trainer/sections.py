"""The sections of the configuration that shape the computation: the model, its layout, and its optimization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token

AXES = ("pp", "dp", "tp")


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number, also as 1_000 or 0xff; the library's own conversion rounds 10.5."""
    try:
        return int(tokens[0].value, 0)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number.") from None


Whole = Annotated[int, Parameter(converter=_whole)]


BY_HOST, BY_RACK = "host", "rack"
"""The size of a pod that is to follow from the hosts, and from their racks."""


def _whole_or_place(kind: object, tokens: Sequence[Token]) -> int | str:
    return tokens[0].value if tokens[0].value in (BY_HOST, BY_RACK) else _whole(kind, tokens)


Pod = Annotated[int | Literal["host", "rack"], Parameter(converter=_whole_or_place)]


class Precision(StrEnum):
    """Number format of parameters and activations. Optimizer state is float32, float64 for fp64."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP64 = "fp64"


class Backend(StrEnum):
    """What carries communication: NCCL on GPUs and gloo on CPUs (auto), or gloo through the host's memory on both."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


class Optimizer(StrEnum):
    """How gradients become steps: AdamW, or LAMB, which scales each matrix's step to the matrix, for large batches."""

    ADAMW = "adamw"
    LAMB = "lamb"


class Recompute(StrEnum):
    """What a backward computes a second time: nothing, the attention's and activation's insides, or whole layers."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Order(StrEnum):
    """Order of a pipeline's forwards and backwards: alternating (interleaved with chunks), or all forwards first."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The decoder."""

    layers: Whole = 8
    "Decoder layers."
    width: Whole = 64
    "Width of the residual stream."
    heads: Whole = 4
    "Attention heads."
    feed_forward: Whole = 4
    "Inner width of the feed-forward part, in multiples of the width."
    vocabulary: Whole = 256
    "Tokens in the vocabulary; 256 suits bytes."
    sequence: Whole = 64
    "Tokens in a sequence."
    parallel_block: bool = False
    "Compute attention and feed-forward from the same input, with half the tensor-parallel communication."
    window: Whole | None = None
    "Sliding attention window in tokens; all earlier tokens if absent."
    tied: bool = False
    "Use one matrix as embedding and as output; where two stages hold it, they add up its gradients."
    dropout: float = 0.0
    "Share of the activations that is dropped after the embedding and on every branch, the same ones in any layout."
    rotary_base: float = 10000.0
    "Base of the rotary position angles."
    init_std: float = 0.02
    "Standard deviation of the initial weights."
    precision: Precision = Precision.FP32
    "Number format of parameters and activations."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the model and the batch are laid out over processes."""

    tp: Whole = 1
    "Tensor-parallel ranks, with the sequence split too."
    pp: Whole = 1
    "Pipeline stages."
    dp: Whole = 1
    "Data-parallel replicas, which share the optimizer's state."
    zero: Whole = 1
    "What replicas share: 1 the optimizer's state, 2 gradients too, 3 weights too (gathered chunk by chunk)."
    chunks: Whole = 1
    "Virtual stages on each pipeline rank (interleaved 1F1B above 1)."
    schedule: Order = Order.ONE_F_ONE_B
    "1f1b, or gpipe, which keeps the activations of all micro-batches."
    stage_layers: tuple[Whole, ...] = ()
    "Layers of each virtual stage, in the model's order; equal parts if absent."
    order: tuple[str, ...] = AXES
    "Axes from the outermost to the innermost, whose ranks are neighbours."
    recv_ahead: Whole = 2
    "Compute actions ahead of their use at which receives are posted."
    overlap: bool = True
    "Run data-parallel communication beside other work; if not, both of the next two are off as well."
    overlap_gather: bool = True
    "Gather weights while the next batch is loaded and the chunks before are computed (ZeRO-3: beside compute)."
    overlap_reduce: bool = True
    "Reduce the gradients of a bucket as soon as a backward has filled it, while it goes on."
    overlap_p2p: bool = True
    "Send without waiting; if not, a send is waited for with the receive that follows it, and none is posted ahead."
    ring: bool = False
    "Cut the tensor-parallel collectives of layers into messages that travel while matrices are multiplied."
    pod: Pod = 0
    "Neighbouring replicas that first reduce gradients among themselves; host or rack: those that share it; 0: none."
    racks: Path | None = None
    "File of lines host,rack, for pods by rack, and to warn of pods that cross racks."
    bucket_bytes: Whole = 4 * 2**20
    "Gradient bytes that are reduced together."
    timeout_s: Whole = 600
    "Seconds after which torch gives up on a collective."
    backend: Annotated[Backend, Parameter(alias="--backend")] = Backend.AUTO
    "auto: NCCL on GPUs, gloo on CPUs; with gloo several ranks can share a GPU, through the host's memory."


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig:
    """Steps, batch and optimizer."""

    steps: Whole = 100
    "Optimizer steps in all, including those of earlier attempts."
    batch: Whole = 16
    "Sequences in a step, over the whole job."
    microbatches: Whole = 4
    "Micro-batches that each replica's part of the batch is cut into."
    recompute: Recompute = Recompute.NONE
    "none, selective or full: what is computed again in the backward and takes no memory until then."
    compile: bool = False
    "Compile attention and activation, which lie between collectives, with torch.compile; needs a C++ compiler."
    learning_rate: float = 1e-3
    "Peak learning rate."
    min_learning_rate: float = 1e-4
    "Learning rate at the end of the cosine."
    warmup_steps: Whole = 10
    "Steps over which the learning rate rises from zero."
    optimizer: Optimizer = Optimizer.ADAMW
    "adamw or lamb."
    weight_decay: float = 0.1
    "Decoupled weight decay of matrices."
    beta1: float = 0.9
    "Decay of the first moment."
    beta2: float = 0.95
    "Decay of the second moment."
    epsilon: float = 1e-8
    "What is added to the root of the second moment."
    clip: float = 1.0
    "Largest gradient norm over all parameters."
    clip_factor: float = 0.0
    "Clip at so many times the recent mean of gradient norms where that is less; 0 for `clip` alone."
    seed: Whole = 0
    "Seed of the initial weights and of the order of the data."
    gc_every: Whole = 100
    "Steps between collections of Python's garbage, on all ranks alike; 0 leaves them to each rank's own counters."
    log_every: Whole = 10
    "Steps between progress lines."
    eval_every: Whole = 0
    "Steps between evaluations; 0 for none."
    eval_batches: Whole = 2
    "Batches in an evaluation."
