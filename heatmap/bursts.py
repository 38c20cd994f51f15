"""Short bursts of slowness: too short to accuse a rank at one segment, and sure where all its compute has them.

A device that is slow for a few steps, by much, is slow in forward and backward alike, in the same steps. A hiccup of
the host hits one span or one step. So each segment gives its candidates, and a rank is accused where all main segments
of compute have one at the same time, few ranks of the job have the like, and it costs what an ended stretch has to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .judge import Finding
from .thresholds import Thresholds
from .together import cost_with_others, overlap

MOST_ALIKE, MOST_ALIKE_SHARE = 2, 0.01
"""So many ranks of the job may have a short burst, and so large a share of them: what more have is usual."""


def in_all_compute(
    brief: Sequence[Finding],
    accused: Sequence[Finding],
    main: Collection[tuple[str, str]],
    ranks: int,
    thresholds: Thresholds,
) -> list[Finding]:
    """Those of ``brief`` whose rank is slow in the same steps at all ``main`` segments (name, kind) of compute.

    ``accused`` are findings that need no such support, and give it; ``ranks`` is how many the job has.
    """
    by_rank: dict[int, list[Finding]] = {}
    for one in (*brief, *accused):
        by_rank.setdefault(one.rank, []).append(one)
    found = []
    for one in brief:
        same = [other for other in by_rank[one.rank] if overlap(one.steps, other.steps) > 0]
        is_whole = main and {(other.segment, other.kind) for other in same} >= set(main)
        if is_whole and cost_with_others(one, same) >= thresholds.least_ended_share(len(one.peers)):
            found.append(one)
    alike = {one.rank for one in found}
    return found if len(alike) <= max(MOST_ALIKE, MOST_ALIKE_SHARE * ranks) else []
