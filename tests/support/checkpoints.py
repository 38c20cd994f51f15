"""Checkpoints of made-up numbers, written without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megascope.collectors.storage.durable import write_durably
from megascope.trainer.checkpoints.commit import Commit, model_of, write_commit
from megascope.trainer.checkpoints.description import Piece
from megascope.trainer.checkpoints.files import commit_path
from megascope.trainer.checkpoints.reading import Assembler, BlockReader, read_saved
from megascope.trainer.checkpoints.regions import Grid, Span, whole
from megascope.trainer.checkpoints.writing import ShardWriter, Written
from megascope.trainer.config import ModelConfig

Values = Mapping[str, npt.NDArray[np.float32]]
"""Tensors by parameter; each is of the state "master", and its first dimension is cut in two."""

RANKS = 2


def some_values(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Two tensors, of 24 and of 40 elements."""
    draw = np.random.default_rng(seed)
    shapes = {"first": (4, 6), "second": (10, 4)}
    return {name: draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def new_writers(folder: Path, *, whole_every: int = 1, block_bytes: int = 32) -> list[ShardWriter]:
    """The writers of two ranks."""
    return [ShardWriter(folder, rank, whole_every=whole_every, block_bytes=block_bytes) for rank in range(RANKS)]


def write_shards(writers: Sequence[ShardWriter], step: int, values: Values) -> list[Written]:
    """Let both ranks write their halves."""
    written = []
    for rank, writer in enumerate(writers):
        pieces = []
        for name, tensor in values.items():
            half = np.split(tensor, RANKS)[rank].copy()
            span = Span(Grid(tensor.shape, 0), rank, RANKS, 0, half.size)
            pieces.append((Piece(name, "master", "float32", span), memoryview(half.view(np.uint8).ravel().data)))
        written.append(writer.write(step, pieces, {}, lambda _: nullcontext()))
    return written


def commit_of(step: int, written: Sequence[Written], **changes: Any) -> Commit:
    """What a commit file says of them."""
    values: dict[str, Any] = {
        "step": step,
        "updates": step,
        "position": {"batch": 8, "number": 0, "draw": 0},
        "seed": 0,
        "created": "2030-01-01T00:00:00+00:00",
        "model": model_of(ModelConfig()),
        "layout": {"axes": [["pp", 1], ["dp", 1], ["tp", RANKS]], "chunks": 1},
        "bases": sorted(set().union(*(shard.bases for shard in written))),
        "size_bytes": sum(shard.size_bytes for shard in written),
        "state_bytes": sum(shard.state_bytes for shard in written),
        "descriptions": [shard.checksum for shard in written],
    }
    return Commit(**{**values, **changes})


def write_checkpoint(folder: Path, writers: Sequence[ShardWriter], step: int, values: Values) -> Commit:
    """A committed checkpoint of two ranks."""
    commit = commit_of(step, write_shards(writers, step, values))
    write_durably(commit_path(folder, step), lambda path: _fill(path, write_commit(commit)))
    return commit


def read_checkpoint(folder: Path, step: int, like: Values) -> dict[str, npt.NDArray[np.float32]]:
    """All tensors of a checkpoint, every block of which is checked."""
    saved = read_saved(folder, step)
    found = {}
    with BlockReader(folder) as reader:
        assembler = Assembler(saved, reader)
        for name, tensor in like.items():
            out = np.zeros(tensor.size, np.float32)
            assembler.fill(name, "master", whole(Grid(tensor.shape, 0)), "float32", out.view(np.uint32))
            found[name] = out.reshape(tensor.shape)
    return found


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
