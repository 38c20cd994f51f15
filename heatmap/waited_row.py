"""One row of "who was waited for"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WaitedBasis(StrEnum):
    """What tells who was waited for."""

    ALIGNED = "aligned clocks"
    ONE_CLOCK = "one clock"
    FRONTIER = "frontier"


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A rank that others waited for. ``caused_ms`` is what they waited, ms a step, all of them together.

    By clocks it is the waiting that the rank is the origin of, also through others that it made late; ``last_in`` of
    ``operations`` it surely came last in, and ``origin_share`` is its share of all waiting. By the frontier (durations
    alone) ``segment`` is the work in which it is furthest behind, ``caused_ms`` what that adds to the step beyond the
    median rank, and those three are None. ``steps`` of the run were looked at.
    """

    rank: int
    segment: str | None
    last_in: int | None
    operations: int | None
    caused_ms: float
    origin_share: float | None
    steps: int
    basis: WaitedBasis
