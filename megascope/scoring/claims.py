"""What analysers claim, held against what is true: right, right place under another name, or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..heatmap.verdict import Cause, Culprit, CulpritKind, StragglerVerdict
from ..trainer.simulator.faults import HELD_UP_KINDS, FaultKind
from ..viz3d.verdict import HangVerdict, State

UNNAMED = "other"
"""A claim of a kind that no fault has."""

_HARDWARE = (CulpritKind.RANK, CulpritKind.HOST, CulpritKind.LINK, CulpritKind.GROUP)

_BY_CAUSE: Mapping[Cause, FaultKind] = {
    Cause.THROTTLING: FaultKind.THROTTLING,
    Cause.NETWORK: FaultKind.DEGRADED_NIC,
    Cause.DATA_STALL: FaultKind.DATA_STALL,
    Cause.GC_DRIFT: FaultKind.GC_DRIFT,
    Cause.CHECKPOINT: FaultKind.STORAGE_STALL,
    Cause.UNEVEN_INPUT: FaultKind.UNEVEN_SEQUENCES,
    Cause.UNEVEN_STAGES: FaultKind.UNEVEN_STAGES,
}

JOB_WIDE = frozenset({FaultKind.GC_DRIFT, FaultKind.UNEVEN_SEQUENCES, FaultKind.UNEVEN_STAGES})
"""Faults for which no rank is to blame: the right claim names none."""

CIRCLES = frozenset({FaultKind.ORDER_INVERSION, FaultKind.P2P_CYCLE})
"""Claims that name all ranks of a circle of waits: those whose order is wrong, and as many that wait for them."""

MOST_COVERED = 2
"""A claim of a link or a group names all that carry the fault, and as many others at most: more would say nothing."""

ACCUSING = frozenset({State.HANG, State.CRASHED})
"""States in which a hang verdict accuses; in the others it names suspects at most."""


SUSPICIONS = frozenset({FaultKind.NETWORK, FaultKind.LIBRARY})
"""Faults of which nothing is known for sure: an inconclusive verdict that suspects the right ranks is all there is."""

INNOCENT = frozenset({FaultKind.LOST_HEARTBEATS, *HELD_UP_KINDS})
"""Faults after which the job goes on: to accuse anybody is wrong."""


class Answer(StrEnum):
    """What a hang verdict comes to: exactly those to blame, nobody for want of evidence, or others (or none of a job
    that hangs)."""

    EXACT = "exact"
    INCONCLUSIVE = "inconclusive"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Truth:
    """The row of ``faults``: kind, ranks that carry it, and the host if it is one."""

    kind: str
    ranks: frozenset[int]
    host: str | None = None
    also: frozenset[str] = frozenset()
    """Other kinds that are as true, since nothing that the job did tells them apart."""
    of_all: bool = False
    """Whether all ranks of the job carry it."""

    @property
    def is_job_wide(self) -> bool:
        """Whether no rank is to blame."""
        return self.kind in JOB_WIDE or (self.of_all and self.kind == FaultKind.DATA_STALL)


@dataclass(frozen=True, slots=True)
class Claim:
    """One culprit of a verdict: ``kind`` in the words of FaultKind (or UNNAMED), the ranks and hosts that it blames."""

    kind: str
    ranks: frozenset[int]
    hosts: frozenset[str] = frozenset()
    covers: bool = False
    """Whether it blames a link or a group: ranks of which some are meant."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict against the truth, as kinds of claims.

    ``right``: right place and name; ``misnamed``: right place alone (or some ranks singled out for what all have);
    ``wrong``: neither. ``found``: all of the truth was claimed rightly; ``placed``: its place was at least.
    """

    right: tuple[str, ...] = ()
    misnamed: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    found: bool = False
    placed: bool = False


def claims_of_stragglers(verdict: StragglerVerdict) -> list[Claim]:
    """One claim a culprit."""
    return [
        Claim(
            _name(one),
            frozenset(one.ranks),
            frozenset(one.hosts),
            one.kind in (CulpritKind.LINK, CulpritKind.GROUP),
        )
        for one in verdict.culprits
    ]


def _name(culprit: Culprit) -> str:
    if culprit.cause == Cause.SLOW_COMPUTE:
        return str(FaultKind.SLOW_HOST if culprit.kind == CulpritKind.HOST else FaultKind.SLOW_GPU)
    return str(_BY_CAUSE.get(culprit.cause, UNNAMED))


def claims_of_hang(verdict: HangVerdict) -> list[Claim]:
    """One claim a culprit; suspects of a job that may only be slow are none."""
    if verdict.verdict not in ACCUSING:
        return []
    return [Claim(str(one.kind), frozenset(one.ranks), frozenset(one.hosts)) for one in verdict.culprits]


def answer_of_hang(verdict: HangVerdict, truth: Truth | None, heard: frozenset[int]) -> Answer:
    """How exact a verdict is; ``heard`` are the ranks of which there is evidence.

    Of those to blame the verdict must name all that were heard of, and may name the others. A circle may be named as a
    whole. A job that goes on is running or slow; one that has not begun may be inconclusive too, without suspects. To
    name others is wrong in every state, and so is to call a job slow that hangs.
    """
    state, named = verdict.verdict, frozenset(rank for one in verdict.culprits for rank in one.ranks)
    if truth is None or truth.kind in INNOCENT:
        if named and (state != State.SLOW or truth is None or not named <= truth.ranks):
            return Answer.WRONG
        starts = truth is not None and truth.kind == FaultKind.LONG_PHASE
        if state in (State.RUNNING, State.SLOW) or (state == State.INCONCLUSIVE and starts):
            return Answer.EXACT
        return Answer.INCONCLUSIVE if state == State.INCONCLUSIVE else Answer.WRONG
    is_told = state in ACCUSING or (state == State.INCONCLUSIVE and truth.kind in SUSPICIONS)
    if is_told and _is_exact(named, truth, heard):
        return Answer.EXACT
    is_open = state == State.INCONCLUSIVE and (named <= truth.ranks or _is_exact(named, truth, heard))
    return Answer.INCONCLUSIVE if is_open else Answer.WRONG


def _is_exact(named: frozenset[int], truth: Truth, heard: frozenset[int]) -> bool:
    if not named >= ((truth.ranks & heard) or truth.ranks):
        return False
    return named <= truth.ranks or (truth.kind in CIRCLES and 2 * len(named & truth.ranks) >= len(named))


def compare_claims(claims: Sequence[Claim], truth: Truth | None) -> Comparison:
    """Hold the claims of one trial against what is true in it; None: nothing is wrong, so that each claim is."""
    if truth is None:
        return Comparison(wrong=tuple(one.kind for one in claims))
    right = [
        one
        for one in claims
        if (one.kind == truth.kind or one.kind in truth.also) and _is_there(one, truth) and not _singles_out(one, truth)
    ]
    misnamed = [one for one in claims if one not in right and _is_there(one, truth)]
    wrong = [one for one in claims if not _is_there(one, truth)]
    return Comparison(
        right=tuple(one.kind for one in right),
        misnamed=tuple(one.kind for one in misnamed),
        wrong=tuple(one.kind for one in wrong),
        found=_is_complete(right, truth),
        placed=_is_complete([*right, *misnamed], truth),
    )


def _is_there(claim: Claim, truth: Truth) -> bool:
    """Whether a claim blames none but those that carry the fault."""
    if truth.is_job_wide:
        return claim.kind == truth.kind and (not claim.ranks or claim.ranks <= truth.ranks)
    if claim.covers:
        return truth.ranks <= claim.ranks and len(claim.ranks) <= MOST_COVERED * len(truth.ranks)
    if truth.kind in CIRCLES and claim.kind == truth.kind:
        return bool(claim.ranks) and 2 * len(claim.ranks & truth.ranks) >= len(claim.ranks)
    if _is_host_of_nic(claim, truth):
        return True
    return bool(claim.ranks) and claim.ranks <= truth.ranks


def _singles_out(claim: Claim, truth: Truth) -> bool:
    """Whether a claim blames some ranks for what the whole job or stage has."""
    return truth.is_job_wide and bool(claim.ranks) and claim.ranks != truth.ranks


def _is_complete(claims: Sequence[Claim], truth: Truth) -> bool:
    """Whether all that carry the fault are blamed."""
    if truth.is_job_wide:
        return any(not _singles_out(one, truth) for one in claims)
    if not claims or any(one.covers or _is_host_of_nic(one, truth) for one in claims):
        return bool(claims)
    return frozenset[int]().union(*(one.ranks for one in claims)) >= truth.ranks


def _is_host_of_nic(claim: Claim, truth: Truth) -> bool:
    """A NIC is a part of its host: to blame the host for the network is right too."""
    same = truth.host is not None and claim.hosts == {truth.host}
    return same and claim.kind == truth.kind == FaultKind.DEGRADED_NIC
