"""The one place that knows how an optimizer holds its state: as pieces of the whole model, and copied to the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..flat import Bucket, ShardSlice
from ..model import ParameterSpec
from ..optim import ShardedOptimizer
from ..topology import Mesh
from .description import Piece
from .regions import Grid, Span, whole

STATES = ("master", "first_moment", "second_moment")
"""What `Bucket.state` gives, in its order. The parameters themselves are the masters, rounded."""

SMALL = "small"
"""State of the optimizer that all ranks have alike, whole: rank 0 saves it."""

_ALIGNMENT = 64


def format_of(tensor: Tensor) -> str:
    """torch's name of a tensor's number format, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def grid_of(spec: ParameterSpec) -> Grid:
    """How tensor parallelism cuts a parameter."""
    return Grid(tuple(spec.shape), spec.tp_dimension)


def small_state(optimizer: ShardedOptimizer) -> dict[str, Tensor]:
    """What is not of a parameter, by name."""
    return {"norm_history": optimizer.norm_history}


def own_spans(bucket: Bucket, tp_index: int, tp_size: int) -> list[tuple[str, slice, Span]]:
    """(parameter, place in the shard, place in the whole model) of all that this rank's shard of a bucket holds."""
    return [_placed(piece, tp_index, tp_size) for piece in bucket.slices]


def group_spans(bucket: Bucket, tp_index: int, tp_size: int) -> list[tuple[str, slice, Span]]:
    """The same, of the shards of the whole data-parallel group, one after the other."""
    found, begin = [], 0
    for spec, parameter in bucket.members:
        end = begin + parameter.numel()
        found.append(_placed(ShardSlice(spec, tuple(parameter.shape), begin, end, 0), tp_index, tp_size))
        begin = end
    return found


def _placed(piece: ShardSlice, tp_index: int, tp_size: int) -> tuple[str, slice, Span]:
    index, count = (0, 1) if piece.spec.tp_dimension is None else (tp_index, tp_size)
    span = Span(grid_of(piece.spec), index, count, piece.offset, piece.end - piece.start)
    return piece.spec.name, slice(piece.start, piece.end), span


_LEAST_COPIED = 2**27
"""Bytes that a thread is worth; of as many at once, C's copy writes past the caches, which is 1.4 times as quick."""


def _copy(target: Tensor, source: Tensor) -> None:
    """A plain memory copy: torch's own meets its threads after every tensor, which costs where cores are shared."""
    np.copyto(target.numpy(), source.numpy())


def _host_memory(size: int, *, is_pinned: bool) -> Tensor:
    """Bytes that have been touched, so that no page is new later; NumPy asks for large pages."""
    if is_pinned:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.zeros(size, np.uint8)).fill_(0)


def _storage(part: Tensor) -> int:
    return part.untyped_storage().data_ptr()


def _bytes_of(part: Tensor, size: int) -> Tensor:
    """As bytes: a tensor's memory from its first element on, ``size`` bytes of it."""
    begin = int(part.storage_offset()) * part.element_size()
    return torch.empty(0, dtype=torch.uint8, device=part.device).set_(part.untyped_storage(), begin, (size,), (1,))


def _joined(pairs: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
    """(place in the copy, bytes of the state): those that follow each other in both places are one."""
    first, place, size = None, 0, 0
    for begin, part in pairs:
        follows = first is not None and begin == place + size and part.data_ptr() == first.data_ptr() + size
        if first is not None and follows and _storage(part) == _storage(first):
            size += part.nbytes
            continue
        if first is not None:
            yield place, _bytes_of(first, size)
        first, place, size = part, begin, part.nbytes
    if first is not None:
        yield place, _bytes_of(first, size)


class HostCopy:
    """A rank's state in the host's memory, allocated once: training waits only while it is copied there.

    Of what several ranks have alike one keeps it: the first of the tensor-parallel group, the first stage, rank 0.
    """

    def __init__(self, optimizer: ShardedOptimizer, mesh: Mesh) -> None:
        tp_index, tp_size = mesh.index("tp"), mesh.size("tp")
        self._optimizer, self._is_first = optimizer, mesh.rank == 0
        self._chunks = [
            [
                bucket
                for bucket in flat.buckets
                if (tp_index == 0 or not bucket.is_replicated) and (mesh.index("pp") == 0 or bucket.copies == 1)
            ]
            for flat in optimizer.flats
        ]
        self._places: list[int] = []
        end, after = 0, -1
        for part in self._parts():
            follows = part.data_ptr() == after
            self._places.append(end if follows else -(-end // _ALIGNMENT) * _ALIGNMENT)
            end, after = self._places[-1] + part.nbytes, part.data_ptr() + part.nbytes
        self._is_device = any(part.is_cuda for part in self._parts())
        self._host = _host_memory(end, is_pinned=self._is_device)
        self._threads = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="checkpoint-copy")
        self._pieces = list(self._described(tp_index, tp_size))

    @property
    def size_bytes(self) -> int:
        """Host memory that it takes."""
        return self._host.numel()

    def take(self) -> Any:
        """Copy the state; on a device without waiting, until the event that is returned (None on a CPU)."""
        runs = [
            (self._host[begin : begin + len(source)], source)
            for begin, source in _joined(zip(self._places, self._parts(), strict=True))
        ]
        if not self._is_device:
            pairs = list[tuple[Tensor, Tensor]]()
            for target, source in runs:
                count = max(1, min(torch.get_num_threads(), len(source) // _LEAST_COPIED))
                pairs += zip(target.chunk(count), source.chunk(count), strict=True)
            list(self._threads.map(lambda pair: _copy(*pair), pairs))
            return None
        for target, source in runs:
            target.copy_(source, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return ready

    def is_finite(self) -> bool:
        """Whether no number that was copied is infinite or NaN: one pass over it, by one thread, without a copy."""
        with np.errstate(invalid="ignore"):
            return all(
                bool(np.isfinite([numbers.min(), numbers.max()]).all())  # a NaN is both
                for numbers in map(self._numbers, self._pieces)
                if numbers.size
            )

    def _numbers(self, placed: tuple[Piece, int, int]) -> Any:
        piece, begin, end = placed
        return self._host[begin:end].view(getattr(torch, piece.dtype)).numpy()

    def pieces(self) -> list[tuple[Piece, memoryview]]:
        """What was copied, with its place in the whole model."""
        content = memoryview(self._host.numpy().data)
        return [(piece, content[begin:end]) for piece, begin, end in self._pieces]

    def _parts(self) -> list[Tensor]:
        small = list(small_state(self._optimizer).values()) if self._is_first else []
        return [*small, *(bucket.state()[number] for _, number, bucket in self._states())]

    def _states(self) -> Iterator[tuple[str, int, Bucket]]:
        """(state, its number, bucket), in the order in which they lie in memory."""
        for buckets in self._chunks:
            for number, state in enumerate(STATES):
                yield from ((state, number, bucket) for bucket in buckets)

    def _described(self, tp_index: int, tp_size: int) -> Iterator[tuple[Piece, int, int]]:
        places = iter(self._places)
        for name, part in small_state(self._optimizer).items() if self._is_first else ():
            begin = next(places)
            yield Piece(name, SMALL, format_of(part), whole(Grid(tuple(part.shape), None))), begin, begin + part.nbytes
        for state, number, bucket in self._states():
            first, part = next(places), bucket.state()[number]
            for name, where, span in own_spans(bucket, tp_index, tp_size):
                begin, end = (first + place * part.element_size() for place in (where.start, where.stop))
                yield Piece(name, state, format_of(part), span), begin, end
