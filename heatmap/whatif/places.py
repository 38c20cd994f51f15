"""Where ranks stand in a replay: stage, member of the inner group, replica; and which of them were recorded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt
from ...profiler.vocabulary import PIPELINE_AXES, REPLICA_AXES
from ..peers import IntArray, Placement
from .reasons import CannotReplayError


@dataclass(frozen=True, slots=True)
class Places:
    """``ranks`` [P, M, D]: the global rank of each stage, member and replica. ``unrecorded`` are axes of which only one
    index was recorded."""

    ranks: IntArray
    inner: tuple[str, ...]
    unrecorded: tuple[str, ...]

    def lanes(self) -> IntArray:
        """By global rank: its index in the flattened [P, M, D]; -1 for a rank that is not in the replay."""
        result = np.full(int(self.ranks.max()) + 1, -1, np.int64)
        result[self.ranks.reshape(-1)] = np.arange(self.ranks.size)
        return result


def find_places(attempt: Attempt, placement: Placement, recorded: Collection[int], inner: Collection[str]) -> Places:
    """Arrange the recorded ranks. ``inner``: axes whose ranks meet inside compute.

    Raises CannotReplayError where ranks are missing, unless it is all but one index of an axis that nothing recorded
    meets on.
    """
    axes = [axis for axis in placement.coordinates if axis != placement.stage_axis]
    members, replicas = [axis for axis in axes if axis in inner], [axis for axis in axes if axis not in inner]
    ranks = np.array(sorted(recorded), np.int64)
    stage = np.zeros(len(ranks), np.int64)
    if placement.stage_axis is not None:
        stage = placement.coordinate(placement.stage_axis, ranks)
    keys = [_number(placement, group, ranks) for group in (members, replicas)]
    shape = (int(stage.max()) + 1, *(int(key.max()) + 1 for key in keys))
    if min(stage.min(), *(key.min() for key in keys)) < 0:
        raise CannotReplayError("it is not known where some ranks stand in the mesh")
    grid = np.full(shape, -1, np.int64)
    grid[stage, keys[0], keys[1]] = ranks
    unrecorded = _unrecorded(attempt, placement, ranks)
    whole = attempt.world_size or int(np.prod([max(1, size) for size in attempt.layout.values()]))
    expected = whole // int(np.prod([attempt.layout[axis] for axis in unrecorded]))
    missing = int((grid < 0).sum()) + max(expected - grid.size, 0)
    needed = {*PIPELINE_AXES, *REPLICA_AXES, *inner}  # replicas meet at the end of a step
    if missing or needed & set(unrecorded):
        raise CannotReplayError(f"a replay needs the spans of all {whole} ranks, and has those of {len(ranks)}")
    return Places(grid, tuple(members), unrecorded)


def _number(placement: Placement, axes: list[str], ranks: IntArray) -> IntArray:
    """Consecutive numbers of the coordinates on several axes, [R]; -1 where they are not known."""
    if not axes:
        return np.zeros(len(ranks), np.int64)
    found = np.stack([placement.coordinate(axis, ranks) for axis in axes])
    _, numbers = np.unique(found, axis=1, return_inverse=True)
    return np.where((found < 0).any(axis=0), -1, numbers.reshape(-1))


def _unrecorded(attempt: Attempt, placement: Placement, ranks: IntArray) -> tuple[str, ...]:
    """Axes of several ranks of which a single index was recorded."""
    return tuple(
        axis
        for axis, size in attempt.layout.items()
        if size > 1 and axis in placement.coordinates and len(np.unique(placement.coordinate(axis, ranks))) == 1
    )
