"""The MFU report in words: all of it in one sentence, and what was not judged."""

from __future__ import annotations

from collections.abc import Sequence

from ...collectors.verdicts import Abstention
from .growth import Growth
from .lives import Life, is_rollups
from .result import Bin, LongStep, Measure, Restart, Trend


def sentence_of(
    verdict: Trend,
    measure: Measure,
    made: Sequence[Bin],
    inside: Sequence[Bin],
    growth: Sequence[Growth],
    redone: Sequence[Restart],
    longest: Sequence[LongStep],
    count: int,
) -> str:
    """The speed of the reference and of the slower bins (``inside`` the stretch), why, long steps and restarts."""
    if verdict == Trend.INSUFFICIENT:
        return "Too few steps to tell whether the job became slower."
    base = next(one for one in made if one.is_reference)
    if verdict == Trend.STEADY:
        text = (
            f"{_speed(measure, base)} in the reference stretch, steps {base.steps[0]} to {base.steps[1]}, and the "
            "others do not differ from it beyond the noise of the steps"
        )
    elif not inside:
        text = f"{_speed(measure, base)} in steps {base.steps[0]} to {base.steps[1]}, and single long steps"
    else:
        worst = max(inside, key=lambda one: one.step_ms)
        text = _change(verdict, f"{_speed(measure, base)} in steps {base.steps[0]} to {base.steps[1]}", base, worst)
        text += f" {_speed(measure, worst)} in steps {worst.steps[0]} to {worst.steps[1]}"
    causes = [row for row in growth if row.share is not None and row.share >= 0.1][:3]
    if causes:
        first, *others = [(row.name, _share(row.share or 0.0)) for row in causes]
        text += f": {first[1]} of what is longer is {first[0]}"
        text += "".join(f", {share} {name}" for name, share in others)
    if count and longest[0].segment is None:
        what = "1 single step" if count == 1 else f"{count} single steps"
        text += f"; {what} of up to {longest[0].duration_ms / 1e3:,.1f} s, as restarts or stalls make them"
    if redone:
        times = "1 restart" if len(redone) == 1 else f"{len(redone)} restarts"
        text += f"; {times} repeated {sum(one.lost_steps for one in redone)} steps"
    return text + "."


def _change(verdict: Trend, speed: str, base: Bin, worst: Bin) -> str:
    if verdict == Trend.DECLINED:
        return f"{speed},"
    is_over = (worst.attempt, worst.steps) < (base.attempt, base.steps)
    return f"{speed}: the job became faster, from" if is_over else f"{speed}, and for a while"


def _share(share: float) -> str:
    return "all of it" if share >= 0.995 else f"{share:.0%}"


def _speed(measure: Measure, one: Bin) -> str:
    if measure == Measure.MFU and one.mfu is not None:
        return f"MFU {one.mfu:.1%}"
    if measure == Measure.TOKENS and one.tokens_per_second is not None:
        return f"{one.tokens_per_second:,.0f} tokens/s"
    return f"{one.step_ms:,.1f} ms a step"


def notes_of(lives: Sequence[Life], measure: Measure) -> list[Abstention]:
    """What the figures lack, and what was left out."""
    notes = []
    if measure != Measure.MFU:
        instead = "tokens a second" if measure == Measure.TOKENS else "the step time relative to the reference stretch"
        notes.append(Abstention("mfu", f"no MFU was recorded (the device's peak is not known): {instead} is shown"))
    if measure == Measure.SPEED:
        notes.append(Abstention("tokens", "no tokens were recorded"))
    if is_rollups(lives):
        reason = (
            "pauses were taken from averages over windows of steps: how long the longest of a step was is estimated"
        )
        notes.append(Abstention("rollups", reason))
    for life in lives:
        if life.columns.parts is not None and not len(life.columns.parts.axes):
            reason = f"no waiting was recorded in attempt {life.attempt.attempt}: it is in what no span recorded"
            notes.append(Abstention("waiting", reason))
        left_out = len(life.series) - len(life.kept)
        if left_out:
            what = "first step" if left_out == 1 else f"first {left_out} steps"
            reason = f"left out of attempt {life.attempt.attempt}: the {what}"
            notes.append(Abstention("warm-up", reason))
    return notes
