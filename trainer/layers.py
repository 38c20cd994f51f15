"""Tensor- and sequence-parallel building blocks: sequence gather and scatter, vocabulary-parallel embedding and loss.

Activations are [sequence, batch, width]: the sequence is the first dimension, so that its shards are contiguous.
Outside the tensor-parallel regions a rank holds its own part of the sequence, [sequence / tp, batch, width].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .comm import Channel
from .ring import Ring, ring_gather_linear, ring_linear_scatter


def _gather(x: Tensor, channel: Channel) -> Tensor:
    output = x.new_empty((x.shape[0] * channel.size, *x.shape[1:]))
    channel.all_gather(output, x.contiguous())
    return output


def _scatter(x: Tensor, channel: Channel) -> Tensor:
    output = x.new_empty((x.shape[0] // channel.size, *x.shape[1:]))
    channel.reduce_scatter(output, x.contiguous())
    return output


class _GatherSequence(torch.autograd.Function):
    """Into a tensor-parallel region: all-gather forward, reduce-scatter backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return _gather(x, channel)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _scatter(gradients[0], ctx.channel), None


class _ScatterSequence(torch.autograd.Function):
    """Out of a tensor-parallel region: reduce-scatter of partial sums forward, all-gather backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return _scatter(x, channel)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _gather(gradients[0], ctx.channel), None


def gather_sequence(x: Tensor, channel: Channel) -> Tensor:
    """[sequence / tp, batch, width] to the whole sequence on every rank of the tensor-parallel group."""
    if channel.size == 1:
        return x
    result: Tensor = _GatherSequence.apply(x, channel)  # type: ignore[no-untyped-call]
    return result


def scatter_sequence(x: Tensor, channel: Channel) -> Tensor:
    """Sum the group's partial [sequence, batch, width] and keep this rank's part of the sequence."""
    if channel.size == 1:
        return x
    result: Tensor = _ScatterSequence.apply(x, channel)  # type: ignore[no-untyped-call]
    return result


def gather_linear(x: Tensor, weights: Sequence[Tensor], channel: Channel, ring: Ring | None) -> tuple[Tensor, ...]:
    """Into a tensor-parallel region: [sequence / tp, batch, in] to [sequence, batch, out] for each weight [out, in].

    With a ring the parts of the sequence are multiplied as they arrive.
    """
    if ring is not None:
        return ring_gather_linear(x, weights, ring)
    whole = gather_sequence(x, channel)
    return tuple(nn.functional.linear(whole, weight) for weight in weights)


def linear_scatter(inputs: Sequence[Tensor], weights: Sequence[Tensor], channel: Channel, ring: Ring | None) -> Tensor:
    """Out of a tensor-parallel region: the products of inputs [sequence, batch, in] and weights [out, in], summed over

    inputs and the group, this rank's part of the sequence. With a ring its parts travel while others are multiplied.
    """
    if ring is not None:
        return ring_linear_scatter(inputs, weights, ring)
    partial = nn.functional.linear(inputs[0], weights[0])
    for x, weight in zip(inputs[1:], weights[1:], strict=True):
        partial = partial + nn.functional.linear(x, weight)
    return scatter_sequence(partial, channel)


class VocabularyEmbedding(nn.Module):
    """Token embedding whose rows are split over the tensor-parallel group; gives this rank's part of the sequence."""

    def __init__(self, vocabulary: int, width: int, channel: Channel, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows = vocabulary // channel.size
        self.first_row = channel.index * self.rows
        self.channel = channel
        self.weight = nn.Parameter(torch.empty(self.rows, width, dtype=dtype, device=channel.funnel.device))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [sequence, batch] to [sequence / tp, batch, width]."""
        if self.channel.size == 1:
            return nn.functional.embedding(tokens, self.weight)
        row = tokens - self.first_row
        is_own = (row >= 0) & (row < self.rows)
        partial = nn.functional.embedding(row.where(is_own, 0), self.weight) * is_own.unsqueeze(-1)
        return scatter_sequence(partial, self.channel)


class _VocabularyCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits whose columns are split over a group: two small all-reduces, no gather.

    With m the largest logit and s the sum of exp(z - m) over the whole vocabulary, the loss of a token with target
    t is log s - (z_t - m), and its gradient is softmax(z) - onehot(t).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, channel: Channel) -> Tensor:
        columns = logits.shape[1]
        largest = logits.amax(dim=-1)
        if channel.size > 1:
            channel.all_reduce(largest, dist.ReduceOp.MAX)
        shifted = logits - largest.unsqueeze(-1)
        column = targets - channel.index * columns
        is_own = (column >= 0) & (column < columns)
        column = column.where(is_own, 0).unsqueeze(-1)
        target = shifted.gather(1, column).squeeze(1).where(is_own, 0.0)
        exponential = shifted.exp_()
        sums = torch.stack([exponential.sum(dim=-1), target])
        if channel.size > 1:
            channel.all_reduce(sums)
        ctx.save_for_backward(exponential, sums[0], is_own, column)
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        exponential, total, is_own, column = ctx.saved_tensors
        gradient = exponential / total.unsqueeze(-1)
        gradient.scatter_add_(1, column, -is_own.to(gradient.dtype).unsqueeze(-1))
        return gradient.mul_(gradients[0] / len(column)), None, None


def vocabulary_cross_entropy(logits: Tensor, targets: Tensor, channel: Channel) -> Tensor:
    """Mean loss, a scalar that is the same on every rank of the group.

    ``logits`` is [tokens, vocabulary / tp], float32 or float64; ``targets`` [tokens] holds ids of the whole vocabulary.
    """
    result: Tensor = _VocabularyCrossEntropy.apply(logits, targets, channel)  # type: ignore[no-untyped-call]
    return result
