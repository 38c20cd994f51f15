"""One verdict of many analyses: what another finding explains is no accusation of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .verdict import Abstention, Culprit, CulpritKind, Explained, Findings, Outcome


def merge(own: Sequence[Culprit], extra: Sequence[Findings]) -> tuple[Culprit, ...]:
    """Culprits of all analyses, the costliest first.

    ``own`` are those of the comparison of ranks. One of them goes where another analysis explains it: it says so, or
    it blames the same ranks (and perhaps more) for the same segment.
    """
    explained = [one for findings in extra for one in findings.explains]
    others = [culprit for findings in extra for culprit in findings.culprits]
    kept = [one for one in own if not _is_explained(one, explained) and not _is_said(one, others)]
    return tuple(sorted([*kept, *others], key=lambda one: -one.lost_share))


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
