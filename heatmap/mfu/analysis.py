"""`find_mfu`: MFU over time in bins of steps, and what explains where it is lower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Abstention, Evidence
from ...profiler.errors import MegascopeError
from ..per_token import SIGNAL, UNEQUAL
from ..stragglers import find_stragglers
from ..verdict import Outcome
from .binning import Binned, Cut, binned, columns_of
from .growth import Growth, explain
from .lives import Life, load_life, long_steps, long_time_share, restarts, wall_mfu
from .result import Bin, Measure, MfuReport, Slow, Trend
from .steps import moment
from .words import notes_of, sentence_of

BINS = 12

SHOWN_SHARE = 0.01
"""Parts of a bin's growth from this share on are listed with it."""

STEADY_SHARE = 0.01
"""Share of the time that may be lost to single long steps before it is told as a change."""

Steps = tuple[int, int] | Mapping[int, tuple[int, int]] | None
"""Steps (first, last) of all attempts, or of each by its number; None for all."""


def find_mfu(store: Store, attempts: Sequence[Attempt], *, steps: Steps = None, bins: int = BINS) -> MfuReport:
    """MFU of the attempts of one run over time, in about ``bins`` bins, and where the time of slower bins went.

    What is compared with is a bin before the slower stretch (`stretch.find_course`), the first that is as fast as the
    fastest but for noise. ``steps`` limit what is looked at. Raises MegascopeError where no attempt has a step with a
    time.
    """
    found = [(attempt, _of(steps, attempt)) for attempt in attempts]
    lives = [life for attempt, asked in found if (life := load_life(store, attempt, asked)) is not None]
    if not lives:
        raise MegascopeError(
            f"Run {attempts[-1].run} has no step with a time in {store.root}: give other steps, or wait for the first."
        )
    all_bins = binned(lives, bins)
    slow, notes = _slow(store, lives, steps)
    verdict = _trend(all_bins, lives)
    slower = [one for one in all_bins.cuts if all_bins.is_slower(one)] if verdict in Trend.changed() else []
    base = columns_of([all_bins.reference])
    growth = tuple(explain(base, columns_of(slower))) if slower else ()
    made = [_bin(one, all_bins.reference, slow, one in slower) for one in all_bins.cuts]
    return _report(store, lives, all_bins, made, verdict, growth, slow, notes, attempts)


def _of(steps: Steps, attempt: Attempt) -> tuple[int, int] | None:
    return steps if steps is None or isinstance(steps, tuple) else steps.get(attempt.attempt)


def _bin(one: Cut, reference: Cut, slow: Sequence[Slow], is_slower: bool) -> Bin:
    series, steps, number = one.series(), one.steps, one.life.attempt.attempt
    mean, best = one.mean_ms(), reference.mean_ms()
    rows = explain(columns_of([reference]), columns_of([one])) if is_slower else ()
    return Bin(
        attempt=number,
        steps=steps,
        start_ns=moment(series.start_ns[0]),
        end_ns=moment(series.end_ns()),
        count=len(series),
        step_ms=mean,
        median_step_ms=float(np.median(one.compared_ms())),
        mfu=series.mean_mfu(),
        tokens_per_second=series.tokens_per_second(),
        speed=best / mean,
        is_reference=one == reference,
        lost_s=round((mean - best) * len(series) / 1e3, 6),
        growth=tuple(row for row in rows if abs(row.growth_ms) >= SHOWN_SHARE * (mean - best)),
        slow=tuple(
            place
            for place, each in enumerate(slow)
            if each.attempt == number and each.steps[0] <= steps[1] and each.steps[1] >= steps[0]
        ),
    )


def _slow(store: Store, lives: Sequence[Life], steps: Steps) -> tuple[tuple[Slow, ...], list[Abstention]]:
    """Findings of the straggler analysis in each attempt that has spans or rollups, and why there may be none."""
    found: list[Slow] = []
    notes: list[Abstention] = []
    for life in lives:
        number = life.attempt.attempt
        if life.columns.parts is None:
            reason = f"attempt {number} has step times only: neither parts of a step nor ranks can be told apart"
            notes.append(Abstention("spans", reason))
            continue
        verdict = find_stragglers(store, life.attempt, steps=_of(steps, life.attempt))
        if verdict.verdict == Outcome.INSUFFICIENT:
            reason = f"attempt {number}, {verdict.verdict}: {verdict.sentence()}"
            notes.append(Abstention("stragglers", reason))
        notes += _unequal_tokens(number, verdict.abstained)
        found += [
            Slow(
                number, str(one.kind), one.ranks, one.hosts, str(one.cause), one.segment, one.steps, one.ratio,
                one.lost_share,
            )
            for one in verdict.culprits
        ]  # fmt: skip
    return tuple(found), notes


def _unequal_tokens(number: int, abstained: Sequence[Abstention]) -> Iterator[Abstention]:
    """That the parts of a step are not per token, where the straggler analysis says that tokens differ."""
    for one in abstained:
        if one.signal == SIGNAL and one.reason.startswith(UNEQUAL):
            reason = (
                f"attempt {number}, of tokens {one.reason}. The parts of a step above are times as they were: a part "
                f"that grew, or was awaited, may be a rank's longer sequences. Who is slow is from the straggler "
                f"analysis"
            )
            yield Abstention(SIGNAL, reason)


def _trend(all_bins: Binned, lives: Sequence[Life]) -> Trend:
    """What became of the step's time: see `Trend`."""
    if all_bins.course is None or len(all_bins.cuts) < 2:
        return Trend.INSUFFICIENT
    stretch = all_bins.course.stretch
    if stretch is not None:
        return Trend.DECLINED if stretch.lasts else Trend.VARIES
    return Trend.VARIES if long_time_share(lives) >= STEADY_SHARE else Trend.STEADY


def _report(
    store: Store,
    lives: Sequence[Life],
    all_bins: Binned,
    made: Sequence[Bin],
    verdict: Trend,
    growth: tuple[Growth, ...],
    slow: tuple[Slow, ...],
    notes: list[Abstention],
    attempts: Sequence[Attempt],
) -> MfuReport:
    redone, (longest, count) = restarts(lives), long_steps(lives)
    lost_s = sum(one.lost_s for one, cut in zip(made, all_bins.cuts, strict=True) if all_bins.is_slower(cut))
    total_s = sum(one.step_ms * one.count for one in made) / 1e3
    whole = _whole(lives)
    measure = Measure.MFU if whole[0] is not None else Measure.TOKENS if whole[1] is not None else Measure.SPEED
    inside = [one for one, cut in zip(made, all_bins.cuts, strict=True) if all_bins.inside(cut)]
    return MfuReport(
        run=lives[-1].attempt.run,
        attempt=attempts[0].attempt if len(attempts) == 1 else None,
        data_age_s=store.data_age_s(lives[-1].attempt),
        verdict=verdict,
        sentence=sentence_of(verdict, measure, made, inside, growth, redone, longest, count),
        measure=measure,
        source=str(lives[-1].choice.source) if lives[-1].columns.parts is not None else "steps",
        reference=all_bins.reference.steps,
        mfu=whole[0],
        mfu_wall=wall_mfu(lives),
        tokens_per_second=whole[1],
        lost_s=round(lost_s, 6),
        lost_share=lost_s / total_s,
        growth_ms=sum(row.growth_ms for row in growth),
        growth=growth,
        bins=tuple(made),
        restarts=redone,
        long_steps=longest,
        long_step_count=count,
        slow=slow,
        evidence=_evidence(all_bins, made),
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


def _evidence(all_bins: Binned, made: Sequence[Bin]) -> tuple[Evidence, ...]:
    """Mean step time of the slowest bin beside the reference's, from the steps that are stored."""
    worst, life, steps = max(made, key=lambda one: one.step_ms), all_bins.reference.life, all_bins.reference.steps
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
