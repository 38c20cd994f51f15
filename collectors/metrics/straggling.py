"""How much longer the ranks of one host work than their peers there: a first look, and no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

COMPARED_STEPS = 16


def straggler_ratios(work_ns: Mapping[int, Mapping[int, int]], stages: Mapping[int, int | None]) -> dict[int, float]:
    """Work of each rank over the median of the others of its stage, in the newest steps that all of them have.

    ``work_ns`` maps rank and step to self time. Without another rank of the stage, without a common step and where the
    others did nothing there is no ratio.
    """
    ratios: dict[int, float] = {}
    for stage in {stages.get(rank) for rank in work_ns}:
        peers = [rank for rank in work_ns if stages.get(rank) == stage]
        common = set.intersection(*(set(work_ns[rank]) for rank in peers))
        newest = sorted(common)[-COMPARED_STEPS:]
        sums = {rank: sum(work_ns[rank][step] for step in newest) for rank in peers}
        for rank in peers:
            others = [sums[other] for other in peers if other != rank]
            if others and (usual := median(others)) > 0:
                ratios[rank] = sums[rank] / usual
    return ratios
