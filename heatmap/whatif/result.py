"""What the what-if analysis comes to: the ratios, and what each rank, host, stage and segment costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a contribution is of. A rank's and a host's are their work alone: transfers are of their link or segment."""

    RANK = "rank"
    HOST = "host"
    LINK = "link"
    STAGE = "stage"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one part of the job costs. ``name`` is a rank's number, a host's name, sender>receiver of a link's
    messages, a stage's number (with what it sends and receives) or a segment's name.

    ``recovered``: share of the job's excess (S - 1) that is gone if only this part is at its ideal; may lie a little
    outside 0 to 1, for parts overlap. ``saved``: the same as a share (0 to 1) of the job's time. ``alone``: slowdown of
    the job with only this part as measured and all else ideal.
    """

    part: Part
    name: str
    recovered: float
    saved: float
    alone: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The job replayed as measured, and with every operation at its ideal.

    ``slowdown`` S: mean step as measured over the ideal one, without launch delays. ``m_w``, ``m_s``: share of S - 1
    that is recovered by fixing the slowest 3 % of workers, the last stage; None where S is too near 1, or there is one
    stage. ``step_count`` steps were replayed, of ``steps`` (first, last). ``step_s`` is their mean as measured without
    launch delays, ``recorded_s`` with them (that of the rank on which it is longest), ``ideal_s`` the ideal.
    ``slowest`` of the ``workers`` (a worker is one stage of one replica) are those that ``m_w`` fixes.
    ``contributions`` by part, the costliest first; of a large job ``unlisted_ranks`` that cost less have none.
    ``notes`` say what was left out.
    """

    slowdown: float
    m_w: float | None
    m_s: float | None
    steps: tuple[int, int]
    step_count: int
    step_s: float
    recorded_s: float
    ideal_s: float
    workers: int = 0
    slowest: int = 0
    contributions: tuple[Contribution, ...] = ()
    notes: tuple[str, ...] = ()
    unlisted_ranks: int = 0

    def of(self, part: Part) -> tuple[Contribution, ...]:
        """Contributions of one kind, the costliest first."""
        return tuple(one for one in self.contributions if one.part == part)
