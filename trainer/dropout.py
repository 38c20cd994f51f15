"""Dropout whose masks are a function of where an element stands in the whole batch, so that no layout changes them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..profiler.topology import stable_id

_INCREMENT, _FIRST, _SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Constants of `data.splitmix64` as signed numbers: torch's int64 wraps around as uint64 does."""


def mix(values: Tensor) -> Tensor:
    """`data.splitmix64` of int64 numbers, taken as unsigned ones."""
    values = values + _INCREMENT
    values = (values ^ _shift(values, 30)) * _FIRST
    values = (values ^ _shift(values, 27)) * _SECOND
    return values ^ _shift(values, 31)


def _shift(values: Tensor, bits: int) -> Tensor:
    """Shift right without the sign."""
    shifted: Tensor = (values >> bits) & (2 ** (64 - bits) - 1)
    return shifted


class Dropout:
    """Drops elements, each by a hash of (seed, step, site, sequence of the batch, position, channel).

    Ranks that hold the same element drop it alike, and others know nothing of each other: no generator has a state to
    be split, saved or restored, and what is computed a second time in the backward gets the same mask.
    """

    def __init__(self, rate: float, seed: int, sequence: int, width: int) -> None:
        self.rate, self._seed, self._sequence, self._width = rate, seed, sequence, width
        self._step = self._first_sequence = 0
        self._is_training = False

    def place(self, step: int, first_sequence: int, *, is_training: bool) -> None:
        """What is computed from now on: sequences ``first_sequence`` and on of a step's batch."""
        self._step, self._first_sequence, self._is_training = step, first_sequence, is_training

    def __call__(self, x: Tensor, site: str, first_position: int) -> Tensor:
        """Drop elements of [positions, batch, width], whose positions begin at ``first_position``, and scale the rest.

        Without training, or at a rate of 0, ``x`` itself.
        """
        if not self._is_training or self.rate == 0.0:
            return x
        return x * self.kept(x.shape, site, first_position, x.device) / (1 - self.rate)

    def kept(self, shape: torch.Size, site: str, first_position: int, device: torch.device) -> Tensor:
        """[positions, batch, width], True where an element is kept."""
        positions, batch, width = shape
        position = torch.arange(first_position, first_position + positions, device=device)
        sequence = torch.arange(self._first_sequence, self._first_sequence + batch, device=device)
        row = sequence.unsqueeze(0) * self._sequence + position.unsqueeze(1)
        number = row.unsqueeze(2) * self._width + torch.arange(width, device=device)
        key = stable_id("dropout", str(self._seed), str(self._step), site)
        return _shift(mix(number ^ key), 11) >= round(self.rate * 2**53)
