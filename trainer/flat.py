"""The flat buffers of a model chunk: its buckets, reduced one by one as a backward fills them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .bucket import Bucket, Member, ShardSlice, shard_elements
from .hierarchy import Replicas
from .model import ModelChunk
from .sections import ParallelConfig

__all__ = ["Bucket", "FlatChunk", "Member", "ShardSlice"]

REDUCED_AT_ONCE = 2
"""Buckets on their way where whole gradients are not kept: they bound the memory of gradients."""


class FlatChunk:
    """The buckets of one chunk, in the order in which a backward fills them.

    With ``zero`` 1 the last backward of a step is armed, and reduces what it completes; from 2 on every backward. The
    state of all buckets is one piece of memory, so that a checkpoint copies it at the speed of memory. Without
    ``overlap_reduce`` buckets are reduced one after another when the backward is done, and without ``overlap_gather``
    weights are waited for where they are sent off.
    """

    def __init__(self, chunk: ModelChunk, channel: Replicas, state: torch.dtype, parallel: ParallelConfig) -> None:
        self._overlap_gather = parallel.overlap and parallel.overlap_gather
        self._overlap_reduce = parallel.overlap and parallel.overlap_reduce
        self._is_armed = False
        self._reducing: deque[Bucket] = deque()
        parameters = dict(chunk.named_parameters())
        members = [(spec, parameters[spec.name]) for spec in reversed(chunk.specs)]
        whole = [member for member in members if member[0].tp_dimension is None]
        tied = [member for member in members if member[0].copies > 1]
        split = [member for member in members if member[0].tp_dimension is not None and member[0].copies == 1]
        runs = [*_cut(split, parallel.bucket_bytes // state.itemsize), *([tied] if tied else [])]
        runs.append(whole)
        sizes = [shard_elements(run, channel.size) for run in runs]
        whole_state = torch.zeros(3, sum(sizes), dtype=state, device=members[0][1].device)
        states = torch.split(whole_state, sizes, dim=1)
        self.buckets = [
            Bucket(run, run is whole, channel, part, parallel.zero) for run, part in zip(runs, states, strict=True)
        ]
        self.zero = self.buckets[0].zero
        for number, bucket in enumerate(self.buckets):
            offset = 0
            for _, parameter in bucket.members:
                hook = self._hook(number, offset)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                offset += parameter.numel()
        self.release()

    @property
    def replicated(self) -> Bucket:
        """The bucket of the norms."""
        return self.buckets[-1]

    def _hook(self, number: int, offset: int) -> Callable[[Tensor], None]:
        """Called with a parameter that has got its gradient. It must not keep this chunk, which keeps the parameter:

        torch's part of that circle is one that the garbage collector does not see through.
        """
        own = weakref.ref(self)

        def after_gradient(parameter: Tensor) -> None:
            chunk = own()
            if chunk is not None:
                chunk._take(parameter, chunk.buckets[number], offset)

        return after_gradient

    def _take(self, parameter: Tensor, bucket: Bucket, offset: int) -> None:
        bucket.take(parameter, offset)
        if self._is_armed:
            bucket.pending -= 1
            if bucket.pending == 0 and self._overlap_reduce:
                self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        if bucket.reduce(wait=not self._overlap_reduce) and bucket.zero > 1:
            self._reducing.append(bucket)
            while len(self._reducing) > REDUCED_AT_ONCE or (self._reducing and self._reducing[0].is_reduced()):
                self._reducing.popleft().finish_reduce()

    def arm(self) -> None:
        """The backward that comes next completes gradients that are to be reduced."""
        self._is_armed = True
        if self.zero > 1:  # they are reduced once a micro-batch: those of the one before must be through
            self.finish_reduce()
        for bucket in self.buckets:
            bucket.pending = len(bucket.members)

    def reduce(self) -> None:
        """Reduce all buckets that the last backward has not sent off yet."""
        self._is_armed = False
        for bucket in self.buckets:
            self._reduce(bucket)

    def finish_reduce(self) -> None:
        """Wait for all reductions."""
        self._reducing.clear()
        for bucket in self.buckets:
            bucket.finish_reduce()

    def gather(self) -> None:
        """Send off the updated weights, those first that a forward needs first."""
        for bucket in reversed(self.buckets):
            bucket.gather(wait=not self._overlap_gather)

    def prefetch(self) -> None:
        """Begin to gather weights that are not there."""
        for bucket in reversed(self.buckets):
            if bucket.needs_gather():
                bucket.gather(wait=not self._overlap_gather)

    def acquire(self) -> None:
        """Wait until all weights are there and may be read."""
        self.prefetch()
        self.finish_gather()

    def finish_gather(self) -> None:
        """Wait for the weights that are on their way."""
        for bucket in reversed(self.buckets):
            bucket.finish_gather()

    def release(self) -> None:
        """The weights are not needed for now: with ``zero`` 3 they are freed."""
        for bucket in self.buckets:
            bucket.release()


def _cut(members: Iterable[Member], size: int) -> list[list[Member]]:
    """Cut into runs that hold at least ``size`` elements each, but for the last."""
    runs: list[list[Member]] = [[]]
    for member in members:
        if sum(parameter.numel() for _, parameter in runs[-1]) >= size:
            runs.append([])
        runs[-1].append(member)
    return [run for run in runs if run]
