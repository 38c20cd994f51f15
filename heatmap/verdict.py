"""The straggler verdict: who is slow, at what, since when, what it costs, and what could not be judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..collectors import verdicts
from ..collectors.verdicts import Abstention, Evidence


class Outcome(StrEnum):
    """What the analysis came to. ``HEALTHY`` needs data enough to have seen a straggler."""

    FINDINGS = "findings"
    HEALTHY = "healthy"
    INSUFFICIENT = "insufficient-evidence"


class CulpritKind(StrEnum):
    """Who is accused. Only rank, host, link and group are accusations of hardware."""

    RANK = "rank"
    HOST = "host"
    LINK = "link"
    GROUP = "group"
    STAGE = "stage"
    JOB = "job"


class Cause(StrEnum):
    """Why it is slow, as far as the kind of segment tells."""

    SLOW_COMPUTE = "slow-compute"
    THROTTLING = "throttling"
    NETWORK = "network"
    DATA_STALL = "data-stall"
    GC_DRIFT = "gc-drift"
    CHECKPOINT = "checkpoint"
    UNEVEN_INPUT = "uneven-input"
    UNEVEN_STAGES = "uneven-stages"
    WARM_UP = "warm-up"


class Pattern(StrEnum):
    """How the delay is spread over the steps."""

    CHRONIC = "chronic"
    INTERMITTENT = "intermittent"
    ONE_OFF = "one-off"
    DRIFTING = "drifting"


class Severity(StrEnum):
    """By the share of the job's time that is lost: high from 10 %, medium from 3 %."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


def severity(lost_share: float) -> Severity:
    """Severity of a loss, given as a share (0 to 1) of the job's time."""
    if lost_share >= 0.10:
        return Severity.HIGH
    return Severity.MEDIUM if lost_share >= 0.03 else Severity.LOW


@dataclass(frozen=True, slots=True)
class Culprit:
    """One cause of delay; what the whole job has names no rank. ``ratio`` is own time over the peers' time (of the
    job: the last steps' over the first ones'), ``steps`` the first and last step affected,
    ``lost_share`` the share (0 to 1) of the job's time in the steps looked at that is lost to it."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    confidence: float
    severity: Severity
    kind: CulpritKind
    cause: Cause
    segment: str
    ratio: float
    steps: tuple[int, int]
    pattern: Pattern
    lost_share: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What one analysis adds to the verdict: its culprits, and what it could not judge.

    ``blocking`` are reasons against the word healthy, ``abstained`` those that are not.
    """

    culprits: tuple[Culprit, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    blocking: tuple[Abstention, ...] = ()


@dataclass(frozen=True, slots=True)
class StragglerVerdict:
    """The object of `megascope stragglers --json`, field by field."""

    run: str
    attempt: int
    data_age_s: float | None
    verdict: Outcome
    culprits: tuple[Culprit, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    slowdown: float | None = None
    m_w: float | None = None
    m_s: float | None = None

    def sentence(self) -> str:
        """The verdict in one sentence, for the top of a report or of a page."""
        if self.verdict == Outcome.HEALTHY:
            return "No rank's own work is slower than its peers'."
        if self.verdict == Outcome.INSUFFICIENT:
            reason = self.abstained[0].reason if self.abstained else "no rank could be compared with peers"
            return f"Not enough evidence to judge: {reason}."
        first = self.culprits[0]
        more = len(self.culprits) - 1
        tail = f" {more} more finding{'s' if more > 1 else ''} below." if more else ""
        return f"{describe(first)}.{tail}"


_NOTHING_LOST = "the others did not wait for it, so no time was lost"


def describe(culprit: Culprit) -> str:
    """One culprit in words: who, where, how much, since when, and at what cost."""
    if culprit.kind == CulpritKind.JOB:
        return (
            f"{culprit.segment.capitalize()} takes longer and longer on all ranks: x{culprit.ratio:.2f} in the last "
            f"third of steps {culprit.steps[0]} to {culprit.steps[1]} ({culprit.lost_share:.1%} of the job's time lost)"
        )
    ranks = ", ".join(str(rank) for rank in culprit.ranks)
    who = f"Rank {ranks}" if len(culprit.ranks) == 1 else f"Ranks {ranks}"
    on = f" on {', '.join(culprit.hosts)}" if culprit.hosts else ""
    if culprit.kind == CulpritKind.HOST:
        who, on = f"Host {', '.join(culprit.hosts)} (ranks {ranks})", ""
    first, last = culprit.steps
    when = f"step {first}" if first == last else f"steps {first} to {last}"
    lost = f"{culprit.lost_share:.1%} of the job's time lost" if culprit.lost_share >= 0.0005 else _NOTHING_LOST
    return (
        f"{who}{on} took x{culprit.ratio:.2f} of its peers' time in {culprit.segment}, {when} "
        f"({culprit.pattern}, {lost})"
    )


def to_json(verdict: StragglerVerdict) -> dict[str, Any]:
    """The object that `megascope stragglers --json` prints and that the pages show."""
    result: dict[str, Any] = {"schema": verdicts.VERDICT_SCHEMA, **verdicts.to_json(verdict)}
    return result


__all__ = [
    "Abstention",
    "Cause",
    "Culprit",
    "CulpritKind",
    "Evidence",
    "Findings",
    "Outcome",
    "Pattern",
    "Severity",
    "StragglerVerdict",
    "describe",
    "severity",
    "to_json",
]
