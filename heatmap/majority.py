"""Where most of a stage may be slow: the few that are quicker are all that shows it, and nobody can be accused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .cells import SegmentCells
from .compare import Comparison
from .detect import find_raised, spread_of_others
from .peers import IntArray, has_values, peer_counts, row_median
from .thresholds import Thresholds
from .verdict import Abstention

QUICK_RATIO = 1.10
"""The peers' time over a rank's own from which on it is looked at: machines are never quite alike."""

NAMED = 8


def quick_ranks(
    comparison: Comparison, cells: SegmentCells, roles: IntArray, thresholds: Thresholds
) -> Abstention | None:
    """Ranks that are quicker all the time than their peers' median, which then is no yardstick; None if there are none.

    By the thresholds that a slow rank has to pass. Stages in which somebody is accused are left out, and those in which
    a rank has a single peer: who is quick there is the other's mirror image.
    """
    levels, counts = row_median(comparison.logs), peer_counts(roles, has_values(comparison.logs))
    judged = {int(roles[one.row]) for one in comparison.raised}
    usable = int(np.isfinite(levels).sum())
    found = []
    for row in np.flatnonzero(levels <= -math.log(QUICK_RATIO)).tolist():
        if counts[row] < 2 or int(roles[row]) in judged:
            continue
        one = find_raised(row, -comparison.logs[row], comparison.noise, -float(levels[row]))
        if one is None or not one.to_the_end or one.share_beyond < thresholds.min_share_beyond:
            continue
        length, steps = one.last - one.first + 1, comparison.logs.shape[1]
        between = one.effect / spread_of_others(levels, row, roles)
        if (
            2 * length >= steps
            and one.z >= thresholds.needed_z(usable, steps, length, True)
            and (between >= thresholds.min_between)
        ):
            found.append(replace(one, row=row))
    if not found:
        return None
    named = ", ".join(str(int(cells.ranks[one.row])) for one in found[:NAMED]) + (", ..." if len(found) > NAMED else "")
    typical = math.exp(-float(np.median([one.effect for one in found])))
    who = f"rank {named} takes" if len(found) == 1 else f"ranks {named} take"
    return Abstention(
        cells.name,
        f"{who} x{typical:.2f} of the time of most others of the stage: either there is less to do there, or the "
        f"others are slow (compare with an earlier run: --against)",
    )
