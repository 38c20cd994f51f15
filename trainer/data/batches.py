"""Batches that depend on the step alone: any layout and any resumed run sees the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ...profiler.errors import MegascopeError
from ..config import Sampling, TrainConfig
from .shuffle import Words, shuffled, splitmix64
from .token_files import Tokens


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

    By epochs a part is cut into sequences, each of which comes once before one comes again, in an order of its own in
    every epoch; evaluation, which draws the same ones every time, takes random places. Raises MegascopeError where a
    part is shorter than one sequence.
    """

    def __init__(self, tokens: Tokens, config: TrainConfig) -> None:
        self._tokens = tokens
        self._length = config.model.sequence + 1
        self._seed, self.position = config.train.seed, Position(batch=config.train.batch)
        self._whole = Position(batch=config.train.batch)
        self._by_epochs = config.data.sampling is Sampling.EPOCHS
        check_length(len(tokens), config)
        self._parts = _parts(len(tokens), config)

    def rows(self, split: Split, number: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Sequences first to last - 1 of batch ``number``: [last - first, sequence + 1] token ids."""
        draw = (self.position if split is Split.TRAIN else self._whole).draw_of(number)
        draws = np.arange(draw + first, draw + last, dtype=np.uint64)
        starts = self._starts(split, draws, by_epochs=self._by_epochs and split is Split.TRAIN)
        places = starts[:, np.newaxis] + np.arange(self._length)
        rows: npt.NDArray[np.int64] = self._tokens[places].astype(np.int64)
        return rows

    def _starts(self, split: Split, draws: Words, *, by_epochs: bool) -> npt.NDArray[np.int64]:
        """Where the sequences of some draws begin. Neighbours share a token: the one's last target."""
        low, high = self._parts[split]
        stream = splitmix64(np.array([2 * self._seed + split], dtype=np.uint64))
        if not by_epochs:
            return low + (splitmix64(draws ^ stream) % np.uint64(high - low - self._length + 1)).astype(np.int64)
        sequence = self._length - 1
        count = (high - low - 1) // sequence
        epochs, places = np.divmod(draws, np.uint64(count))
        return low + sequence * shuffled(places, splitmix64(epochs ^ stream), count).astype(np.int64)
