"""Flat buffers of a model chunk: gradients reduced bucket by bucket as they become ready, state sharded (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .comm import Channel
from .handle import Handle
from .model import ModelChunk, ParameterSpec

Member = tuple[ParameterSpec, nn.Parameter]


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """The part of one parameter that this rank's shard of a bucket holds.

    ``start`` and ``end`` are places in the shard; ``offset`` is where they begin in the flattened parameter, as
    far as this rank's tensor-parallel part of it goes. ``shape`` is the shape of that part.
    """

    spec: ParameterSpec
    shape: tuple[int, ...]
    start: int
    end: int
    offset: int


class Bucket:
    """Parameters that are reduced and gathered together, with this data-parallel rank's shard of their state.

    A replicated bucket holds what every tensor-parallel rank has whole, the norms: their gradients are partial
    sums over the parts of the sequence, and they take no weight decay.
    """

    def __init__(self, members: Sequence[Member], is_replicated: bool, channel: Channel, state: torch.dtype) -> None:
        self.members, self.is_replicated, self.channel = members, is_replicated, channel
        first = members[0][1]
        total = sum(parameter.numel() for _, parameter in members)
        self.shard_size = -(-total // channel.size)
        padded = self.shard_size * channel.size
        self.weights = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(padded, dtype=state, device=first.device)
        self.is_accumulated_in_place = first.dtype == state
        self.slices: list[ShardSlice] = []
        self._low = channel.index * self.shard_size
        self._adopt()
        own = slice(self._low, self._low + self.shard_size)
        self.gradient_shard = self.gradients if channel.size == 1 else self.gradients.new_zeros(self.shard_size)
        self.master = self.weights[own].to(state, copy=True)
        self.first_moment = torch.zeros_like(self.master)
        self.second_moment = torch.zeros_like(self.master)
        self.pending = 0
        self._reduction: Handle | None = None
        self._gathering: Handle | None = None

    def _adopt(self) -> None:
        """Make every parameter a view of the flat weights, and its gradient one of the flat gradients."""
        offset = 0
        for spec, parameter in self.members:
            size, shape = parameter.numel(), tuple(parameter.shape)
            self.weights[offset : offset + size].copy_(parameter.data.flatten())
            parameter.data = self.weights[offset : offset + size].view(shape)
            if self.is_accumulated_in_place:
                parameter.grad = self.gradients[offset : offset + size].view(shape)
            start, end = max(offset, self._low), min(offset + size, self._low + self.shard_size)
            if start < end:
                self.slices.append(ShardSlice(spec, shape, start - self._low, end - self._low, start - offset))
            offset += size

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a checkpoint keeps of the shard: master weights, first and second moment."""
        return self.master, self.first_moment, self.second_moment

    def reduce(self, *, wait: bool) -> None:
        """Sum the gradients over the data-parallel ranks into this rank's shard, once a step."""
        if self._reduction is None and self.channel.size > 1:
            self._reduction = self.channel.reduce_scatter(self.gradient_shard, self.gradients, wait=wait)

    def finish_reduce(self) -> None:
        """Wait for the reduction."""
        if self._reduction is not None:
            self._reduction.wait()
            self._reduction = None

    def gather(self, *, wait: bool) -> None:
        """Give all data-parallel ranks the updated weights."""
        if self.channel.size == 1:
            self.weights.copy_(self.master)
        else:
            self._gathering = self.channel.all_gather(self.weights, self.master.to(self.weights.dtype), wait=wait)

    def finish_gather(self) -> None:
        """Wait until the weights may be read."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None


class FlatChunk:
    """The buckets of one chunk, in the order in which a backward fills them."""

    def __init__(
        self, chunk: ModelChunk, channel: Channel, state: torch.dtype, bucket_bytes: int, *, overlap: bool
    ) -> None:
        self._overlap, self._is_armed = overlap, False
        parameters = dict(chunk.named_parameters())
        members = [(spec, parameters[spec.name]) for spec in reversed(chunk.specs)]
        split = [member for member in members if member[0].tp_dimension is not None]
        whole = [member for member in members if member[0].tp_dimension is None]
        self.buckets = [Bucket(part, False, channel, state) for part in _cut(split, bucket_bytes // state.itemsize)]
        self.buckets.append(Bucket(whole, True, channel, state))
        for bucket in self.buckets:
            for spec, parameter in bucket.members:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._hook(bucket, spec.name)
                )

    @property
    def replicated(self) -> Bucket:
        """The bucket of the norms."""
        return self.buckets[-1]

    def _hook(self, bucket: Bucket, name: str) -> Callable[[Tensor], None]:
        offset = 0
        for spec, parameter in bucket.members:
            if spec.name == name:
                target = bucket.gradients[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()

        def after_gradient(parameter: Tensor) -> None:
            if not bucket.is_accumulated_in_place and parameter.grad is not None:
                target.add_(parameter.grad)
                parameter.grad = None
            if self._is_armed:
                bucket.pending -= 1
                if bucket.pending == 0 and self._overlap:
                    bucket.reduce(wait=False)

        return after_gradient

    def arm(self) -> None:
        """The backward that comes next is the chunk's last of the step: reduce what it completes."""
        self._is_armed = True
        for bucket in self.buckets:
            bucket.pending = len(bucket.members)

    def reduce(self) -> None:
        """Reduce all buckets that the last backward has not sent off yet."""
        self._is_armed = False
        for bucket in self.buckets:
            bucket.reduce(wait=not self._overlap)

    def finish_reduce(self) -> None:
        """Wait for all reductions."""
        for bucket in self.buckets:
            bucket.finish_reduce()

    def gather(self) -> None:
        """Send off the updated weights, those first that a forward needs first."""
        for bucket in reversed(self.buckets):
            bucket.gather(wait=not self._overlap)

    def finish_gather(self) -> None:
        """Wait until all weights may be read."""
        for bucket in reversed(self.buckets):
            bucket.finish_gather()


def _cut(members: Iterable[Member], size: int) -> list[list[Member]]:
    """Cut into runs that hold at least ``size`` elements each, but for the last."""
    runs: list[list[Member]] = [[]]
    for member in members:
        if sum(parameter.numel() for _, parameter in runs[-1]) >= size:
            runs.append([])
        runs[-1].append(member)
    return [run for run in runs if run]
