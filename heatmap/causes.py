"""Why a rank is slow, as far as the kind of its segment and the pattern of its delays tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..profiler.vocabulary import SegmentKind
from .judge import Finding, SegmentJudgement
from .verdict import Cause, Pattern

MAIN_SEGMENT_SHARE = 0.05
"""Segments above this share of the step are main ones."""

THROTTLED_STEPS = 1.5
"""A burst lasts more than one step at least every other time: single bad steps have other causes than a device."""

CAUSES = {
    SegmentKind.DATA: Cause.DATA_STALL,
    SegmentKind.CHECKPOINT: Cause.CHECKPOINT,
    SegmentKind.GC: Cause.GC_DRIFT,
}


def main_compute(judgements: Mapping[tuple[str, str], SegmentJudgement]) -> frozenset[tuple[str, str]]:
    """Main segments of compute (name, kind); all of compute where none is main."""
    compute = {key for key in judgements if key[1] == SegmentKind.COMPUTE}
    return frozenset({key for key in compute if judgements[key].cost_share >= MAIN_SEGMENT_SHARE} or compute)


def throttled_ranks(
    findings: Sequence[Finding], judgements: Mapping[tuple[str, str], SegmentJudgement]
) -> frozenset[int]:
    """Ranks whose device is slow for some steps, again and again: in all main segments of compute, not in one alone.

    ``judgements`` are by name and kind of the segment.
    """
    main = main_compute(judgements)
    bursts: dict[int, set[tuple[str, str]]] = {}
    for one in findings:
        if one.pattern == Pattern.INTERMITTENT and one.burst_steps >= THROTTLED_STEPS:
            bursts.setdefault(one.rank, set()).add((one.segment, one.kind))
    return frozenset(rank for rank, segments in bursts.items() if main and main <= segments)


def cause_of(finding: Finding, throttled: frozenset[int]) -> Cause:
    """The cause of a finding; ``throttled`` is what `throttled_ranks` gives."""
    by_kind = CAUSES.get(SegmentKind(finding.kind))
    if by_kind is not None:
        return by_kind
    return Cause.THROTTLING if finding.rank in throttled else Cause.SLOW_COMPUTE
