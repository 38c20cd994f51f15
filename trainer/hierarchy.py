"""Collectives over data-parallel ranks in two levels: inside a pod, and across pods between ranks of the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from .comm import Channel
from .handle import Handle


class Chained:
    """Two operations, of which the second begins when the first is done and somebody asks for the result."""

    def __init__(self, first: Handle, launch: Callable[[], Handle]) -> None:
        self._first: Handle | None = first
        self._launch = launch
        self._second: Handle | None = None

    def advance(self) -> None:
        """Wait for the first operation and issue the second; a second call does nothing."""
        if self._first is not None:
            self._first.wait()
            self._first, self._second = None, self._launch()

    def wait(self) -> None:
        """Wait until the result may be used."""
        self.advance()
        if self._second is not None:
            self._second.wait()

    def is_done(self) -> bool:
        """False: whoever acted on it would issue the second operation at another place of the program than others."""
        return False


class Hierarchy:
    """The interface of a `Channel` over all data-parallel ranks, of which ``inner.size`` at a time share a pod.

    A reduce-scatter inside the pod leaves 1 / inner.size of the data for the one across pods: the network between pods
    carries that much less than a ring over all ranks. ``index`` is which shard a rank gets: neighbours in a pod hold
    shards that are ``outer.size`` apart. The operation before one that is issued goes into its second phase then.
    """

    def __init__(self, inner: Channel, outer: Channel) -> None:
        self.inner, self.outer, self.funnel = inner, outer, inner.funnel
        self.size = inner.size * outer.size
        self.index = inner.index * outer.size + outer.index
        self._last: Chained | None = None

    def reduce_scatter(self, shard: Tensor, whole: Tensor, *, wait: bool = True) -> Chained:
        """Sum over all ranks and keep shard ``index`` of ``size``."""
        partial = whole.new_empty(len(whole) // self.inner.size)
        first = self.inner.reduce_scatter(partial, whole, wait=wait)
        return self._chain(first, lambda: self.outer.reduce_scatter(shard, partial, wait=wait), wait)

    def all_gather(self, output: Tensor, shard: Tensor, *, wait: bool = True) -> Chained:
        """Gather the shards in the order of their indices."""
        partial = output.new_empty(len(output) // self.inner.size)
        first = self.outer.all_gather(partial, shard, wait=wait)
        return self._chain(first, lambda: self.inner.all_gather(output, partial, wait=wait), wait)

    def all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        """Reduce in place and wait; for small tensors, which are not cut."""
        self.inner.all_reduce(tensor, operation)
        self.outer.all_reduce(tensor, operation)

    def broadcast(self, tensor: Tensor) -> None:
        """Send the tensor of the first rank to all others and wait."""
        self.outer.broadcast(tensor)
        self.inner.broadcast(tensor)

    def _chain(self, first: Handle, launch: Callable[[], Handle], wait: bool) -> Chained:
        if self._last is not None:
            self._last.advance()
        self._last = Chained(first, launch)
        if wait:
            self._last.wait()
        return self._last


Replicas = Channel | Hierarchy
"""What connects data-parallel ranks."""
