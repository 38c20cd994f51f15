"""The straggler verdict: who is slow, at what, since when, what it costs, and what could not be judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..collectors import verdicts
from ..collectors.verdicts import Abstention, Evidence
from .waited_row import WaitedFor
from .whatif.result import WhatIf


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
    BARRIER = "barrier"


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
    stage: int | None = None
    """Index on the pipeline's axis, where a whole stage is meant."""
    against_own_past: bool = False
    """Whether ``ratio`` is over what it took itself before, beside how much the other ranks changed."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Slowness that an analysis accounts for, so that no rank is accused of it: of these ranks at these segments.

    None stands for all ranks, or for all segments.
    """

    ranks: frozenset[int] | None = None
    segments: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What one analysis adds to the verdict: its culprits, and what it could not judge.

    ``blocking`` are reasons against the word healthy, ``abstained`` those that are not; ``explains`` is what no rank is
    to be accused of on its account.
    """

    culprits: tuple[Culprit, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    blocking: tuple[Abstention, ...] = ()
    explains: tuple[Explained, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlyWarning:
    """A rank that has become slower than it was, beside its peers, and is not slow enough to be accused.

    ``ratio_to_own_baseline`` is its newest time over its own before ``since_step``, both relative to its peers'.
    """

    rank: int
    segment: str
    since_step: int
    ratio_to_own_baseline: float

    def sentence(self) -> str:
        """The warning in words."""
        return (
            f"rank {self.rank} takes x{self.ratio_to_own_baseline:.2f} of what it took before in {self.segment}, since "
            f"about step {self.since_step}, while its peers take as long as ever"
        )


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
    whatif: WhatIf | None = None
    warnings: tuple[EarlyWarning, ...] = ()
    arrivals: tuple[WaitedFor, ...] = ()
    visible_ratio: float | None = None
    """Own time over the peers' from which on a rank that is slow in all steps would have been named, whatever main
    segment it is slow in; None where none could be judged."""

    def sentence(self) -> str:
        """The verdict in one sentence, for the top of a report or of a page."""
        if self.verdict == Outcome.HEALTHY:
            size = "" if self.visible_ratio is None else f" of x{self.visible_ratio:.2f} or more"
            not_seen = any(one.signal == "network" for one in self.abstained)
            return f"No straggler{size}{'' if not_seen else ', and no slow link between hosts'}."
        if self.verdict == Outcome.INSUFFICIENT:
            reason = self.abstained[0].reason if self.abstained else "no rank could be compared with peers"
            if self.visible_ratio is not None and self.abstained and self.abstained[0].signal in ("network", "cores"):
                return f"No straggler of x{self.visible_ratio:.2f} or more in the ranks' own work, but {reason}."
            return f"Not enough evidence to judge: {reason}."
        first = self.culprits[0]
        more = len(self.culprits) - 1
        tail = f" {more} more finding{'s' if more > 1 else ''} below." if more else ""
        return f"{describe(first)}.{tail}"


_NOTHING_LOST = "the others did not wait for it, so no time was lost"


def describe(culprit: Culprit) -> str:
    """One culprit in words: who, where, how much, since when, and at what cost."""
    if culprit.kind in (CulpritKind.JOB, CulpritKind.STAGE):
        return _describe_job(culprit)
    if culprit.cause == Cause.NETWORK:
        return _describe_network(culprit)
    ranks = ", ".join(str(rank) for rank in culprit.ranks)
    who = f"Rank {ranks}" if len(culprit.ranks) == 1 else f"Ranks {ranks}"
    on = f" on {', '.join(culprit.hosts)}" if culprit.hosts else ""
    if culprit.kind == CulpritKind.HOST:
        who, on = f"Host {', '.join(culprit.hosts)} (ranks {ranks})", ""
    first, last = culprit.steps
    when = f"step {first}" if first == last else f"steps {first} to {last}"
    lost = f"{culprit.lost_share:.1%} of the job's time lost" if culprit.lost_share >= 0.0005 else _NOTHING_LOST
    yardstick = "what it took before, unlike all others," if culprit.against_own_past else "its peers' time"
    return (
        f"{who}{on} took x{culprit.ratio:.2f} of {yardstick} in {culprit.segment}, {when} ({culprit.pattern}, {lost})"
    )


_NAMED_RANKS = 16


def _describe_network(culprit: Culprit) -> str:
    """A slow link in words: its ranks work as fast as others."""
    named = [str(rank) for rank in culprit.ranks[:_NAMED_RANKS]]
    ranks, hosts = (
        ", ".join([*named, "..."] if len(culprit.ranks) > _NAMED_RANKS else named),
        ", ".join(culprit.hosts[:4]),
    )
    who = {
        CulpritKind.HOST: f"The network of host {hosts} (ranks {ranks})",
        CulpritKind.LINK: f"The link between ranks {' and '.join(named)} ({hosts})",
        CulpritKind.GROUP: f"The network of the group of ranks {ranks}",
    }.get(culprit.kind, f"The network of rank {ranks} on {hosts}")
    first, last = culprit.steps
    when = f"step {first}" if first == last else f"steps {first} to {last}"
    lost = f"{culprit.lost_share:.1%} of the job's time lost" if culprit.lost_share >= 0.0005 else _NOTHING_LOST
    return (
        f"{who} is slow: transfers of {culprit.segment} took x{culprit.ratio:.2f} of what others take, {when} "
        f"({culprit.pattern}, {lost})"
    )


_OF_THE_JOB = {
    Cause.GC_DRIFT: "{segment} takes longer and longer on all ranks: x{ratio:.2f} in the last third of {steps}",
    Cause.UNEVEN_STAGES: "Stage {stage} has more work than the other stages: all its ranks take x{ratio:.2f} of their "
    "time, most in {segment}, {steps}; that is how the model is cut and no machine's fault: fewer layers on stage "
    "{stage} would even it out",
    Cause.UNEVEN_INPUT: "Micro-batches cost unequally much: in {segment} the replica with the longest sequences takes "
    "x{ratio:.2f} of the mean, {steps}",
    Cause.CHECKPOINT: "Checkpoints hold up all hosts alike: {segment} stops the job in {steps}",
    Cause.DATA_STALL: "Loading data holds up the whole job, on all ranks that load alike: {segment} in {steps}",
    Cause.BARRIER: "Ranks wait for each other, or take another order, where the schedule does not ask for it: at "
    "{segment}, {steps}",
    Cause.NETWORK: "Transfers of {segment} take x{ratio:.2f} of what they took before, between all hosts alike, "
    "{steps}: some network became slow, and whose cannot be told, as no other does the same",
    Cause.WARM_UP: "The job took long to warm up: x{ratio:.2f} of the usual step, {steps}",
}


LAUNCHED = "reduce_scatter"
"""In the name of a collective by whose launches pauses show that nobody recorded."""

_UNSEEN_PAUSES = (
    "Hosts pause by turns, longer and longer, and no span shows it, as garbage collection does: launches of {segment} "
    "lie x{ratio:.2f} as far apart in the last third of {steps}"
)


def _describe_job(culprit: Culprit) -> str:
    """What the whole job or a stage has, in words."""
    first, last = culprit.steps
    usual = "{segment} takes x{ratio:.2f} of its usual time on all ranks, {steps}"
    template = _OF_THE_JOB.get(culprit.cause, usual)
    if culprit.cause == Cause.GC_DRIFT and LAUNCHED in culprit.segment:
        template = _UNSEEN_PAUSES
    text = template.format(
        segment=culprit.segment, stage=culprit.stage, ratio=culprit.ratio, steps=f"steps {first} to {last}"
    )
    return f"{text[0].upper()}{text[1:]} ({culprit.lost_share:.1%} of the job's time lost)"


def to_json(verdict: StragglerVerdict) -> dict[str, Any]:
    """The object that `megascope stragglers --json` prints and that the pages show."""
    result: dict[str, Any] = {"schema": verdicts.VERDICT_SCHEMA, **verdicts.to_json(verdict)}
    return result


__all__ = [
    "Abstention",
    "Cause",
    "Culprit",
    "CulpritKind",
    "EarlyWarning",
    "Evidence",
    "Explained",
    "Findings",
    "Outcome",
    "Pattern",
    "Severity",
    "StragglerVerdict",
    "describe",
    "severity",
    "to_json",
]
