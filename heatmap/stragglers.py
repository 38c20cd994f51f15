"""`find_stragglers`: from a store to the straggler verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..collectors.store import Attempt, Store
from ..profiler.vocabulary import SegmentKind
from .causes import CAUSES, MAIN_SEGMENT_SHARE, cause_of, throttled_ranks
from .drift import JobDrift, find_drift
from .drift_evidence import drift_culprit
from .evidence import gather_evidence
from .growth import find_growth
from .hosts import by_host, hosts_of_stages
from .judge import DEFAULT_THRESHOLDS, Finding, SegmentJudgement, judge_segment, measured_waiting, per_rank
from .observations import MAIN_KINDS, Observations, observe
from .source import Source
from .thresholds import Thresholds
from .verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Outcome, StragglerVerdict, severity
from .window_evidence import gather_window_evidence

MAX_CULPRITS = 20
MAX_HIDING = 8
"""Ranks of a segment that are named for windows that may hide a delay."""

MAX_VISIBLE_RATIO = 1.5
"""Noise that hides slow-downs of this size forbids the word healthy."""

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
    is slow, also beside a rank's costliest. ``throttled`` are ranks all of whose compute is slow again and again;
    ``drifts`` are the job's own: they name no rank."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    abstained: tuple[Abstention, ...]
    slow: frozenset[tuple[int, str]] = frozenset()
    drifts: tuple[JobDrift, ...] = ()
    throttled: frozenset[int] = frozenset()


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
        _culprit(finding, ranks, seen, cause_of(finding, judgement.throttled), gather(store, attempt, finding))
        for finding, ranks in joined[:MAX_CULPRITS]
    ]
    culprits += [drift_culprit(store, attempt, drift) for drift in judgement.drifts]
    culprits.sort(key=lambda one: -one.lost_share)
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
    drifts = _drifts(seen, thresholds)
    everything = [
        finding
        for key, one in judgements.items()
        for finding in one.findings
        if key not in drifts or finding.rank in drifts[key].apart
    ]
    findings = per_rank(everything)
    blocking += _not_judged(judgements, seen)
    if not findings and not drifts and (growth := find_growth(seen.step_ms, seen.steps)) is not None:
        blocking.append(growth.note)
    notes = [note for one in judgements.values() for note in one.abstained] + _notes(seen, thresholds, drifts)
    outcome = Outcome.FINDINGS if findings or drifts else Outcome.INSUFFICIENT if blocking else Outcome.HEALTHY
    slow = frozenset((finding.rank, finding.segment) for finding in everything)
    return Judgement(
        outcome,
        tuple(findings),
        tuple(_unique([*blocking, *notes])),
        slow,
        tuple(drifts.values()),
        throttled_ranks(everything, judgements),
    )


def _notes(seen: Observations, thresholds: Thresholds, drifts: dict[tuple[str, str], JobDrift]) -> list[Abstention]:
    """What was left out, and why; none of it forbids the word healthy."""
    notes = [*_steps_read(seen), *_unmeasured(seen, is_main=False)]
    if seen.warm_up:
        first, last = seen.warm_up[0], seen.warm_up[-1]
        which = f"step {first} is" if first == last else f"steps {first} to {last} are"
        notes.append(Abstention("warm-up", f"{which} left out: the first steps of an attempt are unlike the others"))
    notes.append(Abstention("short-trouble", _shortest_delay(seen.source.step_width, thresholds)))
    if seen.source.source == Source.ROLLUPS:
        notes.append(Abstention("spans", _ROLLUPS_READ.format(seen.source.step_width, seen.source.reason)))
    return notes + [one.note for one in drifts.values()]


def _shortest_delay(width: int, thresholds: Thresholds) -> str:
    """What may be missed for being short. A window counts if it is full: where windows begin is chance."""
    if width == 1:
        return (
            f"a delay of fewer than {thresholds.min_length} steps ({thresholds.ended_length} if it has ended) is not "
            f"looked for, unless a single step stalls"
        )
    limits = [(thresholds.needed_length(1.0, to_the_end) + 1) * width - 1 for to_the_end in (True, False)]
    strong = [
        (thresholds.needed_length(thresholds.strong_ratio, to_the_end) + 1) * width - 1 for to_the_end in (True, False)
    ]
    return (
        f"a delay of fewer than {limits[0]} steps ({limits[1]} if it has ended) may fill too few windows to accuse "
        f"anyone, from x{thresholds.strong_ratio:g} on {strong[0]} ({strong[1]}) are enough; one of fewer than "
        f"{thresholds.shortest_steps} steps is not looked for"
    )


def _steps_read(seen: Observations) -> list[Abstention]:
    """Which steps were read, where these are not those that were asked for."""
    if seen.asked is None or seen.source.source != Source.ROLLUPS or not len(seen.steps):
        return []
    first, last, width = int(seen.steps[0]), int(seen.steps[-1]) + seen.source.step_width - 1, seen.source.step_width
    last = last if seen.last_step is None else min(last, seen.last_step)
    if (first, last) == seen.asked:
        return []
    reason = (
        f"steps {seen.asked[0]} to {seen.asked[1]} were asked for, steps {first} to {last} were read: rollups have "
        f"whole windows of {width} steps only"
    )
    return [Abstention("steps", reason)]


def _unmeasured(seen: Observations, *, is_main: bool) -> list[Abstention]:
    """Work without a time that can be trusted; of the main kinds, it may hide a slow rank."""
    reason = "none of its spans has a time that can be trusted"
    return [Abstention(name, reason) for name, kind in seen.unmeasured if (kind in MAIN_KINDS) == is_main]


def _drifts(seen: Observations, thresholds: Thresholds) -> dict[tuple[str, str], JobDrift]:
    """What drifts on nearly all ranks, by name and kind of the segment."""
    collecting = (one for one in seen.cells if CAUSES.get(SegmentKind(one.kind)) == Cause.GC_DRIFT)
    found = (find_drift(one, seen, thresholds) for one in collecting)
    return {(one.segment, one.kind): one for one in found if one is not None}


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
    reasons += [one for one in _unmeasured(seen, is_main=True) if seen.cells]
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
    where = (
        f" ({', '.join(name for name, _ in seen.unmeasured)} ran, but without times that can be trusted)"
        if seen.unmeasured
        else ""
    )
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
    return reasons + [note for one in judgements.values() for note in one.hiding[:MAX_HIDING]]


def _unique(abstained: Iterable[Abstention]) -> list[Abstention]:
    return list(dict.fromkeys(abstained))


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
