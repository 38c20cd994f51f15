"""The object of `megascope mfu --json`: bins of steps, what their time went to, restarts, and who was slow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...collectors import verdicts
from ...collectors.verdicts import Abstention, Evidence
from .growth import Growth

__all__ = ["Bin", "LongStep", "Measure", "MfuReport", "Restart", "Slow", "Trend", "to_json"]


class Measure(StrEnum):
    """What stands for the job's speed: MFU where it is known, else tokens a second, else step time against the best."""

    MFU = "mfu"
    TOKENS = "tokens-per-second"
    SPEED = "speed"


class Trend(StrEnum):
    """What became of the speed.

    ``DECLINED``: a stretch of steps is slower than those before it, beyond the noise of the steps, and the steps are
    still slow at the end. ``VARIES``: there was such a stretch and it is over, the job became faster, or single long
    steps took a hundredth of the time. ``STEADY``: none of it.
    """

    DECLINED = "declined"
    VARIES = "varies"
    STEADY = "steady"
    INSUFFICIENT = "insufficient-evidence"

    @classmethod
    def changed(cls) -> tuple[Trend, ...]:
        """Those of which it is asked why."""
        return (cls.DECLINED, cls.VARIES)


@dataclass(frozen=True, slots=True)
class Bin:
    """Steps ``steps`` (first, last) of an attempt: ``count`` were recorded, from ``start_ns`` to ``end_ns`` (UTC).

    ``mfu`` (0 to 1) and ``tokens_per_second`` are None where the peak or the tokens are not known, the moments where
    the trace has no date; ``speed`` is the reference's step time over this one's. ``step_ms`` is the mean and
    ``median_step_ms`` the median, of the steps whose spans were timed where there are any. ``growth`` are the
    largest parts of what a step takes longer than in the reference; ``slow`` the places of the slow ranks and hosts
    in the list of the report whose steps overlap these.
    """

    attempt: int
    steps: tuple[int, int]
    start_ns: int | None
    end_ns: int | None
    count: int
    step_ms: float
    median_step_ms: float
    mfu: float | None
    tokens_per_second: float | None
    speed: float | None
    is_reference: bool
    lost_s: float
    growth: tuple[Growth, ...]
    slow: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """From one attempt to the next: steps of all attempts before that it did again and no other had, what they had
    taken, and the time in between.

    ``down_s`` None: it is not known (moments are missing).
    """

    attempt: int
    first_step: int
    exit_reason: str | None
    lost_steps: int
    lost_s: float
    down_s: float | None


@dataclass(frozen=True, slots=True)
class LongStep:
    """A step of ``ratio`` median steps. ``segment`` is the work that fills most of it, None if no span tells."""

    attempt: int
    step: int
    start_ns: int | None
    duration_ms: float
    ratio: float
    segment: str | None


@dataclass(frozen=True, slots=True)
class Slow:
    """A finding of the straggler analysis: see `verdict.Culprit`."""

    attempt: int
    kind: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    cause: str
    segment: str
    steps: tuple[int, int]
    ratio: float
    lost_share: float


@dataclass(frozen=True, slots=True)
class MfuReport:
    """The whole answer. ``growth`` explains the slower bins together, where the verdict is that there was a change:
    parts in ms per step, which add up to ``growth_ms``. ``lost_s`` is what bins that are slower beyond noise took more
    than the reference, ``lost_share`` its share of all steps' time.

    ``mfu_wall``: FLOPs of the steps that counted over what the peak allows from the first moment to the last, restarts
    and repeated steps included.
    """

    run: str
    attempt: int | None
    data_age_s: float | None
    verdict: Trend
    sentence: str
    measure: Measure
    source: str
    reference: tuple[int, int] | None
    mfu: float | None
    mfu_wall: float | None
    tokens_per_second: float | None
    lost_s: float
    lost_share: float
    growth_ms: float
    growth: tuple[Growth, ...]
    bins: tuple[Bin, ...]
    restarts: tuple[Restart, ...]
    long_steps: tuple[LongStep, ...]
    long_step_count: int
    slow: tuple[Slow, ...]
    evidence: tuple[Evidence, ...]
    abstained: tuple[Abstention, ...]


def to_json(report: MfuReport) -> dict[str, Any]:
    """The object that `megascope mfu --json` prints."""
    return {"schema": verdicts.VERDICT_SCHEMA, **verdicts.to_json(report)}
