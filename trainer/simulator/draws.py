"""Random numbers of the simulation: seeded so that a step's do not depend on which other steps are simulated."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ...profiler.vocabulary import ActionKind
from ..schedule import COMPUTE
from .effects import FloatArray, IntArray
from .job import SimulatedJob
from .noise_fit import COMPLETION

_RECEIVES = (ActionKind.RECV_FORWARD, ActionKind.RECV_BACKWARD)

Draws = npt.NDArray[np.uint16]

SPAN_KINDS = ("forward", "backward", "p2p", "collective", COMPLETION)
"""Kinds of noise that single spans of a block have."""


class Purpose(IntEnum):
    """What random numbers are for; takes part in seeding them."""

    CHRONIC = 0
    PASSING = 1
    GATHER = 2
    REDUCE = 3
    NORM = 4
    BLOCK = 5
    GATHERED = 6
    REDUCED = 7
    EXIT = 8


def draw(job: SimulatedJob, index: IntArray, key: tuple[int, ...], shape: tuple[int, ...]) -> Draws:
    """Random numbers of each step, [S, *shape]: they depend on the seed, the step and the key alone."""
    count = int(np.prod(shape))
    result = np.empty((len(index), count), np.uint16)
    for row, step in zip(result, index, strict=True):
        generator = np.random.Generator(np.random.SFC64([job.seed, job.first_step + int(step) + 1, *key]))
        row[:] = np.frombuffer(generator.bytes(2 * count), np.uint16)
    return result.reshape(len(index), *shape)


class SpanDraws:
    """The random ratios of a block's spans: all numbers are drawn at once, [draws, T, S, G], and taken in order."""

    def __init__(self, job: SimulatedJob, index: IntArray, number: int, shape: tuple[int, int, int]) -> None:
        self._noise, self._next = job.noise, 0
        kinds = [action.kind for actions in job.schedule for action in actions]
        count = 2 * sum(kind in COMPUTE or kind in _RECEIVES for kind in kinds)
        width, steps, replicas = shape
        self._numbers = np.zeros((0, *shape), np.uint16)
        if any(job.noise.values(kind, "span") is not None for kind in SPAN_KINDS):
            self._numbers = np.empty((count, *shape), np.uint16)
            for column in range(steps):
                one = index[column : column + 1]
                drawn = draw(job, one, (Purpose.BLOCK, number), (count, width, replicas))
                self._numbers[:, :, column] = drawn[0]

    def later_ns(self) -> FloatArray:
        """By how much one end of the next operations sees them complete later than the other, [T, S, G]."""
        if self._noise.values(COMPLETION, "span") is None:
            return _ZERO
        later: FloatArray = np.rint(1e3 * self.ratios(COMPLETION))
        return later

    def ratios(self, kind: str) -> FloatArray:
        """Ratios of the next spans, [T, S, G]; ones without noise."""
        values = self._noise.values(kind, "span")
        if values is None:
            return _ONE
        self._next += 1
        ratios: FloatArray = values[self._numbers[self._next - 1]]
        return ratios


_ONE: FloatArray = np.ones((1, 1, 1))
_ZERO: FloatArray = np.zeros((1, 1, 1))
