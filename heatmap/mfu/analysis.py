"""`find_mfu`: MFU over time in bins of steps, and what explains its decline."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...collectors.store import Attempt, Store
from ...collectors.verdicts import Abstention, Evidence
from ...collectors.views import literal
from ...profiler.errors import MegascopeError
from ..stragglers import find_stragglers
from .growth import Columns, Growth, explain
from .lives import Life, load_life, long_steps, restarts, wall_mfu
from .parts import BoolArray
from .result import Bin, Measure, MfuReport, Slow, Trend
from .words import notes_of, sentence_of

BINS = 24
MIN_BIN_STEPS = 5

REFERENCE_SLACK = 1.01
"""The earliest bin within a hundredth of the fastest is the reference: a decline is told from the beginning on."""

SLOWER = 1.01
"""Bins whose mean step takes so many times the reference's count as slower."""

MIN_ERRORS = 3.0
"""A decline is so many standard errors of the two means at least: steps are never equally long."""

SHOWN_SHARE = 0.01
"""Parts of a bin's growth from this share on are listed with it."""

_Choice = list[tuple[Columns, BoolArray]]


def find_mfu(
    store: Store, attempts: Sequence[Attempt], *, steps: tuple[int, int] | None = None, bins: int = BINS
) -> MfuReport:
    """MFU of the attempts of one run over time, in about ``bins`` bins, and where the time of slower bins went.

    The reference is the first bin after warm-up whose mean step is within 1 % of the fastest bin's. ``steps`` (first,
    last) limit what is looked at. Raises MegascopeError where no attempt has a step with a time.
    """
    lives = [life for attempt in attempts if (life := load_life(store, attempt, steps)) is not None]
    if not lives:
        raise MegascopeError(
            f"Run {attempts[-1].run} has no step with a time in {store.root}: give other steps, or wait for the first."
        )
    ranges = [(life, one) for life in lives for one in _ranges(life, max(1, round(bins / len(lives))))]
    reference = _reference(ranges)
    slow, notes = _slow(store, lives, steps)
    base = _columns_of([reference])
    made = [_bin(life, one, reference, base, slow) for life, one in ranges]
    slower = [pair for pair, one in zip(ranges, made, strict=True) if one.step_ms > SLOWER * _mean_ms(reference)]
    growth = tuple(explain(base, _columns_of(slower))) if slower else ()
    return _report(store, lives, made, reference, growth, slow, notes, attempts)


def _ranges(life: Life, bins: int) -> list[tuple[int, int]]:
    """Steps (first, last) of the bins of an attempt: as many as asked for, in whole columns."""
    first, last = int(life.kept.steps[0]), int(life.kept.steps[-1])
    spacing = (last - first) / max(len(life.kept) - 1, 1)  # logs may hold every fifth step only
    size = max(math.ceil((last - first + 1) / bins), math.ceil(MIN_BIN_STEPS * spacing), life.width)
    size = -(-size // life.width) * life.width
    start = first // life.width * life.width if life.width > 1 else first
    edges = list(range(start, last + 1, size))
    if len(edges) > 1 and last - edges[-1] + 1 < size / 2:
        edges.pop()  # a short end belongs to the bin before it
    ends = [edge - 1 for edge in edges[1:]] + [last]
    return [
        (max(low, first), high)
        for low, high in zip(edges, ends, strict=True)
        if ((life.kept.steps >= low) & (life.kept.steps <= high)).any()
    ]


def _mean_ms(chosen: tuple[Life, tuple[int, int]]) -> float:
    life, steps = chosen
    return float(life.kept.part((life.kept.steps >= steps[0]) & (life.kept.steps <= steps[1])).ms.mean())


def _reference(ranges: Sequence[tuple[Life, tuple[int, int]]]) -> tuple[Life, tuple[int, int]]:
    means = [_mean_ms(one) for one in ranges]
    return next(one for one, mean in zip(ranges, means, strict=True) if mean <= REFERENCE_SLACK * min(means))


def _columns_of(chosen: Sequence[tuple[Life, tuple[int, int]]]) -> _Choice:
    """The columns of some bins, one entry an attempt."""
    by_life: dict[int, tuple[Life, BoolArray]] = {}
    for life, steps in chosen:
        known = by_life.get(id(life))
        keep = life.inside(steps) if known is None else known[1] | life.inside(steps)
        by_life[id(life)] = (life, keep)
    return [(life.columns, keep & np.isfinite(life.columns.ms)) for life, keep in by_life.values()]


def _bin(
    life: Life,
    steps: tuple[int, int],
    reference: tuple[Life, tuple[int, int]],
    base: _Choice,
    slow: Sequence[Slow],
) -> Bin:
    series = life.kept.part((life.kept.steps >= steps[0]) & (life.kept.steps <= steps[1]))
    is_reference, mean, best = (life, steps) == reference, float(series.ms.mean()), _mean_ms(reference)
    rows = () if is_reference else explain(base, _columns_of([(life, steps)]))
    grown = max(mean - best, 1e-9)
    return Bin(
        attempt=life.attempt.attempt,
        steps=steps,
        start_ns=int(series.start_ns[0]),
        end_ns=series.end_ns(),
        count=len(series),
        step_ms=mean,
        median_step_ms=float(np.median(series.ms)),
        mfu=series.mean_mfu(),
        tokens_per_second=series.tokens_per_second(),
        speed=best / mean,
        is_reference=is_reference,
        lost_s=round((mean - best) * len(series) / 1e3, 6),
        growth=tuple(row for row in rows if abs(row.growth_ms) >= SHOWN_SHARE * grown) if mean > SLOWER * best else (),
        slow=tuple(
            place
            for place, one in enumerate(slow)
            if one.attempt == life.attempt.attempt and one.steps[0] <= steps[1] and one.steps[1] >= steps[0]
        ),
    )


def _slow(
    store: Store, lives: Sequence[Life], steps: tuple[int, int] | None
) -> tuple[tuple[Slow, ...], list[Abstention]]:
    """Findings of the straggler analysis in each attempt that has spans or rollups."""
    found: list[Slow] = []
    notes: list[Abstention] = []
    for life in lives:
        number = life.attempt.attempt
        if life.columns.parts is None:
            reason = f"attempt {number} has step times only: neither parts of a step nor ranks can be told apart"
            notes.append(Abstention("spans", reason))
            continue
        found += [
            Slow(
                number, str(one.kind), one.ranks, one.hosts, str(one.cause), one.segment, one.steps, one.ratio,
                one.lost_share,
            )
            for one in find_stragglers(store, life.attempt, steps=steps).culprits
        ]  # fmt: skip
    return tuple(found), notes


def _report(
    store: Store,
    lives: Sequence[Life],
    made: Sequence[Bin],
    reference: tuple[Life, tuple[int, int]],
    growth: tuple[Growth, ...],
    slow: tuple[Slow, ...],
    notes: list[Abstention],
    attempts: Sequence[Attempt],
) -> MfuReport:
    redone, (longest, count) = restarts(lives), long_steps(lives)
    best = _mean_ms(reference)
    slower = [one for one in made if one.step_ms > SLOWER * best]
    lost_s = sum(one.lost_s for one in slower)
    total_s = sum(one.step_ms * one.count for one in made) / 1e3
    steps = sum(one.count for one in slower)
    verdict = _trend(made, reference[0], lost_s / total_s)
    whole = _whole(lives)
    measure = Measure.MFU if whole[0] is not None else Measure.TOKENS if whole[1] is not None else Measure.SPEED
    return MfuReport(
        run=lives[-1].attempt.run,
        attempt=attempts[0].attempt if len(attempts) == 1 else None,
        data_age_s=store.data_age_s(lives[-1].attempt),
        verdict=verdict,
        sentence=sentence_of(verdict, measure, made, growth, redone, longest, count),
        measure=measure,
        source=str(lives[-1].choice.source) if lives[-1].columns.parts is not None else "steps",
        reference=reference[1],
        mfu=whole[0],
        mfu_wall=wall_mfu(lives, redone),
        tokens_per_second=whole[1],
        lost_s=round(lost_s, 6),
        lost_share=lost_s / total_s,
        growth_ms=lost_s / steps * 1e3 if steps else 0.0,
        growth=growth,
        bins=tuple(made),
        restarts=redone,
        long_steps=longest,
        long_step_count=count,
        slow=slow,
        evidence=_evidence(reference, made),
        abstained=tuple(notes + notes_of(lives, measure)),
    )


def _whole(lives: Sequence[Life]) -> tuple[float | None, float | None]:
    """MFU and tokens a second over all steps after warm-up, None where any attempt lacks them."""
    shares = np.array([float(life.kept.ms.sum()) for life in lives])
    result = []
    for values in ([life.kept.mean_mfu() for life in lives], [life.kept.tokens_per_second() for life in lives]):
        known = [value for value in values if value is not None]
        result.append(float(np.dot(known, shares) / shares.sum()) if len(known) == len(lives) else None)
    return result[0], result[1]


def _trend(made: Sequence[Bin], life: Life, lost_share: float) -> Trend:
    """Whether the slowest bin is slower than noise, which is taken from differences between neighbouring steps.

    The standard error of a mean of n values is sigma / sqrt(n).
    """
    if len(made) < 2:
        return Trend.INSUFFICIENT
    base, worst = next(one for one in made if one.is_reference), max(made, key=lambda one: one.step_ms)
    if lost_share < SLOWER - 1:
        return Trend.STEADY
    sigma = 1.4826 * float(np.median(np.abs(np.diff(life.kept.ms)))) / math.sqrt(2)
    error = sigma * math.sqrt(1 / base.count + 1 / worst.count)
    return Trend.DECLINED if worst.step_ms - base.step_ms > MIN_ERRORS * error else Trend.STEADY


def _evidence(reference: tuple[Life, tuple[int, int]], made: Sequence[Bin]) -> tuple[Evidence, ...]:
    """Mean step time of the slowest bin beside the reference's, from the steps that are stored."""
    worst, (life, steps) = max(made, key=lambda one: one.step_ms), reference
    base_ms = next(one.step_ms for one in made if one.is_reference)

    def sql(attempt: int, between: tuple[int, int]) -> str:
        return (
            f"SELECT avg(ms) FROM (SELECT step, median(duration_ns) / 1e6 AS ms FROM steps_all WHERE run = "
            f"{literal(life.attempt.run)} AND attempt = {attempt} AND step BETWEEN {between[0]} AND {between[1]} "
            f"GROUP BY step)"
        )

    return (
        Evidence(
            f"a step took {worst.step_ms:,.2f} ms on average in steps {worst.steps[0]} to {worst.steps[1]}, "
            f"{base_ms:,.2f} ms in steps {steps[0]} to {steps[1]}",
            worst.step_ms,
            base_ms,
            "steps",
            sql(worst.attempt, worst.steps),
        ),
    )
