"""From what was found to the culprits of the verdict, each with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from ..collectors.reading.store import Attempt, Store
from .causes import cause_of
from .drift import JobDrift
from .drift_evidence import drift_culprit
from .evidence import gather_evidence
from .judge import Finding
from .observations import Observations
from .source import Source
from .verdict import Cause, Culprit, CulpritKind, Evidence, severity
from .window_evidence import gather_window_evidence

FULL_EVIDENCE = 20
"""The costliest culprits, whose evidence is asked for in full; each takes several queries of its spans."""


def culprits_of(
    store: Store,
    attempt: Attempt,
    joined: Sequence[tuple[Finding, tuple[int, ...]]],
    throttled: frozenset[int],
    drifts: Sequence[JobDrift],
    seen: Observations,
) -> list[Culprit]:
    """Culprits of findings, each with the ranks that it stands for, the costliest first; and of the job's drifts.

    ``throttled`` are ranks all of whose compute is slow again and again.
    """
    culprits = []
    for place, (finding, ranks) in enumerate(joined):
        if seen.source.source == Source.ROLLUPS:
            evidence = gather_window_evidence(attempt, finding, seen)
        else:
            is_brief = place >= FULL_EVIDENCE
            evidence = gather_evidence(store, attempt, finding, seen.placement, is_brief=is_brief)
        culprits.append(_culprit(finding, ranks, seen, cause_of(finding, throttled), evidence))
    return culprits + [drift_culprit(store, attempt, drift) for drift in drifts]


def _culprit(
    finding: Finding, ranks: tuple[int, ...], seen: Observations, cause: Cause, evidence: tuple[Evidence, ...]
) -> Culprit:
    hosts = dict.fromkeys(seen.placement.host_of(rank) for rank in ranks)
    return Culprit(
        ranks=ranks,
        hosts=tuple(host for host in hosts if host is not None),
        confidence=finding.confidence,
        severity=severity(finding.lost_share),
        kind=CulpritKind.HOST if len(ranks) > 1 else CulpritKind.RANK,
        cause=cause,
        segment=finding.segment,
        ratio=round(finding.ratio, 4),
        steps=finding.steps,
        pattern=finding.pattern,
        lost_share=finding.lost_share,
        evidence=evidence,
    )
