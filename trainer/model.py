"""The decoder, in chunks: the layers of one virtual pipeline stage, split over the tensor-parallel group.

One chunk on one rank is the whole model, which makes it the single-process reference of every other layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..profiler.topology import stable_id
from .attention import Attention
from .comm import Channel
from .config import ModelConfig, Precision
from .layers import VocabularyEmbedding, gather_sequence, scatter_sequence, vocabulary_cross_entropy

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP64: torch.float64}
LOSS_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.float32, Precision.FP64: torch.float64}
"""Logits, losses, gradients and the optimizer's state are never narrower than float32."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter of the whole model: its shape there, the dimension that tp splits, and how it begins.

    ``std`` None means a constant: one for scales, zero for shifts.
    """

    name: str
    shape: tuple[int, ...]
    tp_dimension: int | None
    std: float | None


def layer_specs(config: ModelConfig, layer: int) -> Iterator[ParameterSpec]:
    """Parameters of one layer, in the order in which the chunk holds them."""
    width, inner = config.width, config.width * config.feed_forward
    std, out_std = config.init_std, config.init_std / math.sqrt(2 * config.layers)
    prefix = f"layers.{layer}."
    for norm in ("norm",) if config.parallel_block else ("norm", "feed_norm"):
        yield ParameterSpec(f"{prefix}{norm}.weight", (width,), None, None)
        yield ParameterSpec(f"{prefix}{norm}.bias", (width,), None, None)
    yield ParameterSpec(f"{prefix}attention.qkv", (3 * width, width), 0, std)
    yield ParameterSpec(f"{prefix}attention.out", (width, width), 1, out_std)
    yield ParameterSpec(f"{prefix}feed.up", (inner, width), 0, std)
    yield ParameterSpec(f"{prefix}feed.down", (width, inner), 1, out_std)


def chunk_specs(config: ModelConfig, virtual_stage: int, virtual_stages: int) -> list[ParameterSpec]:
    """Parameters of one virtual stage, in forward order."""
    per_stage = config.layers // virtual_stages
    specs: list[ParameterSpec] = []
    if virtual_stage == 0:
        specs.append(ParameterSpec("embedding.weight", (config.vocabulary, config.width), 0, config.init_std))
    for layer in range(virtual_stage * per_stage, (virtual_stage + 1) * per_stage):
        specs += layer_specs(config, layer)
    if virtual_stage == virtual_stages - 1:
        specs.append(ParameterSpec("final_norm.weight", (config.width,), None, None))
        specs.append(ParameterSpec("final_norm.bias", (config.width,), None, None))
        specs.append(ParameterSpec("head", (config.vocabulary, config.width), 0, config.init_std))
    return specs


def initial_value(spec: ParameterSpec, seed: int) -> Tensor:
    """The whole parameter, float32, from the seed and its name alone: the same in every layout."""
    if spec.std is None:
        return torch.ones(spec.shape) if spec.name.endswith("weight") else torch.zeros(spec.shape)
    generator = torch.Generator().manual_seed(stable_id("parameter", str(seed), spec.name))
    return torch.empty(spec.shape).normal_(0.0, spec.std, generator=generator)


class FeedForward(nn.Module):
    """Two projections with a GELU between; the output is a partial sum over the tensor-parallel group."""

    def __init__(self, width: int, inner: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(inner, width, dtype=dtype, device=device))
        self.down = nn.Parameter(torch.empty(width, inner, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """[sequence, batch, width] to a partial sum of the same shape."""
        hidden = nn.functional.gelu(nn.functional.linear(x, self.up))
        return nn.functional.linear(hidden, self.down)


class Layer(nn.Module):
    """One pre-norm decoder layer. Its parallel form computes attention and feed-forward from one normalised input,

    with one gather and one scatter where the serial form needs two of each (PaLM, Chowdhery et al. 2022).
    """

    def __init__(self, config: ModelConfig, channel: Channel) -> None:
        super().__init__()
        dtype, device, split = DTYPES[config.precision], channel.funnel.device, channel.size
        head_width = config.width // config.heads
        self.channel = channel
        self.norm = nn.LayerNorm(config.width, dtype=dtype, device=device)
        self.feed_norm = None if config.parallel_block else nn.LayerNorm(config.width, dtype=dtype, device=device)
        self.attention = Attention(
            config.width, config.heads // split, head_width, config.window, config.rotary_base, dtype, device
        )
        self.feed = FeedForward(config.width, config.width * config.feed_forward // split, dtype, device)

    def forward(self, x: Tensor) -> Tensor:
        """[sequence / tp, batch, width] to the same."""
        whole = gather_sequence(self.norm(x), self.channel)
        if self.feed_norm is None:
            return x + scatter_sequence(self.attention(whole) + self.feed(whole), self.channel)
        x = x + scatter_sequence(self.attention(whole), self.channel)
        return x + scatter_sequence(self.feed(gather_sequence(self.feed_norm(x), self.channel)), self.channel)


class ModelChunk(nn.Module):
    """The layers of one virtual stage; the first also embeds, the last also computes the loss."""

    def __init__(self, config: ModelConfig, virtual_stage: int, virtual_stages: int, channel: Channel) -> None:
        super().__init__()
        self.is_first, self.is_last = virtual_stage == 0, virtual_stage == virtual_stages - 1
        self.specs = chunk_specs(config, virtual_stage, virtual_stages)
        self.channel = channel
        dtype, device = DTYPES[config.precision], channel.funnel.device
        self.loss_dtype = LOSS_DTYPES[config.precision]
        per_stage = config.layers // virtual_stages
        if self.is_first:
            self.embedding = VocabularyEmbedding(config.vocabulary, config.width, channel, dtype)
        numbers = range(virtual_stage * per_stage, (virtual_stage + 1) * per_stage)
        self.layers = nn.ModuleDict({str(number): Layer(config, channel) for number in numbers})
        if self.is_last:
            self.final_norm = nn.LayerNorm(config.width, dtype=dtype, device=device)
            rows = config.vocabulary // channel.size
            self.head = nn.Parameter(torch.empty(rows, config.width, dtype=dtype, device=device))

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Fill every parameter with this rank's part of its initial value."""
        parameters = dict(self.named_parameters())
        for spec in self.specs:
            value = initial_value(spec, seed)
            if spec.tp_dimension is not None:
                value = value.chunk(self.channel.size, spec.tp_dimension)[self.channel.index]
            parameters[spec.name].copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [sequence, batch] or activations [sequence / tp, batch, width] to activations."""
        if self.is_first:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The last virtual stage's activations and the targets [sequence, batch] to the mean loss, a scalar."""
        logits = nn.functional.linear(gather_sequence(self.final_norm(x), self.channel), self.head)
        return vocabulary_cross_entropy(logits.flatten(0, 1).to(self.loss_dtype), targets.flatten(), self.channel)
