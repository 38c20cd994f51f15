"""What a barrier shows by, and since when: the stretch of steps in which a sign is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...collectors.verdicts import Evidence
from ..detect import BoolArray
from ..peers import IntArray
from ..verdict import Pattern

MIN_SHARE = 0.02
"""Share of the step's time that is lost, in the steps with the barrier."""

MIN_ALIKE = 0.8
"""Share of the ranks, and of the steps of a stretch, that show a sign."""

MIN_COLUMNS = 3
"""Steps that show a sign, at least."""

PROBES = 16
"""Steps that are looked at in one go to find where a stretch begins or ends."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """What holds all back, and when: ``held_share`` of a step's time in these steps, ``lost_share`` of the job's."""

    segment: str
    held_share: float
    lost_share: float
    confidence: float
    steps: tuple[int, int]
    pattern: Pattern
    evidence: tuple[Evidence, ...]


def longest_stretch(shows: BoolArray) -> tuple[int, int] | None:
    """First and last of the columns [S] of the stretch in which nearly all show a sign; None where there is none."""
    worth = np.where(shows, 1 - MIN_ALIKE, -MIN_ALIKE)
    sums = np.concatenate([[0.0], np.cumsum(worth)])
    gain = sums[1:] - np.minimum.accumulate(sums[:-1])
    if not len(gain) or gain.max() <= 0:
        return None
    last = int(np.argmax(gain))
    first = int(np.argmin(sums[: last + 1]))
    return (first, last) if shows[first : last + 1].sum() >= min(MIN_COLUMNS, len(shows)) else None


def edge_of(looks: Callable[[IntArray], BoolArray], between: IntArray, *, is_start: bool) -> int | None:
    """The step at which a sign begins (or ends, if not ``is_start``) among the steps ``between`` one without it and one
    with it; None where it is in none of them. ``looks`` tells of a few steps whether they show it.

    A sign that comes once stays: of the steps between, a few are looked at, then those between two of these.
    """
    inward = between if is_start else between[::-1]  # towards the stretch
    edge: int | None = None
    while len(inward):
        at = np.unique(np.linspace(0, len(inward) - 1, PROBES).astype(int))
        order = np.argsort(inward[at])
        shows = np.empty(len(at), bool)
        shows[order] = looks(inward[at][order])
        quiet = np.flatnonzero(~shows)
        begin = int(quiet[-1]) + 1 if len(quiet) else 0
        if begin < len(at):
            edge = int(inward[at[begin]])
        inward = inward[at[begin - 1] + 1 if begin else 0 : at[begin] if begin < len(at) else len(inward)]
    return edge


def pattern_of(last: int, columns: int) -> Pattern:
    """Of a stretch that ends with column ``last`` of so many."""
    return Pattern.CHRONIC if last + 1 >= 0.95 * columns else Pattern.ONE_OFF
