"""Batches that depend on the step alone: any layout and any resumed run sees the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..profiler.errors import MegascopeError
from .comm import Channel
from .config import TrainConfig
from .corpus import Tokens
from .probe import Probe
from .topology import Mesh


class Split(IntEnum):
    """Which part of the text a batch comes from; the number takes part in drawing its places."""

    TRAIN = 0
    EVAL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where training is in the text: batch ``number`` begins at draw ``draw``, and each batch takes ``batch`` draws."""

    batch: int
    number: int = 0
    draw: int = 0

    def draw_of(self, number: int) -> int:
        """The first draw of a batch."""
        return self.draw + (number - self.number) * self.batch

    def going_on(self, number: int, batch: int) -> Position:
        """The position of a job with batches of another size that goes on with ``number``: no draw is left out."""
        return self if batch == self.batch else Position(batch=batch, number=number, draw=self.draw_of(number))


def splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64-bit numbers (Steele, Lea and Flood 2014): the same numbers everywhere, unlike a library's generator."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def check_length(tokens: int, config: TrainConfig) -> None:
    """Raise MegascopeError where a text of so many tokens has a part that is shorter than one sequence."""
    needed = [Split.TRAIN, *([Split.EVAL] if config.train.eval_every else [])]
    length = config.model.sequence + 1
    for split, (low, high) in _parts(tokens, config).items():
        if split in needed and high - low < length:
            use = "training" if split is Split.TRAIN else "evaluation"
            raise MegascopeError(
                f"The text has {high - low} tokens for {use}, fewer than one sequence of {length}: "
                "give a longer text, or change data.eval_share or model.sequence."
            )


def _parts(tokens: int, config: TrainConfig) -> dict[Split, tuple[int, int]]:
    """First token and end of both parts."""
    border = tokens - int(tokens * config.data.eval_share)
    return {Split.TRAIN: (0, border), Split.EVAL: (border, tokens)}


class Batches:
    """Draws sequences from a text. Its last ``eval_share`` is for evaluation, the rest for training.

    Raises MegascopeError where a part is shorter than one sequence.
    """

    def __init__(self, tokens: Tokens, config: TrainConfig) -> None:
        self._tokens = tokens
        self._length = config.model.sequence + 1
        self._seed, self.position = config.train.seed, Position(batch=config.train.batch)
        self._whole = Position(batch=config.train.batch)
        check_length(len(tokens), config)
        self._parts = _parts(len(tokens), config)

    def rows(self, split: Split, number: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Sequences first to last - 1 of batch ``number``: [last - first, sequence + 1] token ids."""
        low, high = self._parts[split]
        draw = (self.position if split is Split.TRAIN else self._whole).draw_of(number)
        counter = np.arange(draw + first, draw + last, dtype=np.uint64)
        stream = splitmix64(np.array([2 * self._seed + split], dtype=np.uint64))
        starts = low + (splitmix64(counter ^ stream) % np.uint64(high - low - self._length + 1)).astype(np.int64)
        places = starts[:, np.newaxis] + np.arange(self._length)
        rows: npt.NDArray[np.int64] = self._tokens[places].astype(np.int64)
        return rows


class Loader:
    """Gives a rank its replica's part of a batch: one tensor-parallel rank reads, its group gets it by broadcast.

    Only the first pipeline stage (inputs) and the last (targets) take part; on other ranks `load` returns None.
    """

    def __init__(self, config: TrainConfig, mesh: Mesh, tp: Channel, probe: Probe, batches: Batches | None) -> None:
        self._mesh, self._tp, self._probe, self._batches = mesh, tp, probe, batches
        self._sequences = config.train.batch // config.parallel.dp
        self._length = config.model.sequence + 1
        self.position = Position(batch=config.train.batch)

    def go_on(self, number: int, position: Position) -> None:
        """Continue at a checkpoint's position, with the batch of that number."""
        self.position = position.going_on(number, self.position.batch)
        if self._batches is not None:
            self._batches.position = self.position

    @staticmethod
    def takes_part(mesh: Mesh) -> bool:
        """Whether a rank needs data at all."""
        return mesh.index("pp") in (0, mesh.size("pp") - 1)

    @classmethod
    def reads(cls, mesh: Mesh) -> bool:
        """Whether a rank reads data itself."""
        return cls.takes_part(mesh) and mesh.index("tp") == 0

    def load(self, split: Split, number: int) -> Tensor | None:
        """[sequences of this replica, sequence + 1] token ids, on the device."""
        if not self.takes_part(self._mesh):
            return None
        device = self._tp.funnel.device
        with self._probe.span("data"):
            if self._batches is not None:
                with self._probe.span("data_read"):
                    first = self._mesh.index("dp") * self._sequences
                    rows = self._batches.rows(split, number, first, first + self._sequences)
                batch = torch.from_numpy(rows).to(device)
            else:
                batch = torch.empty((self._sequences, self._length), dtype=torch.int64, device=device)
            if self._tp.size > 1:
                self._tp.broadcast(batch)
        return batch
