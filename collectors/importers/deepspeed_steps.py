"""Steps of one rank from what DeepSpeed's log tells: their numbers, timers and durations, none of them guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from .deepspeed_lines import Event, PipelineStep, Speed, Start, StepEnd, Timers
from .log_lines import LONGEST_NS, Iteration

_MOST_RETURNS = 2
"""A job that goes back to earlier steps without making an engine does so once or twice; two engines do all the time."""


@dataclass(slots=True)
class Steps:
    """The steps of a rank in the order of the log, and what could not be used.

    ``by_dates`` counts durations that are means of what lies between two lines, ``skipped`` the steps of the job
    without an update. ``is_counted``: no line tells a number, so the first step is 1. ``has_engines``: several engines
    write into the log.
    """

    iterations: list[Iteration] = field(default_factory=list)
    by_dates: int = 0
    skipped: int = 0
    lost_timers: int = 0
    lost_speeds: int = 0
    is_counted: bool = False
    has_engines: bool = False


@dataclass(slots=True)
class _Known:
    """What lines tell of one step; ``stamps`` are their dates by kind of line, ns."""

    stamps: dict[type, int] = field(default_factory=dict)
    end: StepEnd | None = None
    speed: Speed | None = None
    pipeline: PipelineStep | None = None
    timers: dict[str, int | None] = field(default_factory=dict)


def steps_of(events: Sequence[Event], batch: tuple[int, int] | None) -> Steps:
    """The steps of a rank. ``batch``: samples and micro-steps a step, None where the log does not tell."""
    has_engines = _has_engines(events)
    steps = Steps(has_engines=has_engines)
    is_pipeline = any(isinstance(one, PipelineStep) for one in events)
    if is_pipeline or has_engines:
        steps.lost_timers = 0 if is_pipeline else sum(isinstance(one, Timers) for one in events)
        events = [one for one in events if not isinstance(one, Timers | Speed)]
    anchor = _anchor(events)
    steps.is_counted = anchor is None and not is_pipeline
    lives = [list(events)] if steps.is_counted else _lives(events)
    for life in lives:
        known = _known(life, anchor, batch, steps)
        told_speeds = [one for one in life if isinstance(one, Speed)]
        can_trust = batch is not None and _spans_whole_steps(told_speeds, batch[1])
        steps.iterations += _iterations(known, batch, steps, can_trust=can_trust)
    return steps


def _has_engines(events: Sequence[Event]) -> bool:
    """Whether steps of several engines alternate: numbers come twice, or go back time and again."""
    ends = [one for one in events if isinstance(one, Start) or (isinstance(one, StepEnd) and one.step > 0)]
    numbers = [(a.step, b.step) for a, b in pairwise(ends) if isinstance(a, StepEnd) and isinstance(b, StepEnd)]
    return any(a == b for a, b in numbers) or sum(a > b for a, b in numbers) > _MOST_RETURNS


def _anchor(events: Sequence[Event]) -> type | None:
    """The kind of lines that tell numbers of steps."""
    if any(isinstance(one, StepEnd) and one.step > 0 for one in events):
        return StepEnd
    return Speed if any(isinstance(one, Speed) and one.step is not None for one in events) else None


def _lives(events: Sequence[Event]) -> list[list[Event]]:
    """Events between starts of the job. Of several engines only what goes on from the highest number is kept."""
    lives: list[list[Event]] = [[]]
    last, has_engines = 0, _has_engines(events)
    for one in events:
        step = one.step if isinstance(one, StepEnd | PipelineStep) else None
        if isinstance(one, Start) or step == 0:
            lives.append([])
            last = 0
            continue
        if step is not None:
            if has_engines and isinstance(one, StepEnd) and step <= last:
                continue
            if step < last:
                lives.append([])
            last = step
        lives[-1].append(one)
    return [life for life in lives if life]


def _known(
    life: Sequence[Event], anchor: type | None, batch: tuple[int, int] | None, steps: Steps
) -> dict[int, _Known]:
    """What is known of each step of a life, in the order of the steps."""
    known: dict[int, _Known] = {}
    latest: StepEnd | None = None
    for one in life:
        if isinstance(one, StepEnd) and one.step > 0:
            latest = known.setdefault(one.step, _Known()).end = one
            _stamp(known[one.step], one)
        elif isinstance(one, PipelineStep):
            known.setdefault(one.step, _Known()).pipeline = one
        elif isinstance(one, Speed):
            step = one.step if anchor is Speed else _step_of(one, latest, batch)
            if step is None:
                steps.lost_speeds += 1
                continue
            known.setdefault(step, _Known()).speed = one
            _stamp(known[step], one)
    for step, timers in _numbered(life, anchor, steps):
        known.setdefault(step, _Known()).timers = timers.values
        _stamp(known[step], timers)
    return dict(sorted(known.items()))


def _stamp(known: _Known, line: StepEnd | Speed | Timers) -> None:
    if line.moment_ns is not None:
        known.stamps[type(line)] = line.moment_ns


def _step_of(speed: Speed, latest: StepEnd | None, batch: tuple[int, int] | None) -> int | None:
    """The step that a throughput belongs to: that of the line before it, if it has the same number, or if it came
    before half of another step can have passed. A job that was resumed counts anew in its throughput.
    """
    if latest is None:
        return None
    told = speed.step if speed.step is not None else speed.micro_step
    if told == latest.step:
        return latest.step
    if batch is None or speed.moment_ns is None or latest.moment_ns is None:
        return None
    later = speed.moment_ns - latest.moment_ns
    return latest.step if 0 <= later < batch[0] / speed.samples_a_second * 1e9 / 2 else None


def _numbered(life: Sequence[Event], anchor: type | None, steps: Steps) -> Iterator[tuple[int, Timers]]:
    """Timers and their steps. Each step prints its timers behind its number, and most steps print no number: timers
    have one only if there are as many of them as steps.
    """
    pending: list[Timers] = []
    before: int | None = None
    for one in life:
        if isinstance(one, Timers):
            pending.append(one)
        elif anchor is not None and isinstance(one, anchor) and isinstance(one, StepEnd | Speed):
            if one.step is None:
                continue
            fits = len(pending) < one.step if before is None else len(pending) == one.step - before
            if fits:
                yield from zip(range(one.step - len(pending), one.step), pending, strict=True)
            else:
                steps.lost_timers += len(pending)
            before, pending = one.step, []
    if before is not None:
        yield from zip(count(before), pending, strict=False)
    elif anchor is None:
        yield from enumerate(pending, 1)
    else:
        steps.lost_timers += len(pending)


def _spans_whole_steps(speeds: Sequence[Speed], micro_steps: int) -> bool:
    """Whether the timer behind the throughput ran in all micro-steps of a step.

    Under Megatron-DeepSpeed it starts anew in each and is stopped in the last, and older versions tell each
    micro-step's: there it is no throughput of the step.
    """
    if any(one.step is None for one in speeds):
        return micro_steps == 1
    confirmed, before = False, None
    for one in speeds:
        base = Speed(0, 0, 0, 1.0, None) if one.epoch == 0 else before
        before = one
        if base is None or base.epoch != one.epoch:
            continue
        if one.micro_step - base.micro_step != micro_steps * ((one.step or 0) - (base.step or 0)):
            return False
        confirmed = True
    return confirmed


def _iterations(
    known: dict[int, _Known], batch: tuple[int, int] | None, steps: Steps, *, can_trust: bool
) -> Iterator[Iteration]:
    before: tuple[int, _Known] | None = None
    for step, one in known.items():
        whole, mean = (None, None) if before is None else _between(before[1], one, step - before[0])
        told = one.pipeline.duration_ns if one.pipeline is not None else None
        if told is None and can_trust and one.speed is not None and batch is not None:
            took = batch[0] / one.speed.samples_a_second * 1e9
            told = round(took) if took <= (LONGEST_NS if whole is None else whole) else None
        steps.by_dates += told is None and mean is not None
        skipped = 0
        if one.end is not None:
            is_next = before is not None and before[0] == step - 1 and before[1].end is not None
            skipped = max(one.end.skipped - before[1].end.skipped, 0) if is_next and before and before[1].end else 0
            steps.skipped = one.end.skipped
        yield Iteration(
            step=step,
            of=None,
            duration_ns=mean if told is None else told,
            end_ns=next((one.stamps[kind] for kind in (Timers, StepEnd, Speed) if kind in one.stamps), None),
            loss=None if one.pipeline is None else one.pipeline.loss,
            learning_rate=None if one.end is None else one.end.learning_rate,
            samples=None if batch is None else batch[0],
            skipped=skipped,
            timers=one.timers,
        )
        before = (step, one)


def _between(before: _Known, one: _Known, steps: int) -> tuple[int | None, int | None]:
    """Time between two lines of the same kind and its mean a step, ns; None where no dates tell it."""
    for kind in (Timers, StepEnd, Speed):
        if kind in before.stamps and kind in one.stamps:
            passed = one.stamps[kind] - before.stamps[kind]
            return (passed, passed // steps) if 0 < passed // steps <= LONGEST_NS else (None, None)
    return None, None
