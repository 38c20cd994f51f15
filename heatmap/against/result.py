"""The object of `megascope stragglers --against --json`: what got slower and where, ranked by the time it costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...collectors import verdicts
from ...collectors.verdicts import Abstention, Evidence
from ..mfu.growth import Growth

__all__ = ["Against", "Change", "Place", "Side", "Slower", "Verdict", "to_json"]


class Verdict(StrEnum):
    """What the comparison came to. ``NOT_SLOWER`` needs data that would have shown a slow-down of 5 %."""

    SLOWER = "slower"
    NOT_SLOWER = "not-slower"
    INSUFFICIENT = "insufficient-evidence"


class Place(StrEnum):
    """Where something got slower: a segment everywhere, on one stage, on one host or rank more than on the others."""

    SEGMENT = "segment"
    STAGE = "stage"
    HOST = "host"
    RANK = "rank"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its store, run and attempt, the steps that were read (first, last), and in what form."""

    store: str
    run: str
    attempt: int
    steps: tuple[int, int] | None
    ranks: int
    layout: dict[str, int]
    source: str
    columns: int
    column_steps: int


@dataclass(frozen=True, slots=True)
class Change:
    """A time now and then in milliseconds, their ratio and its interval of 95 %."""

    now_ms: float
    then_ms: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Waited:
    """What the mean rank waits in a step, milliseconds: for transfers once all had arrived, and for who was late."""

    transfer_ms: float
    lateness_ms: float


@dataclass(frozen=True, slots=True)
class Slower:
    """One thing that got slower (or faster). ``change`` is of the time per span of a segment, of waiting per step.

    For a rank and a host the ratio is what it changed beyond its stage's other ranks. ``own_ms`` is what it takes
    longer in a step; ``lost_ms`` what the job loses to it at most: no more than the upper bound of what the step takes
    longer, where steps can be compared; ``lost_share`` is that over the step's time now. ``hosts_then`` is where the
    ranks ran then.
    """

    place: Place
    segment: str
    segment_kind: str
    stage: int | None
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    hosts_then: tuple[str, ...]
    change: Change
    own_ms: float
    lost_ms: float
    lost_share: float
    statement: str
    evidence: tuple[Evidence, ...] = ()
    waited: tuple[Waited, Waited] | None = None
    """Of waiting, what it is made of now and then; None where single operations do not tell, and of all else."""


@dataclass(frozen=True, slots=True)
class Against:
    """The whole answer. ``step`` compares the steps' times, None where they hold different work; ``small`` are changes
    beyond noise that cost under 0.5 % of the step, or less than its interval, and make no verdict; ``growth`` are parts
    that add up to what a step takes longer; ``differences`` say what the two do not have in common."""

    run: str
    attempt: int
    data_age_s: float | None
    verdict: Verdict
    sentence: str
    now: Side
    then: Side
    step: Change | None
    findings: tuple[Slower, ...]
    small: tuple[Slower, ...]
    faster: tuple[Slower, ...]
    growth: tuple[Growth, ...]
    differences: tuple[str, ...]
    abstained: tuple[Abstention, ...]


def to_json(found: Against) -> dict[str, Any]:
    """The object that `megascope stragglers --against --json` prints."""
    return {"schema": verdicts.VERDICT_SCHEMA, **verdicts.to_json(found)}
