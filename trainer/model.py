"""The decoder, in chunks: the layers of one virtual pipeline stage, split over the tensor-parallel group.

One chunk on one rank is the whole model, which makes it the single-process reference of every other layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..profiler.topology import stable_id
from .attention import Attention
from .comm import Channel
from .config import ModelConfig, Precision, Recompute
from .dropout import Dropout
from .layers import VocabularyEmbedding, gather_linear, gather_sequence, linear_scatter, vocabulary_cross_entropy
from .ring import Ring

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP64: torch.float64}
LOSS_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.float32, Precision.FP64: torch.float64}
"""Logits, losses, gradients and the optimizer's state are never narrower than float32."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter of the whole model: its shape there, the dimension that tp splits, and how it begins.

    ``std`` None means a constant: one for scales, zero for shifts. ``copies``: virtual stages that hold it, each with
    a part of its gradient.
    """

    name: str
    shape: tuple[int, ...]
    tp_dimension: int | None
    std: float | None
    copies: int = 1


def layer_numbers(layers: int, virtual_stage: int, virtual_stages: int, stage_layers: Sequence[int] = ()) -> range:
    """Layers of one virtual stage. ``stage_layers`` has the number of each virtual stage; equal parts if empty."""
    counts = stage_layers or [layers // virtual_stages] * virtual_stages
    first = sum(counts[:virtual_stage])
    return range(first, first + counts[virtual_stage])


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


def chunk_specs(
    config: ModelConfig, virtual_stage: int, virtual_stages: int, stage_layers: Sequence[int] = ()
) -> list[ParameterSpec]:
    """Parameters of one virtual stage, in forward order.

    A tied embedding is also the last stage's output: both stages hold it, under one name.
    """
    is_first, is_last = virtual_stage == 0, virtual_stage == virtual_stages - 1
    table = (config.vocabulary, config.width)
    copies = 2 if config.tied and virtual_stages > 1 else 1
    embedding = ParameterSpec("embedding.weight", table, 0, config.init_std, copies)
    specs = [embedding] if is_first else []
    for layer in layer_numbers(config.layers, virtual_stage, virtual_stages, stage_layers):
        specs += layer_specs(config, layer)
    if is_last:
        specs.append(ParameterSpec("final_norm.weight", (config.width,), None, None))
        specs.append(ParameterSpec("final_norm.bias", (config.width,), None, None))
        if not config.tied:
            specs.append(ParameterSpec("head", table, 0, config.init_std))
        elif not is_first:
            specs.append(embedding)
    return specs


def initial_value(spec: ParameterSpec, seed: int) -> Tensor:
    """The whole parameter, float32, from the seed and its name alone: the same in every layout."""
    if spec.std is None:
        return torch.ones(spec.shape) if spec.name.endswith("weight") else torch.zeros(spec.shape)
    generator = torch.Generator().manual_seed(stable_id("parameter", str(seed), spec.name))
    return torch.empty(spec.shape).normal_(0.0, spec.std, generator=generator)


class FeedForward(nn.Module):
    """Two projections, which the layer multiplies with, and the GELU between them."""

    def __init__(self, width: int, inner: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(inner, width, dtype=dtype, device=device))
        self.down = nn.Parameter(torch.empty(width, inner, dtype=dtype, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Any shape to the same."""
        return nn.functional.gelu(hidden)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the layers of a rank share: its tensor-parallel channel, and how they compute.

    ``ring``: with it, tensor-parallel collectives travel beside multiplications.
    """

    channel: Channel
    dropout: Dropout
    ring: Ring | None = None
    recompute: Recompute = Recompute.NONE


class Layer(nn.Module):
    """One pre-norm decoder layer. Its parallel form computes attention and feed-forward from one normalised input,

    with one gather and one scatter where the serial form needs two of each (PaLM, Chowdhery et al. 2022).
    """

    def __init__(self, config: ModelConfig, number: int, around: Surroundings) -> None:
        super().__init__()
        dtype, device, split = DTYPES[config.precision], around.channel.funnel.device, around.channel.size
        head_width = config.width // config.heads
        self.name, self._around = f"layers.{number}", around
        self.norm = nn.LayerNorm(config.width, dtype=dtype, device=device)
        self.feed_norm = None if config.parallel_block else nn.LayerNorm(config.width, dtype=dtype, device=device)
        self.attention = Attention(
            config.width, config.heads // split, head_width, config.window, config.rotary_base, dtype, device
        )
        self.feed = FeedForward(config.width, config.width * config.feed_forward // split, dtype, device)

    def forward(self, x: Tensor) -> Tensor:
        """[sequence / tp, batch, width] to the same."""
        if self.feed_norm is None:
            return x + self._branch(x, self.norm, (self.attention, self.feed), "block")
        x = x + self._branch(x, self.norm, (self.attention,), "attention")
        return x + self._branch(x, self.feed_norm, (self.feed,), "feed")

    def _branch(self, x: Tensor, norm: nn.Module, parts: Sequence[Attention | FeedForward], site: str) -> Tensor:
        """What attention, feed-forward or both add to this rank's part of the sequence."""
        around = self._around
        projected = gather_linear(norm(x), [_inputs(part) for part in parts], around.channel, around.ring)
        if around.recompute is Recompute.SELECTIVE and torch.is_grad_enabled():
            own: Tensor = recomputed(self._out, parts, *projected)
        else:
            own = self._out(parts, *projected)
        return around.dropout(own, f"{self.name}.{site}", around.channel.index * len(own))

    def _out(self, parts: Sequence[Attention | FeedForward], *projected: Tensor) -> Tensor:
        inner = [part(hidden) for part, hidden in zip(parts, projected, strict=True)]
        return linear_scatter(inner, [_outputs(part) for part in parts], self._around.channel, self._around.ring)


def _inputs(part: Attention | FeedForward) -> Tensor:
    return part.qkv if isinstance(part, Attention) else part.up


def _outputs(part: Attention | FeedForward) -> Tensor:
    return part.out if isinstance(part, Attention) else part.down


def recomputed(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call a function of which only the arguments are kept for the backward, which begins by calling it again.

    The second call stops where the last of its saved tensors is there: a multiplication at its end, and what comes
    after it, are not repeated. Dropout needs no generator's state: its masks depend on the place alone.
    """
    result: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


class ModelChunk(nn.Module):
    """The layers of one virtual stage; the first also embeds, the last also computes the loss."""

    def __init__(
        self,
        config: ModelConfig,
        virtual_stage: int,
        virtual_stages: int,
        around: Surroundings,
        stage_layers: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.is_first, self.is_last = virtual_stage == 0, virtual_stage == virtual_stages - 1
        self.specs = chunk_specs(config, virtual_stage, virtual_stages, stage_layers)
        self._around = around
        self.channel = channel = around.channel
        dtype, device = DTYPES[config.precision], channel.funnel.device
        self.loss_dtype = LOSS_DTYPES[config.precision]
        if self.is_first or (self.is_last and config.tied):
            self.embedding = VocabularyEmbedding(config.vocabulary, config.width, channel, dtype)
        numbers = layer_numbers(config.layers, virtual_stage, virtual_stages, stage_layers)
        self.layers = nn.ModuleDict({str(number): Layer(config, number, around) for number in numbers})
        self.head = None
        if self.is_last:
            self.final_norm = nn.LayerNorm(config.width, dtype=dtype, device=device)
            if not config.tied:
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

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Have torch.compile make what lies between the projections and the collectives of all layers."""
        for module in self.modules():
            if isinstance(module, (Attention, FeedForward)):
                module.compile(*arguments, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [sequence, batch] or activations [sequence / tp, batch, width] to activations."""
        if self.is_first:
            x = self.embedding(x)
            x = self._around.dropout(x, "embedding", self.channel.index * len(x))
        is_repeated = self._around.recompute is Recompute.FULL and torch.is_grad_enabled()
        for layer in self.layers.values():
            x = recomputed(layer, x) if is_repeated else layer(x)
        return x

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The last virtual stage's activations and the targets [sequence, batch] to the mean loss, a scalar."""
        table = self.embedding.weight if self.head is None else self.head
        logits = nn.functional.linear(gather_sequence(self.final_norm(x), self.channel), table)
        return vocabulary_cross_entropy(logits.flatten(0, 1).to(self.loss_dtype), targets.flatten(), self.channel)
