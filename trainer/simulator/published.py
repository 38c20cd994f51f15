"""What was published of MFU at scale: points and the steps of an ablation, to hold a simulation against."""

from __future__ import annotations

from dataclasses import dataclass

from .techniques import Technique


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """MFU, 0 to 1, of a system at a number of GPUs; ``has_techniques``: with those of `Technique`, or without."""

    model: str
    gpus: int
    system: str
    mfu: float
    has_techniques: bool


POINTS = (
    PublishedPoint("175b", 12288, "Megatron-LM", 0.412, has_techniques=False),
    PublishedPoint("175b", 12288, "MegaScale", 0.552, has_techniques=True),
    PublishedPoint("530b", 2240, "Megatron-LM", 0.542, has_techniques=False),
    PublishedPoint("530b", 2240, "MegaScale", 0.54, has_techniques=True),
    PublishedPoint("530b", 11200, "MegaScale", 0.54, has_techniques=True),
)
"""Jiang et al., NSDI '24. Of the 530-billion-parameter model the text says "about 54 %" from 2,240 to 11,200 GPUs.

Megatron-LM's 54.2 % of it: Korthikanti et al. 2022, abstract (2,240 A100 GPUs, selective recomputation). `techniques`
takes the factor of compute from it, and from nothing else.
"""

GAINS: tuple[tuple[tuple[Technique, ...], float | None], ...] = (
    ((Technique.PARALLEL_BLOCK, Technique.WINDOW), 0.056),
    ((Technique.TP_OVERLAP, Technique.PP_OVERLAP, Technique.DP_OVERLAP), 0.062),
    ((Technique.OPERATORS,), 0.017),
    ((Technique.DATA,), 0.011),
    ((Technique.LARGE_BATCH,), 0.030),
)
"""The published ablation of the 175-billion-parameter model, in points of MFU, in its order."""
