"""One verdict of many analyses: what another finding explains is no accusation of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .verdict import Abstention, Cause, Culprit, CulpritKind, Explained, Findings, Outcome


def merge(own: Sequence[Culprit], extra: Sequence[Findings]) -> tuple[Culprit, ...]:
    """Culprits of all analyses, the costliest first.

    ``own`` are those of the comparison of ranks. One of them goes where another analysis explains it: it says so, or
    it blames the same ranks (and perhaps more) for the same segment. Slow transfers of ranks that lose more by their
    own work are further evidence of that: the whole machine may be slow.
    """
    explained = [one for findings in extra for one in findings.explains]
    others = [culprit for findings in extra for culprit in findings.culprits]
    kept = [one for one in own if not _is_explained(one, explained) and not _is_said(one, others)]
    joined, apart = _whole_machines(kept, others)
    return tuple(sorted([*joined, *apart], key=lambda one: -one.lost_share))


def _whole_machines(own: Sequence[Culprit], others: Sequence[Culprit]) -> tuple[list[Culprit], list[Culprit]]:
    """``own`` with the slow transfers of the same ranks as further evidence, and those of ``others`` that stay."""
    joined, apart = list(own), []
    for other in others:
        at = next((at for at, one in enumerate(joined) if _is_of_machine(other, one)), None)
        if at is None:
            apart.append(other)
        else:
            joined[at] = replace(joined[at], evidence=joined[at].evidence + other.evidence)
    return joined, apart


def _is_of_machine(network: Culprit, one: Culprit) -> bool:
    """Whether slow transfers are those of ranks that are accused for their work, which costs more."""
    return (
        network.cause == Cause.NETWORK
        and network.kind in (CulpritKind.RANK, CulpritKind.HOST)
        and one.cause in (Cause.SLOW_COMPUTE, Cause.THROTTLING)
        and set(network.ranks) <= set(one.ranks)
        and network.lost_share <= one.lost_share
        and network.steps[0] <= one.steps[1]
        and one.steps[0] <= network.steps[1]
    )


def outcome(culprits: Sequence[Culprit], blocking: Iterable[Abstention]) -> Outcome:
    """The word for what was found, and for what could not be judged: healthy only where nothing forbids it."""
    if culprits:
        return Outcome.FINDINGS
    return Outcome.INSUFFICIENT if any(True for _ in blocking) else Outcome.HEALTHY


def _is_explained(culprit: Culprit, explained: Iterable[Explained]) -> bool:
    """Whether all ranks of a culprit are explained at its segment, by one analysis."""
    return bool(culprit.ranks) and any(
        (one.segments is None or culprit.segment in one.segments)
        and (one.ranks is None or one.ranks.issuperset(culprit.ranks))
        for one in explained
    )


def _is_said(culprit: Culprit, others: Iterable[Culprit]) -> bool:
    """Whether another analysis blames the same ranks, or the machine that they are, for the same."""
    return culprit.kind != CulpritKind.JOB and any(
        one.segment == culprit.segment and bool(one.ranks) and set(one.ranks).issuperset(culprit.ranks)
        for one in others
    )
