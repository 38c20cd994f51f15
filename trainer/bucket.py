"""A bucket: parameters whose gradients are reduced together, and this data-parallel rank's shard of their state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .handle import Handle
from .hierarchy import Chained, Replicas
from .model import ParameterSpec

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


def shard_elements(members: Sequence[Member], replicas: int) -> int:
    """Elements of one replica's shard of these parameters, which may end in padding."""
    return -(-sum(parameter.numel() for _, parameter in members) // replicas)


class Bucket:
    """Parameters that are reduced and gathered together, with this data-parallel rank's shard of their state.

    A replicated bucket holds what every tensor-parallel rank has whole, the norms: their gradients are partial
    sums over the parts of the sequence, and they take no weight decay. A tied bucket holds a matrix of which
    ``copies`` stages have a copy. ``zero`` is the stage of ZeRO (Rajbhandari et al. 2020): at 1 optimizer state is
    sharded; at 2 whole gradients exist from a backward until they are reduced, which adds to the shard; at 3 whole
    weights exist while they are used. ``states`` is where the shard's state lies: [3, `shard_elements`], zeros.
    """

    def __init__(
        self, members: Sequence[Member], is_replicated: bool, channel: Replicas, states: Tensor, zero: int = 1
    ) -> None:
        self.members, self.is_replicated, self.channel = members, is_replicated, channel
        self.zero = zero if channel.size > 1 else 1
        self.copies = members[0][0].copies
        first = members[0][1]
        self.shard_size = shard_elements(members, channel.size)
        self._padded = self.shard_size * channel.size
        self._state = state = states.dtype
        self.weights = torch.zeros(self._padded, dtype=first.dtype, device=first.device)
        self._weight_bytes = self.weights.untyped_storage().nbytes()
        self.gradients: Tensor | None = self._new_gradients() if self.zero == 1 else None
        self.is_accumulated_in_place = self.zero == 1 and first.dtype == state
        self.slices: list[ShardSlice] = []
        self._low = channel.index * self.shard_size
        self._adopt()
        own = slice(self._low, self._low + self.shard_size)
        self.gradient_shard = torch.zeros(self.shard_size, dtype=state, device=first.device)
        if channel.size == 1 and self.gradients is not None:
            self.gradient_shard = self.gradients
        self.master, self.first_moment, self.second_moment = states[0], states[1], states[2]
        self.master.copy_(self.weights[own])
        self.pending = 0
        self._reduction: Handle | Chained | None = None
        self._partial: Tensor | None = None
        self._gathering: Handle | Chained | None = None

    def _new_gradients(self) -> Tensor:
        return torch.zeros(self._padded, dtype=self._state, device=self.weights.device)

    def _adopt(self) -> None:
        """Make every parameter a view of the flat weights, and its gradient one of the flat gradients."""
        offset = 0
        for spec, parameter in self.members:
            size, shape = parameter.numel(), tuple(parameter.shape)
            self.weights[offset : offset + size].copy_(parameter.data.flatten())
            parameter.data = self.weights[offset : offset + size].view(shape)
            if self.is_accumulated_in_place and self.gradients is not None:
                parameter.grad = self.gradients[offset : offset + size].view(shape)
            start, end = max(offset, self._low), min(offset + size, self._low + self.shard_size)
            if start < end:
                self.slices.append(ShardSlice(spec, shape, start - self._low, end - self._low, start - offset))
            offset += size

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a checkpoint keeps of the shard: master weights, first and second moment."""
        return self.master, self.first_moment, self.second_moment

    # -- gradients ----------------------------------------------------------------------------------------------

    def take(self, parameter: nn.Parameter | Tensor, offset: int) -> None:
        """Add a parameter's gradient, which a backward has just made, to the flat gradients from ``offset`` on."""
        if self.is_accumulated_in_place or parameter.grad is None:
            return
        if self.gradients is None:
            self.gradients = self._new_gradients()
        self.gradients[offset : offset + parameter.numel()].view(parameter.shape).add_(parameter.grad)
        parameter.grad = None

    def reduce(self, *, wait: bool) -> bool:
        """Sum the gradients over the data-parallel ranks into this rank's shard; False where that is under way."""
        if self._reduction is not None or self.channel.size == 1 or self.gradients is None:
            return False
        target = self.gradient_shard
        if self.zero > 1:
            target = self._partial = torch.empty_like(self.gradient_shard)
        self._reduction = self.channel.reduce_scatter(target, self.gradients, wait=wait)
        return True

    def is_reduced(self) -> bool:
        """Whether `finish_reduce` would cost nothing."""
        return self._reduction is None or self._reduction.is_done()

    def finish_reduce(self) -> None:
        """Wait for the reduction; whole gradients that are not kept are freed."""
        if self._reduction is None:
            return
        self._reduction.wait()
        self._reduction = None
        if self._partial is not None:
            self.gradient_shard.add_(self._partial)
            self._partial = self.gradients = None

    def clear_gradients(self) -> None:
        """Begin a step's sum anew."""
        if self.zero > 1:
            self.gradient_shard.zero_()
        elif self.gradients is not None:
            self.gradients.zero_()

    # -- weights ------------------------------------------------------------------------------------------------

    def gather(self, *, wait: bool) -> None:
        """Give all data-parallel ranks the updated weights."""
        if self.channel.size == 1:
            self.weights.copy_(self.master)
            return
        storage = self.weights.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self._weight_bytes)
        self._gathering = self.channel.all_gather(self.weights, self.master.to(self.weights.dtype), wait=wait)

    def needs_gather(self) -> bool:
        """Whether the whole weights are neither there nor on their way."""
        return self._gathering is None and self.weights.untyped_storage().nbytes() == 0

    def finish_gather(self) -> None:
        """Wait until the weights may be read."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def release(self) -> None:
        """Free the whole weights where they are not kept: the next use gathers them from the masters again."""
        if self.zero == 3:
            self.finish_gather()
            self.weights.untyped_storage().resize_(0)
