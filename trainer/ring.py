"""Tensor-parallel collectives cut into a ring of messages, each of which travels while the next part is multiplied.

All-gather and multiply, multiply and reduce-scatter (MegaScale, Jiang et al. 2024, section 3.2): with n ranks each
takes n - 1 messages of one part of the sequence, the same bytes as the collective that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .comm import Channel
from .handle import Handle


@dataclass(frozen=True, slots=True)
class Ring:
    """A rank's place in the ring of its tensor-parallel group: a channel to the next rank, and one from the last."""

    index: int
    size: int
    to_next: Channel
    from_last: Channel

    def send(self, part: Tensor) -> Handle:
        """Send to the next rank, without waiting."""
        return self.to_next.send("send_ring", part, self._other(self.to_next))

    def recv(self, part: Tensor) -> Handle:
        """Receive from the last rank, without waiting."""
        return self.from_last.recv("recv_ring", part, self._other(self.from_last))

    @staticmethod
    def _other(channel: Channel) -> int:
        first, second = channel.ranks
        return second if channel.index == 0 else first


def ring_gather(own: Tensor, ring: Ring, use: Callable[[int, Tensor], None]) -> Tensor:
    """All parts, concatenated along the first dimension; ``use(number, part)`` is called while the next one travels."""
    own = own.contiguous()
    length = len(own)
    whole = own.new_empty((length * ring.size, *own.shape[1:]))
    whole[ring.index * length : (ring.index + 1) * length] = own
    parts = torch.split(whole, length)
    for turn in range(ring.size):
        number = (ring.index - turn) % ring.size
        if turn == ring.size - 1:
            use(number, parts[number])
            break
        handles = ring.recv(parts[(number - 1) % ring.size]), ring.send(parts[number])
        use(number, parts[number])
        for handle in handles:
            handle.wait()
    return whole


def ring_reduce(ring: Ring, make: Callable[[int], Tensor]) -> Tensor:
    """This rank's part of the sum over the group of what ``make(number)`` gives for every part.

    Each part is made while the sum of the one before travels.
    """
    total = make((ring.index - 1) % ring.size)
    for turn in range(1, ring.size):
        received = torch.empty_like(total)
        handles = ring.recv(received), ring.send(total)
        own = make((ring.index - 1 - turn) % ring.size)
        for handle in handles:
            handle.wait()
        total = received.add_(own)
    return total


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, -2)


class _GatherLinear(torch.autograd.Function):
    """Gather parts of the sequence and multiply the whole with each weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ring: Ring, *weights: Tensor) -> tuple[Tensor, ...]:
        length = len(x)
        outputs = [x.new_empty((length * ring.size, *x.shape[1:-1], len(weight))) for weight in weights]

        def use(number: int, part: Tensor) -> None:
            for output, weight in zip(outputs, weights, strict=True):
                output[number * length : (number + 1) * length] = torch.nn.functional.linear(part, weight)

        ctx.ring = ring
        ctx.save_for_backward(ring_gather(x, ring, use), *weights)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        ring: Ring = ctx.ring
        whole, *weights = ctx.saved_tensors
        length = len(whole) // ring.size

        def make(number: int) -> Tensor:
            part = slice(number * length, (number + 1) * length)
            return _sum([gradient[part] @ weight for gradient, weight in zip(gradients, weights, strict=True)])

        inputs = ring_reduce(ring, make)
        return inputs, None, *(_flat(gradient).t() @ _flat(whole) for gradient in gradients)


class _LinearScatter(torch.autograd.Function):
    """Multiply each input with its weight, add up, sum over the group and keep this rank's part of the sequence."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, count: int, *tensors: Tensor) -> Tensor:
        inputs, weights = tensors[:count], tensors[count:]
        length = len(inputs[0]) // ring.size

        def make(number: int) -> Tensor:
            part = slice(number * length, (number + 1) * length)
            return _sum([torch.nn.functional.linear(x[part], w) for x, w in zip(inputs, weights, strict=True)])

        ctx.ring, ctx.count = ring, count
        ctx.save_for_backward(*tensors)
        return ring_reduce(ring, make)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: recomputation gives them out a single time
        inputs, weights = saved[: ctx.count], saved[ctx.count :]
        results = [torch.empty_like(x) for x in inputs]
        length = len(gradients[0])

        def use(number: int, part: Tensor) -> None:
            for result, weight in zip(results, weights, strict=True):
                result[number * length : (number + 1) * length] = part @ weight

        whole = ring_gather(gradients[0], ctx.ring, use)
        return None, None, *results, *(_flat(whole).t() @ _flat(x) for x in inputs)


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total.add_(tensor)
    return total


def ring_gather_linear(x: Tensor, weights: Sequence[Tensor], ring: Ring) -> tuple[Tensor, ...]:
    """[sequence / tp, batch, in] to [sequence, batch, out] for each weight [out, in]."""
    result: tuple[Tensor, ...] = _GatherLinear.apply(x, ring, *weights)  # type: ignore[no-untyped-call]
    return result


def ring_linear_scatter(inputs: Sequence[Tensor], weights: Sequence[Tensor], ring: Ring) -> Tensor:
    """[sequence, batch, in] for each weight [out, in] to the sum's part [sequence / tp, batch, out]."""
    result: Tensor = _LinearScatter.apply(ring, len(inputs), *inputs, *weights)  # type: ignore[no-untyped-call]
    return result
