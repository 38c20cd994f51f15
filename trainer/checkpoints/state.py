"""The one place that knows how an optimizer holds its state: as pieces of the whole model, and copied to the host."""

from __future__ import annotations

from collections.abc import Iterator
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


def _copy(target: Tensor, source: Tensor) -> None:
    """A plain memory copy: torch's own meets its threads after every tensor, which costs where cores are shared."""
    np.copyto(target.numpy(), source.detach().view(torch.uint8).numpy())


class HostCopy:
    """A rank's state in the host's memory, allocated once: training waits only while it is copied there.

    Of what several ranks have alike one keeps it: the first of the tensor-parallel group, the first stage, rank 0.
    """

    def __init__(self, optimizer: ShardedOptimizer, mesh: Mesh) -> None:
        tp_index, tp_size = mesh.index("tp"), mesh.size("tp")
        self._optimizer, self._is_first = optimizer, mesh.rank == 0
        self._buckets = [
            bucket
            for bucket in optimizer.buckets
            if (tp_index == 0 or not bucket.is_replicated) and (mesh.index("pp") == 0 or bucket.copies == 1)
        ]
        self._places: list[tuple[int, int]] = []
        end = 0
        for part in self._parts():
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + part.numel() * part.element_size()
            self._places.append((begin, end))
        self._is_device = any(part.is_cuda for part in self._parts())
        self._host = torch.zeros(end, dtype=torch.uint8, pin_memory=self._is_device)  # zeros: no page is new later
        self._threads = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="checkpoint-copy")
        self._pieces = list(self._described(tp_index, tp_size))

    @property
    def size_bytes(self) -> int:
        """Host memory that it takes."""
        return self._host.numel()

    def take(self) -> Any:
        """Copy the state; on a device without waiting, until the event that is returned (None on a CPU)."""
        pairs = [(self._host[begin:end], part) for (begin, end), part in zip(self._places, self._parts(), strict=True)]
        if not self._is_device:
            list(self._threads.map(lambda pair: _copy(*pair), pairs))
            return None
        for target, part in pairs:
            target.view(part.dtype).copy_(part, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return ready

    def pieces(self) -> list[tuple[Piece, memoryview]]:
        """What was copied, with its place in the whole model."""
        content = memoryview(self._host.numpy().data)
        return [(piece, content[begin:end]) for piece, begin, end in self._pieces]

    def _parts(self) -> list[Tensor]:
        small = list(small_state(self._optimizer).values()) if self._is_first else []
        return [*small, *(part for bucket in self._buckets for part in bucket.state())]

    def _described(self, tp_index: int, tp_size: int) -> Iterator[tuple[Piece, int, int]]:
        places = iter(self._places)
        for name, part in small_state(self._optimizer).items() if self._is_first else ():
            yield Piece(name, SMALL, format_of(part), whole(Grid(tuple(part.shape), None))), *next(places)
        for bucket in self._buckets:
            spans = own_spans(bucket, tp_index, tp_size)
            for state, part in zip(STATES, bucket.state(), strict=True):
                (first, _), width = next(places), part.element_size()
                for name, where, span in spans:
                    begin, end = first + where.start * width, first + where.stop * width
                    yield Piece(name, state, format_of(part), span), begin, end
