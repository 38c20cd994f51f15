"""Who saves more by its place in the mesh, and is therefore not accused of slow storage."""

from __future__ import annotations

import numpy as np

from ..observations import Observations
from ..peers import row_median
from ..verdict import Abstention
from .blocks import Blocks, StalledHost

SIGNAL = "checkpoint"

LONGER = 1.5
"""Ratio to the others' time from which on the first rank is said to save more."""

MIN_ALWAYS = 0.8
"""Share of the blocks with checkpoints in which who saves more by its place takes longer."""


def is_place_in_mesh(one: StalledHost, stalled: list[StalledHost], blocks: Blocks, seen: Observations) -> bool:
    """Whether the host's place may be why it writes more, such as that of the ranks that save the weights for all.

    So it is if its ranks have index 0 on an axis, all others with that index stand out too, and always did.
    """
    if 0 not in one.blocks or len(one.blocks) < 0.6 * len(blocks.steps):
        return False
    out = set().union(*(other.ranks for other in stalled))
    own = np.array(one.ranks, np.int64)
    for axis in seen.placement.coordinates:
        if axis == seen.placement.stage_axis or not (seen.placement.coordinate(axis, own) == 0).all():
            continue
        index = seen.placement.coordinate(axis, seen.ranks)
        members = set(seen.ranks[(index == 0) & blocks.active].tolist())
        if members <= out and len(np.unique(index[blocks.active])) > 1:
            return True
    return False


def saving_note(rank: int) -> Abstention:
    """Why the first rank is not accused."""
    reason = (
        f"rank {rank}, the first of the mesh, takes longer in every checkpoint from the first on: it may save for the "
        f"others, and is not accused"
    )
    return Abstention(SIGNAL, reason)


def saving_rank(blocks: Blocks, seen: Observations) -> int | None:
    """The rank with index 0 on all axes, if it alone always takes longer in checkpoints than the others."""
    axes = seen.placement.coordinates
    if not axes or len(seen.ranks) < 2:
        return None
    first = np.all([seen.placement.coordinate(axis, seen.ranks) == 0 for axis in axes], axis=0)
    if first.sum() != 1:
        return None
    own, others = blocks.spent[first][0], blocks.spent[~first]
    saves = np.flatnonzero(own > 0)
    longer = own[saves] > LONGER * row_median(others.T)[saves]
    always = len(saves) > 0 and bool(longer[0]) and float(longer.mean()) >= MIN_ALWAYS
    return int(seen.ranks[first][0]) if always else None


def place_note(one: StalledHost) -> Abstention:
    """Why a host is not accused."""
    reason = (
        f"{one.host} takes x{one.ratio:.2f} of the other hosts' time in checkpoints, always, and so do all ranks with "
        f"its place in the mesh: whether they save more or its storage is slow cannot be told"
    )
    return Abstention(SIGNAL, reason)
