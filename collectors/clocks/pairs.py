"""From the ends of shared operations to differences between the clocks of two hosts, as streams of samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_SAMPLES = 192
"""Samples of one stream in one window; beyond, they are thinned evenly over time."""


class Side(IntEnum):
    """What a rank did in an operation."""

    COLLECTIVE = 0
    SEND = 1
    RECEIVE = 2


@dataclass(frozen=True, slots=True)
class Ends:
    """Ends of shared operations, one row per operation and host, [N] each.

    ``operation`` is any number that the participants share; ``host`` an index (0 is the reference); ``end_ns`` is on
    the host's own clock; ``side`` one of `Side`; ``duration_ns`` as the host measured it.
    """

    operation: IntArray
    host: IntArray
    end_ns: IntArray
    side: IntArray
    duration_ns: IntArray

    def __len__(self) -> int:
        return len(self.operation)

    def chosen(self, rows: npt.NDArray[np.bool_] | IntArray) -> Ends:
        """Some of the rows."""
        return Ends(self.operation[rows], self.host[rows], self.end_ns[rows], self.side[rows], self.duration_ns[rows])


@dataclass(frozen=True, slots=True)
class Streams:
    """Samples of ``end of second - end of first`` by pair of hosts, first < second, and by direction.

    ``side`` is what the second host did. ``first``, ``second`` and ``side`` are [P]; the samples are [P, K], NaN where
    a stream has fewer: ``at_ns`` (when, after ``base_ns``, by the clock of the first host plus its given offset),
    ``difference_ns`` (after ``level_ns`` [P], a whole number, so that nothing is lost of seconds of skew), and
    ``shared_ns`` (the shorter of the two durations).
    """

    first: IntArray
    second: IntArray
    side: IntArray
    level_ns: IntArray
    at_ns: FloatArray
    difference_ns: FloatArray
    shared_ns: FloatArray


def pair_up(ends: Ends, base_ns: int, host_offset_ns: FloatArray | None = None) -> Streams:
    """Pair the hosts of every operation: each with the lowest of them, and each with its neighbour.

    ``host_offset_ns`` [N] are offsets of the rows' hosts at their ends, as far as they are known already: they only say
    when a sample was taken.
    """
    order = np.lexsort((ends.host, ends.operation))
    rows = ends.chosen(order)
    shift = np.zeros(len(rows)) if host_offset_ns is None else host_offset_ns[order]
    begins = np.flatnonzero(np.r_[True, rows.operation[1:] != rows.operation[:-1]]) if len(rows) else np.zeros(0, int)
    lowest = np.repeat(begins, np.diff(np.r_[begins, len(rows)]))
    here = np.arange(len(rows))
    to_lowest = here[here > lowest]
    to_neighbour = here[here > lowest + 1]  # the second's neighbour is the lowest
    one = np.r_[lowest[to_lowest], to_neighbour - 1]
    other = np.r_[to_lowest, to_neighbour]
    apart = rows.host[one] != rows.host[other]
    one, other = one[apart], other[apart]
    at = (rows.end_ns[one] - base_ns).astype(np.float64) + shift[one]
    shared = np.minimum(rows.duration_ns[one], rows.duration_ns[other]).astype(np.float64)
    difference = rows.end_ns[other] - rows.end_ns[one]
    return _padded(rows.host[one], rows.host[other], rows.side[other], at, difference, shared)


def _padded(
    first: IntArray, second: IntArray, side: IntArray, at: FloatArray, difference: IntArray, shared: FloatArray
) -> Streams:
    """Flat samples as rows of streams, thinned to `MAX_SAMPLES`."""
    order = np.lexsort((at, side, second, first))
    first, second, side = first[order], second[order], side[order]
    is_new = np.r_[True, (np.diff(first) != 0) | (np.diff(second) != 0) | (np.diff(side) != 0)][: len(first)]
    begins = np.flatnonzero(is_new)
    counts = np.diff(np.r_[begins, len(first)])
    width = int(min(counts.max(initial=0), MAX_SAMPLES))
    kept = np.minimum(counts, width)
    column = np.arange(width)[None, :]
    place = begins[:, None] + (column * counts[:, None]) // np.maximum(kept, 1)[:, None]
    is_there = column < kept[:, None]
    place = np.where(is_there, place, 0)
    level = difference[order][begins + counts // 2] if len(begins) else np.zeros(0, np.int64)

    def cells(values: FloatArray) -> FloatArray:
        return np.where(is_there, values[order][place], np.nan) if len(begins) else np.zeros((0, width))

    shown = (difference[order][place] - level[:, None]).astype(np.float64) if len(begins) else np.zeros((0, width))
    return Streams(
        first[begins], second[begins], side[begins], level, cells(at), np.where(is_there, shown, np.nan), cells(shared)
    )
