"""`find_stragglers`: from a store to the straggler verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..collectors.store import Attempt, Store
from ..profiler.vocabulary import SegmentKind
from .detect import Thresholds
from .evidence import gather_evidence
from .hosts import by_host, hosts_of_stages
from .judge import DEFAULT_THRESHOLDS, Finding, SegmentJudgement, judge_segment, measured_waiting, per_rank
from .observations import Observations, observe
from .source import Source
from .verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Outcome, StragglerVerdict, severity
from .window_evidence import gather_window_evidence

MAX_CULPRITS = 20
MAIN_SEGMENT_SHARE = 0.05
"""Segments above this share of the step must have been judged before anyone is called healthy."""

MAX_VISIBLE_RATIO = 1.5
"""Noise that hides slow-downs of this size forbids the word healthy."""

CAUSES = {
    SegmentKind.DATA: Cause.DATA_STALL,
    SegmentKind.CHECKPOINT: Cause.CHECKPOINT,
    SegmentKind.GC: Cause.GC_DRIFT,
}

NOT_IN_THIS_VERSION = (
    Abstention("network", "transfer times of communication are not compared yet, so a slow link is not looked for"),
    Abstention("what-if", "slowdown, m_w and m_s need a replay of the schedule, which this version does not do"),
)


_ROLLUPS_READ = (
    "rollups over {} steps were compared instead of single spans ({}): chunks are not told apart, and who arrives late "
    "in a segment is not looked at"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the observations came to, before evidence is gathered: one finding a rank, and every (rank, segment) that
    is slow, also beside a rank's costliest."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    abstained: tuple[Abstention, ...]
    slow: frozenset[tuple[int, str]] = frozenset()


def find_stragglers(
    store: Store,
    attempt: Attempt,
    *,
    steps: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
) -> StragglerVerdict:
    """Who is slower than its peers at the same work, in the given steps (first, last) and ranks; all if None.

    Only self time of work is compared, within a stage and chunk; the rules are in `judge` and `compare`.
    """
    seen = observe(store, attempt, steps=steps, ranks=None if ranks is None else list(ranks))
    judgement = judge(seen)
    joined = by_host(judgement.findings, judgement.slow, seen)
    gather = gather_window_evidence if seen.source.source == Source.ROLLUPS else gather_evidence
    culprits = [
        _culprit(finding, ranks, seen, gather(store, attempt, finding)) for finding, ranks in joined[:MAX_CULPRITS]
    ]
    notes = list(judgement.abstained)
    if len(joined) > MAX_CULPRITS:
        more = len(joined) - MAX_CULPRITS
        notes.append(Abstention("culprits", f"{more} more findings cost less and are not listed"))
    return StragglerVerdict(
        run=attempt.run,
        attempt=attempt.attempt,
        data_age_s=store.data_age_s(attempt),
        verdict=judgement.outcome,
        culprits=tuple(culprits),
        abstained=(*notes, *NOT_IN_THIS_VERSION),
    )


def judge(seen: Observations, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Judgement:
    """Judge observations: findings of all segments of work, and healthy only where a straggler would have shown."""
    width = seen.source.step_width
    thresholds = thresholds.for_width(width)
    blocking = _data_missing(seen, thresholds)
    if not seen.cells:
        return Judgement(Outcome.INSUFFICIENT, (), tuple(blocking))
    waiting = measured_waiting(seen)
    judgements = {(one.name, one.kind): judge_segment(one, seen, waiting, thresholds) for one in seen.cells}
    everything = [finding for one in judgements.values() for finding in one.findings]
    findings = per_rank(everything)
    blocking += _not_judged(judgements, seen)
    notes = [note for one in judgements.values() for note in one.abstained]
    notes += [Abstention(name, "none of its spans has a time that can be trusted") for name in seen.unmeasured]
    if seen.warm_up:
        first, last = seen.warm_up[0], seen.warm_up[-1]
        which = f"step {first} is" if first == last else f"steps {first} to {last} are"
        notes.append(Abstention("warm-up", f"{which} left out: the first steps of an attempt are unlike the others"))
    least = thresholds.min_length * width
    reason = f"a delay of fewer than {least} steps is not looked for, unless a single step stalls"
    notes.append(Abstention("short-trouble", reason))
    if seen.source.source == Source.ROLLUPS:
        notes.append(Abstention("spans", _ROLLUPS_READ.format(width, seen.source.reason)))
    outcome = Outcome.FINDINGS if findings else Outcome.INSUFFICIENT if blocking else Outcome.HEALTHY
    slow = frozenset((finding.rank, finding.segment) for finding in everything)
    return Judgement(outcome, tuple(findings), tuple(_unique([*blocking, *notes])), slow)


def _data_missing(seen: Observations, thresholds: Thresholds) -> list[Abstention]:
    """Reasons against the word healthy that lie in what was recorded."""
    reasons = []
    if not seen.cells:
        reasons.append(_no_cells(seen))
    width = seen.source.step_width
    if len(seen.steps) < thresholds.healthy_steps and seen.cells:
        needed = thresholds.healthy_steps * width
        reason = f"only {len(seen.steps) * width} steps after warm-up, at least {needed} are needed"
        reasons.append(Abstention("steps", reason))
    if seen.missing_count:
        named = f" (rank {', '.join(str(rank) for rank in seen.missing[:8])})" if seen.missing else ""
        reasons.append(Abstention("coverage", f"{seen.missing_count} ranks of the job have no data{named}"))
    reasons += _stages_on_one_host(seen)
    if len(seen.ranks) == 1:
        reasons.append(Abstention("peers", "a single rank has no peers to compare it with"))
    elif seen.waits_ms is None and seen.cells:
        inside = ", ".join(one.name for one in seen.cells)
        reason = (
            f"no communication was recorded, so segments ({inside}) contain unmeasured synchronisation: who waits "
            f"there looks as busy as who works, and only a delay that a rank carries out of a segment can be seen"
        )
        reasons.append(Abstention("communication", reason))
    return reasons


def _no_cells(seen: Observations) -> Abstention:
    """Why there is nothing to compare."""
    if seen.stepless:
        reason = (
            f"no step was marked: the {seen.stepless} spans belong to no step, and ranks are compared step by step "
            f"(mark them with megascope.step)"
        )
        return Abstention("steps", reason)
    where = f" ({', '.join(seen.unmeasured)} ran, but without times that can be trusted)" if seen.unmeasured else ""
    return Abstention("events", f"no timed span of work in these steps and ranks{where}")


def _stages_on_one_host(seen: Observations) -> list[Abstention]:
    """Stages that run on one host alone, in a job of several: a slow host cannot be told from its stage's work."""
    stages = hosts_of_stages(seen)
    if len(set().union(*stages.values())) < 2:
        return []
    return [
        Abstention("hosts", f"stage {stage} runs on {host} alone: whether that host is slow cannot be told")
        for stage, hosts in sorted(stages.items())
        if stage >= 0 and len(hosts) == 1
        for host in hosts
    ]


def _not_judged(judgements: dict[tuple[str, str], SegmentJudgement], seen: Observations) -> list[Abstention]:
    """Reasons against the word healthy that lie in what could be compared."""
    if len(seen.ranks) == 1:
        return []
    reasons = []
    main = {key: one for key, one in judgements.items() if one.cost_share >= MAIN_SEGMENT_SHARE}
    if not main:
        main = judgements
    for (name, _), one in main.items():
        if one.visible_ratio is None:
            continue
        if one.visible_ratio > MAX_VISIBLE_RATIO:
            reason = f"it is so noisy that only slow-downs from x{one.visible_ratio:.2f} on would show"
            reasons.append(Abstention(name, reason))
    if all(one.visible_ratio is None for one in main.values()):
        reasons.append(Abstention("peers", "no main segment of work could be compared between ranks"))
    elif any(one.visible_ratio is None for one in main.values()):
        names = ", ".join(name for (name, _), one in main.items() if one.visible_ratio is None)
        reasons.append(Abstention("peers", f"{names} could not be compared between ranks"))
    compared = frozenset[int]().union(*(one.compared for one in judgements.values()))
    alone = [int(rank) for rank in seen.ranks if int(rank) not in compared and int(rank) not in seen.missing]
    if alone and compared:
        shown = ", ".join(str(rank) for rank in alone[:8]) + (", ..." if len(alone) > 8 else "")
        reasons.append(Abstention("peers", f"ranks without peers, or with too few steps, were not judged: {shown}"))
    return reasons


def _unique(abstained: Iterable[Abstention]) -> list[Abstention]:
    return list(dict.fromkeys(abstained))


def _culprit(finding: Finding, ranks: tuple[int, ...], seen: Observations, evidence: tuple[Evidence, ...]) -> Culprit:
    hosts = dict.fromkeys(seen.placement.host_of(rank) for rank in ranks)
    return Culprit(
        ranks=ranks,
        hosts=tuple(host for host in hosts if host is not None),
        confidence=finding.confidence,
        severity=severity(finding.lost_share),
        kind=CulpritKind.HOST if len(ranks) > 1 else CulpritKind.RANK,
        cause=CAUSES.get(SegmentKind(finding.kind), Cause.SLOW_COMPUTE),
        segment=finding.segment,
        ratio=round(finding.ratio, 4),
        steps=finding.steps,
        pattern=finding.pattern,
        lost_share=finding.lost_share,
        evidence=evidence,
    )
