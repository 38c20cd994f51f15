"""Questions to a replay: how long would steps take if some operations were ideal, or all but some?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..peers import FloatArray
from .measured import Ideal, Measured
from .replay import Durations, step_times

BoolArray = npt.NDArray[np.bool_]

ELEMENTS = 50_000
"""Scenarios x ranks of a stage x steps that are replayed at once, about: what fits in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Sets:
    """K sets of operations: those of the ranks in ``ranks`` [K, P, M, D] that are one of ``nodes`` [K, N]."""

    ranks: BoolArray
    nodes: BoolArray

    def __len__(self) -> int:
        return len(self.ranks)

    def part(self, chosen: slice) -> Sets:
        """Some of the sets."""
        return Sets(self.ranks[chosen], self.nodes[chosen])


def as_measured(measured: Measured) -> FloatArray:
    """Every operation as long as it was, [S]."""

    def shared(node: int) -> FloatArray:
        assert measured.shared is not None
        values: FloatArray = measured.shared[node][np.newaxis]
        return values

    result = step_times(
        measured.program,
        lambda node: measured.own[node][np.newaxis],
        None if measured.shared is None else shared,
    )
    lengths: FloatArray = np.broadcast_to(result[0], measured.steps.shape)
    return lengths


def all_ideal(measured: Measured, ideal: Ideal) -> float:
    """Every operation at its ideal: one length for all steps."""
    one = np.ones((1, 1, 1, 1))
    times = step_times(measured.program, lambda node: one * ideal.own[node], lambda node: one * ideal.shared[node])
    return float(times[0, 0])


def put_back(measured: Measured, ideal: Ideal, sets: Sets) -> FloatArray:
    """The operations of each set as measured, all others ideal, [K, S]."""
    return _mixed(measured, ideal, sets, inside=True)


def fixed(measured: Measured, ideal: Ideal, sets: Sets) -> FloatArray:
    """The operations of each set ideal, all others as measured, [K, S]."""
    return _mixed(measured, ideal, sets, inside=False)


def _mixed(measured: Measured, ideal: Ideal, sets: Sets, *, inside: bool) -> FloatArray:
    """``inside``: whether the operations in the sets are those as measured."""
    size = max(1, ELEMENTS // max(1, int(np.prod(measured.own.shape[1:]))))
    parts = [sets.part(slice(first, first + size)) for first in range(0, len(sets), size)]
    steps = len(measured.steps)
    found = [np.broadcast_to(_mixed_part(measured, ideal, part, inside), (len(part), steps)) for part in parts]
    return np.concatenate(found) if found else np.zeros((0, steps))


def _mixed_part(measured: Measured, ideal: Ideal, sets: Sets, inside: bool) -> FloatArray:
    nodes = measured.program.nodes

    def is_measured(node: int) -> BoolArray:
        chosen = sets.ranks[:, nodes[node].stage] & sets.nodes[:, node, np.newaxis, np.newaxis]
        result: BoolArray = (chosen if inside else ~chosen)[..., np.newaxis]
        return result

    def own(node: int) -> FloatArray:
        mixed: FloatArray = np.where(is_measured(node), measured.own[node], ideal.own[node])
        return mixed

    def shared(node: int) -> FloatArray:
        assert measured.shared is not None
        chosen = is_measured(node)
        whole = chosen.all(axis=1, keepdims=True) if inside else chosen.any(axis=1, keepdims=True)
        mixed: FloatArray = np.where(whole, measured.shared[node], ideal.shared[node])
        return mixed

    return step_times(measured.program, own, None if measured.shared is None else shared)


def replicas_put_back(measured: Measured, ideal: Ideal) -> FloatArray:
    """Each replica by itself as measured, all others ideal, [D, S].

    All ideal replicas are alike, so that one of them stands for all: two lanes a scenario instead of D.
    """
    width, steps = measured.own.shape[2:]
    if width == 1:
        return as_measured(measured)[np.newaxis]
    size = max(1, ELEMENTS // max(1, 2 * measured.own.shape[1] * steps))
    found = [np.zeros((0, steps))]
    for part in _slices(width, size):
        own = _beside_ideal(measured.own, ideal.own, part)
        shared = None if measured.shared is None else _beside_ideal(measured.shared, ideal.shared, part)
        times = step_times(measured.program, own, shared)
        found.append(np.broadcast_to(times, (part.stop - part.start, steps)))
    return np.concatenate(found)


def _beside_ideal(values: FloatArray, ideal: FloatArray, part: slice) -> Durations:
    """Durations [N, M, D, S] of some replicas, each beside an ideal one: [K, M, 2, S] of a node."""

    def two_lanes(node: int) -> FloatArray:
        chosen = np.moveaxis(values[node][:, part], 1, 0)
        return np.stack([chosen, np.full_like(chosen, ideal[node])], axis=2)

    return two_lanes


def _slices(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
