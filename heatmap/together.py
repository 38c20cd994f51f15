"""Delays that cost too little at one segment to accuse anyone, and enough at all segments of the rank together."""

from __future__ import annotations

from collections.abc import Sequence

from .judge import Finding
from .thresholds import Thresholds

OVERLAP = 0.5
"""Share of the shorter of two stretches that lies in the other, from which on they are one delay."""


def costly_together(light: Sequence[Finding], accused: Sequence[Finding], thresholds: Thresholds) -> list[Finding]:
    """Those of ``light`` that are part of a delay which costs enough: with others of their rank at the same time.

    ``light`` passed every threshold but that of the cost of a stretch which has ended.
    """
    by_rank: dict[int, list[Finding]] = {}
    for one in (*light, *accused):
        by_rank.setdefault(one.rank, []).append(one)
    return [
        one for one in light if cost_with_others(one, by_rank[one.rank]) >= thresholds.least_ended_share(len(one.peers))
    ]


def cost_with_others(one: Finding, of_rank: Sequence[Finding]) -> float:
    """Excess of a rank at all segments in the steps of one of its stretches, as a share of the job's time."""
    return sum(other.excess_share for other in of_rank if overlap(one.steps, other.steps) >= OVERLAP)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Share of the shorter of two stretches of steps (first, last) that lies in the other."""
    common = min(one[1], other[1]) - max(one[0], other[0]) + 1
    return max(common, 0) / (min(one[1] - one[0], other[1] - other[0]) + 1)
