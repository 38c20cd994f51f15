"""What could not be judged, in words: what was left out, what was not recorded, and what could not be compared."""

from __future__ import annotations

from collections.abc import Sequence

from ..collectors.verdicts import Abstention
from ..profiler.vocabulary import SegmentKind
from .causes import MAIN_SEGMENT_SHARE
from .drift import JobDrift
from .hosts import hosts_of_stages
from .judge import SegmentJudgement
from .observations import MAIN_KINDS, Observations
from .source import Source
from .thresholds import Thresholds

MAX_HIDING = 8
"""Ranks of a segment that are named for windows that may hide a delay."""

MAX_VISIBLE_RATIO = 1.5
"""Noise that hides slow-downs of this size forbids the word healthy."""

HIDDEN = 0.02
"""What noise hides beyond the bar is told from this on."""

_ROLLUPS_READ = (
    "rollups over {} steps were compared instead of single spans ({}): chunks are not told apart, and who arrives late "
    "in a segment is not looked at"
)


def left_out(seen: Observations, thresholds: Thresholds, drifts: Sequence[JobDrift]) -> list[Abstention]:
    """What was left out, and why; none of it forbids the word healthy."""
    notes = [*_steps_read(seen), *_unmeasured(seen, is_main=False)]
    if seen.warm_up:
        first, last = seen.warm_up[0], seen.warm_up[-1]
        which = f"step {first} is" if first == last else f"steps {first} to {last} are"
        notes.append(Abstention("warm-up", f"{which} left out: the first steps of an attempt are unlike the others"))
    if seen.left_out is not None:
        notes.append(Abstention("coverage", f"{seen.left_out}: who else is slow in a group cannot be told"))
    notes.append(Abstention("short-trouble", _shortest_delay(seen.source.step_width, thresholds)))
    if seen.source.source == Source.ROLLUPS:
        notes.append(Abstention("spans", _ROLLUPS_READ.format(seen.source.step_width, seen.source.reason)))
    return notes + [one.note for one in drifts]


def _shortest_delay(width: int, thresholds: Thresholds) -> str:
    """What may be missed for being short. A window counts if it is full: where windows begin is chance."""
    if width == 1:
        return (
            f"a delay of fewer than {thresholds.min_length} steps ({thresholds.ended_length} if it has ended; "
            f"{thresholds.many_length} beside {thresholds.many_peers} peers or more) is not looked for, unless a "
            f"single step stalls"
        )
    limits = [(thresholds.needed_length(1.0, to_the_end) + 1) * width - 1 for to_the_end in (True, False)]
    strong = [
        (thresholds.needed_length(thresholds.strong_ratio, to_the_end) + 1) * width - 1 for to_the_end in (True, False)
    ]
    return (
        f"a delay of fewer than {limits[0]} steps ({limits[1]} if it has ended) may fill too few windows to accuse "
        f"anyone, from x{thresholds.strong_ratio:g} on {strong[0]} ({strong[1]}) are enough; one of fewer than "
        f"{thresholds.shortest_steps} steps is not looked for; beside {thresholds.many_peers} peers or more the "
        f"histograms of the windows show a delay from {thresholds.many_length} steps on"
    )


def _steps_read(seen: Observations) -> list[Abstention]:
    """Which steps were read, where these are not those that were asked for."""
    if seen.asked is None or seen.source.source != Source.ROLLUPS or not len(seen.steps):
        return []
    width = seen.source.step_width
    first, last = int(seen.steps[0]), seen.last_of(int(seen.steps[-1]), width)
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


def data_missing(seen: Observations, thresholds: Thresholds) -> list[Abstention]:
    """Reasons against the word healthy that lie in what was recorded."""
    reasons = []
    if not seen.cells:
        reasons.append(_no_cells(seen))
    width = seen.source.step_width
    if len(seen.steps) < thresholds.healthy_steps and seen.cells:
        needed = thresholds.healthy_steps * width
        reason = f"only {counted(len(seen.steps) * width, 'step')} after warm-up, at least {needed} are needed"
        reasons.append(Abstention("steps", reason))
    if seen.missing_count:
        reasons.append(Abstention("coverage", _without_data(seen)))
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


def _without_data(seen: Observations) -> str:
    """Which ranks are missing: not recorded at all, or recorded without work that could be compared."""
    shown = ", ".join(str(rank) for rank in seen.missing[:8]) + (", ..." if len(seen.missing) > 8 else "")
    unknown, idle = seen.missing_count - len(seen.missing), len(seen.missing)
    if not idle:
        return f"{counted(unknown, 'rank')} of the job {'has' if unknown == 1 else 'have'} no data"
    parts = [f"{counted(idle, 'rank')} of the job {'has' if idle == 1 else 'have'} no timed work (rank {shown})"]
    if unknown:
        parts.append(f"{unknown} more {'was' if unknown == 1 else 'were'} not recorded at all")
    return ", ".join(parts)


def counted(number: int, noun: str) -> str:
    """A number of things in words: 1 step, 2 steps."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


def visible_ratio(judgements: dict[tuple[str, str], SegmentJudgement], thresholds: Thresholds) -> float | None:
    """Ratio from which on a rank would have been named, whatever main segment of work it is slow in; None if none was
    judged. What costs little has to be slower to matter."""
    ratios = [
        max(one.visible_ratio, 1 + thresholds.min_excess_share / one.cost_share)
        for one in _main(judgements).values()
        if one.visible_ratio is not None
    ]
    return round(max(ratios), 4) if ratios else None


def hidden_below(judgements: dict[tuple[str, str], SegmentJudgement], thresholds: Thresholds) -> list[Abstention]:
    """Main segments whose noise hides more than the bar does; none of it forbids the word healthy."""
    return [
        Abstention(name, f"a rank slower than its peers by less than x{one.visible_ratio:.2f} would not have shown")
        for (name, _), one in _main(judgements).items()
        if one.visible_ratio is not None and thresholds.min_ratio + HIDDEN < one.visible_ratio <= MAX_VISIBLE_RATIO
    ]


def _main(judgements: dict[tuple[str, str], SegmentJudgement]) -> dict[tuple[str, str], SegmentJudgement]:
    """Segments of work that make up much of the step; checkpoints are not taken in every step."""
    return {
        key: one
        for key, one in judgements.items()
        if key[1] != SegmentKind.CHECKPOINT and one.cost_share >= MAIN_SEGMENT_SHARE
    }


def not_judged(judgements: dict[tuple[str, str], SegmentJudgement], seen: Observations) -> list[Abstention]:
    """Reasons against the word healthy that lie in what could be compared."""
    if len(seen.ranks) == 1:
        return []
    reasons = []
    main = _main(judgements) or judgements
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
    judged = frozenset[int]().union(*(one.compared for one in judgements.values()))
    alone = [int(rank) for rank in seen.ranks if int(rank) not in judged and int(rank) not in seen.missing]
    if alone and judged:
        shown = ", ".join(str(rank) for rank in alone[:8]) + (", ..." if len(alone) > 8 else "")
        reasons.append(Abstention("peers", f"ranks without peers, or with too few steps, were not judged: {shown}"))
    return reasons + [note for one in judgements.values() for note in one.hiding[:MAX_HIDING]]
