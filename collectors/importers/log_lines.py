"""Lines of training logs of Megatron and DeepSpeed: iterations, timers, arguments, dates and how the job ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from .hostile import INT32, whole

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|(.*)")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]\s+iteration\b")
_TIMERS = re.compile(r"^\s*time \(ms\) \|(.*)")
_DEEPSPEED = re.compile(r"\bsteps: (\d+) loss: (\S+) iter time \(s\): (\S+) samples/sec: (\S+)")
_ARGUMENT = re.compile(r"^\s+([a-z][a-z0-9_]*) \.*\s*(\S.*?)\s*$")
_MARK = re.compile(r"\[before the start of training step\] datetime: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_ENDED = (
    (re.compile(r"SIGTERM|CANCELLED AT|KeyboardInterrupt|DUE TO TIME LIMIT"), "interrupted"),
    (re.compile(r"^Traceback \(most recent call last\)|CUDA error|OutOfMemoryError"), "crashed"),
)

LONGEST_NS = 366 * 86_400 * 10**9
"""Nothing that a log tells the length of takes longer than a year."""

MOST = 1 << 40
"""Samples of a batch, and skipped iterations, are fewer."""


@dataclass(slots=True)
class Iteration:
    """One line of an iteration, and its timers. What the line does not tell is None; a timer of 0.00 is None.

    ``begin_ns`` is told of the first one after a start of the job.
    """

    step: int
    of: int | None
    duration_ns: int | None
    end_ns: int | None = None
    begin_ns: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    samples: int | None = None
    skipped: int = 0
    nans: int = 0
    timers: dict[str, int | None] = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """All that a log tells. ``before`` are timers that were printed before the first iteration, ``begin_ns`` is when
    an iteration begins that has not been printed yet, ``ended`` what was said of the end behind the last iteration.
    """

    iterations: list[Iteration] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    before: dict[str, int | None] = field(default_factory=dict)
    begin_ns: int | None = None
    ended: str | None = None
    world_size: int | None = None
    restarts: int = 0
    across_ranks: bool = False


def read_log(lines: Iterable[str]) -> Log:
    """Read a log line by line; what is none of its known lines is passed over."""
    log = Log()
    deepspeed: list[Iteration] = []
    inside = False
    for line in lines:
        if " arguments ---" in line:
            inside = "end of arguments" not in line
        elif inside:
            found = _ARGUMENT.match(line)
            if found is not None:
                log.arguments.setdefault(found[1], found[2])
        elif "|" in line:
            _take_bars(log, line)
        else:
            _take_other(log, line, deepspeed)
    log.iterations = log.iterations or deepspeed
    return log


def _take_bars(log: Log, line: str) -> None:
    """A line of an iteration or of timers."""
    found = _ITERATION.search(line)
    if found is not None:
        one = _iteration(found, line)
        if one is not None:
            if log.iterations and one.step <= log.iterations[-1].step:
                log.restarts += 1
            one.begin_ns, log.begin_ns, log.ended = log.begin_ns, None, None
            log.iterations.append(one)
        return
    timers = _TIMERS.match(line)
    if timers is not None:
        told = dict(_timers(timers[1]))
        if log.iterations:
            log.iterations[-1].timers.update(told)
        else:
            log.before.update(told)


def _take_other(log: Log, line: str, deepspeed: list[Iteration]) -> None:
    if "iter time" in line:
        found = _DEEPSPEED.search(line)
        step = None if found is None else whole(found[1])
        if found is not None and step is not None:
            deepspeed.append(Iteration(step, None, ns_of_seconds(number(found[3])), loss=number(found[2])))
    elif "datetime:" in line:
        mark = _MARK.search(line)
        log.begin_ns = log.begin_ns if mark is None else told_moment(mark[1])
    elif line.startswith("using world size:"):
        digits = re.findall(r"world size: (\d+)", line)
        log.world_size = (whole(digits[0], INT32) or None) if digits else None
    elif "time across ranks" in line:
        log.across_ranks = True
    else:
        log.ended = how_it_ended(line) or log.ended


def how_it_ended(line: str) -> str | None:
    """What a line says of the end of the job, None for nothing."""
    return next((reason for pattern, reason in reversed(_ENDED) if pattern.search(line)), None)


def _iteration(found: re.Match[str], line: str) -> Iteration | None:
    """What a line tells; None for a step that is no number of any column."""
    step = whole(found[1])
    if step is None:
        return None
    told = dict(fields_of(found[3]))
    elapsed = number(told.get("elapsed time per iteration (ms)"))
    samples = number(told.get("global batch size"))
    stamp = _STAMP.search(line)
    return Iteration(
        step=step,
        of=whole(found[2]),
        duration_ns=ns_of(elapsed, 1e6),
        end_ns=None if stamp is None else told_moment(stamp[1]),
        loss=number(told.get("lm loss", told.get("loss"))),
        grad_norm=number(told.get("grad norm")),
        learning_rate=number(told.get("learning rate")),
        samples=count_of(samples),
        skipped=count_of(number(told.get("number of skipped iterations"))) or 0,
        nans=count_of(number(told.get("number of nan iterations"))) or 0,
    )


def fields_of(text: str) -> Iterator[tuple[str, str]]:
    """Key and value of each ``key: value`` between bars."""
    for part in text.split("|"):
        key, colon, value = part.rpartition(":")
        if colon:
            yield key.strip(), value.strip()


def _timers(text: str) -> Iterator[tuple[str, int | None]]:
    """Timers in ns; one of 0.00 did not run or was not measured: nobody can tell, so it is None."""
    for name, value in fields_of(text):
        took = number(value)
        if took is not None and name:
            yield name, ns_of(took, 1e6) if took > 0 else None


def number(text: str | None) -> float | None:
    """A finite number, None for anything else: nan is no value."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def ns_of_seconds(value: float | None) -> int | None:
    """Seconds in whole ns; None for what is no length of anything."""
    return ns_of(value, 1e9)


def ns_of(value: float | None, unit_ns: float) -> int | None:
    """A length in units of ``unit_ns``, in whole ns; None for what is no length of anything."""
    return round(value * unit_ns) if value is not None and 0 <= value * unit_ns <= LONGEST_NS else None


def count_of(value: float | None) -> int | None:
    """A number of samples or iterations; None for what is none."""
    return int(value) if value is not None and 0 <= value < MOST else None


def told_moment(text: str) -> int | None:
    """As `moment_ns`; None for a date that the calendar does not have, and one before 1970."""
    try:
        found = moment_ns(text)
    except ValueError:
        return None
    return found if found >= 0 else None


def moment_ns(text: str) -> int:
    """A date and time of a log, which tells no zone, as if it were UTC."""
    moment = datetime.fromisoformat(text.replace(",", ".").replace("T", " ")).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000
