"""Lines of DeepSpeed's own log: ends of steps, throughput, timers, its configuration and how the job ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .hostile import INT32, whole
from .layout_file import MOST_RANKS
from .log_lines import MOST, fields_of, how_it_ended, ns_of, number, told_moment

_HEAD = re.compile(r"(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+\] \[[A-Z]+\])")
"""Where a line of the log begins: other output may stand before it, and two processes may write into one line."""

_DATE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+)\] \[[A-Z]+\]")
_STEP = re.compile(r"\[Rank (-?\d+)\] step=(\d+), skipped=(\d+),(?: lr=\[([^\]]*)\])?")
_SPEED = re.compile(
    r"(?:\bepoch=(\d+)/micro_step=(\d+)/global_step=(\d+)|\] (\d+)/(\d+)), RunningAvgSamplesPerSec=[^\s,]+, "
    r"CurrSamplesPerSec=([^\s,]+),"
)
_TIMERS = re.compile(r"(?:\[Rank (-?\d+)\] )?(?:rank=(\d+) )?time \(ms\) \|(.*)")
_TWO_DECIMALS = re.compile(r"\d+\.\d\d")
_PIPELINE = re.compile(r"\bsteps: (\d+) loss: (\S+) iter time \(s\): (\S+) samples/sec: \S+")
_SETTING = re.compile(r"\s(train_batch_size|gradient_accumulation_steps|world_size) \.+ (\d+)\s*$")
_VERSION = re.compile(r"DeepSpeed info: version=([^\s,]+)")
_WORLD = re.compile(r"\bdist_world_size=(\d+)|Discovered MPI settings of .*\bworld_size=(\d+)")
_CODE = re.compile(r"launch\.py:\d+:\w+\].* exits with return code = (-?\d+)")
_SUCCESS = re.compile(r"launch\.py:\d+:\w+\] Process \d+ exits successfully")
_STOPPED = ("-2", "-15")
"""Return codes of processes that SIGINT or SIGTERM ended."""

_NAMES = {
    "fwd": "forward",
    "forward": "forward",
    "bwd": "backward",
    "backward": "backward",
    "bwd_inner": "backward-inner",
    "backward_inner": "backward-inner",
    "bwd_allreduce": "backward-all-reduce",
    "backward_allreduce": "backward-all-reduce",
    "step": "optimizer",
    "optimizer_allgather": "optimizer-all-gather",
    "optimizer_gradients": "optimizer-gradients",
    "optimizer_step": "optimizer-step",
}
"""Timers of a whole step, old names and new, as the tables call them. Each of a micro-step has a name of its own."""

_MICRO = "_microstep"


@dataclass(frozen=True, slots=True)
class Start:
    """An engine was made: the first one, another one beside it, or that of a job that started again. For all ranks."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A step was taken. ``skipped`` counts all of the job that were, for their loss scale."""

    step: int
    skipped: int
    learning_rate: float | None
    moment_ns: int | None


@dataclass(frozen=True, slots=True)
class Speed:
    """Throughput of a step; ``step`` counts since the process began, ``micro_step`` since the epoch did.

    Older versions tell no step, and throughput of the last micro-step alone: ``step`` is None.
    """

    epoch: int
    micro_step: int
    step: int | None
    samples_a_second: float
    moment_ns: int | None


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers of a whole step, ns; one of 0.00 is None."""

    values: dict[str, int | None]
    moment_ns: int | None


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """What a pipeline engine tells of a step; its timers are sums over several."""

    step: int
    loss: float | None
    duration_ns: int | None


Event = Start | StepEnd | Speed | Timers | PipelineStep


@dataclass(slots=True)
class DeepSpeedLines:
    """All that a log tells, events by rank in the order of the lines.

    ``batches`` are the pairs of samples a step and micro-steps a step that configurations told, ``replicas`` their
    data-parallel sizes.
    """

    events: dict[int, list[Event]] = field(default_factory=dict)
    batches: set[tuple[int, int]] = field(default_factory=set)
    replicas: set[int] = field(default_factory=set)
    world_size: int | None = None
    version: str | None = None
    ended: str | None = None
    micro_lines: int = 0


class _Reader:
    """Takes pieces of lines one by one."""

    def __init__(self) -> None:
        self.told = DeepSpeedLines()
        self._batch: int | None = None
        self._parts: dict[int, dict[str, int | None]] = {}
        self._micro: dict[int, list[dict[str, int | None]]] = {}

    def take(self, text: str) -> None:
        """What a piece tells; one that is none of the known lines is passed over."""
        found: re.Match[str] | None
        if "time (ms) |" in text and (found := _TIMERS.search(text)) is not None:
            self._take_timers(found, _date(text))
        elif "SamplesPerSec=" in text and (found := _SPEED.search(text)) is not None:
            self._take_speed(found, _date(text))
        elif "step=" in text and (found := _STEP.search(text)) is not None:
            self._take_step(found, _date(text))
        elif "iter time" in text and (found := _PIPELINE.search(text)) is not None:
            step = whole(found[1])
            if step is not None:
                self._add(0, PipelineStep(step, number(found[2]), ns_of(number(found[3]), 1e9)))
        else:
            self._take_other(text)

    def _add(self, rank: int, event: Event) -> None:
        self.told.events.setdefault(rank, []).append(event)
        if not isinstance(event, Start):
            self.told.ended = None

    def _take_step(self, found: re.Match[str], moment_ns: int | None) -> None:
        rank, step, skipped = _rank(found[1]), whole(found[2]), whole(found[3], MOST)
        if rank is None or step is None or skipped is None:
            return
        rates = {number(one.strip()) for one in (found[4] or "").split(",")}
        self._add(rank, StepEnd(step, skipped, rates.pop() if len(rates) == 1 else None, moment_ns))

    def _take_speed(self, found: re.Match[str], moment_ns: int | None) -> None:
        """Rank 0 alone tells it, without its number."""
        epoch, micro = whole(found[1] or found[4]), whole(found[2] or found[5])
        step, speed = whole(found[3]), number(found[6])
        if epoch is not None and micro is not None and speed is not None and speed > 0:
            self._add(0, Speed(epoch, micro, step, speed, moment_ns))

    def _take_timers(self, found: re.Match[str], moment_ns: int | None) -> None:
        rank = _rank(found[1] or found[2])
        if rank is None:
            return
        told = dict(fields_of(found[3]))
        values = {_NAMES[name]: _timer(value) for name, value in told.items() if name in _NAMES and _is_whole(value)}
        micro = {
            _NAMES[name.removesuffix(_MICRO)]: _timer(value)
            for name, value in told.items()
            if name.endswith(_MICRO) and name.removesuffix(_MICRO) in _NAMES and _is_whole(value)
        }
        if micro:
            self._micro.setdefault(rank, []).append(micro)
            self.told.micro_lines += 1
        elif "forward" in values or "backward" in values:
            pending = self._micro.pop(rank, [])
            if not any(values.values()) and len(pending) == 1:
                values = pending[0]
            values |= self._parts.pop(rank, {})
            self._add(rank, Timers(values, moment_ns))
        elif values:
            self._parts[rank] = values

    def _take_other(self, text: str) -> None:
        told, found = self.told, _SETTING.search(text)
        if found is not None:
            self._take_setting(found[1], whole(found[2], INT32) or None)
        elif (version := _VERSION.search(text)) is not None:
            told.version = version[1]
            for rank in {0, *told.events}:
                self._add(rank, Start())
        elif (world := _WORLD.search(text)) is not None:
            told.world_size = whole(world[1] or world[2], MOST_RANKS) or told.world_size
        elif " exits with return code = " in text and (code := _CODE.search(text)) is not None:
            told.ended = "interrupted" if code[1] in _STOPPED else "crashed"
        elif _SUCCESS.search(text) is not None:
            told.ended = told.ended or "finished"
        else:
            told.ended = how_it_ended(text) or told.ended

    def _take_setting(self, name: str, value: int | None) -> None:
        """A configuration lists its settings by the alphabet: micro-steps, then samples, then the replicas."""
        if value is None:
            return
        if name == "gradient_accumulation_steps":
            self._batch = value
        elif name == "world_size":
            self.told.replicas.add(value)
        elif self._batch is not None:
            self.told.batches.add((value, self._batch))


def read_deepspeed(lines: Iterable[str]) -> DeepSpeedLines:
    """Read a log line by line; what is none of its known lines is passed over."""
    reader = _Reader()
    for line in lines:
        for piece in _pieces(line):
            reader.take(piece)
    return reader.told


def _pieces(line: str) -> Iterator[str]:
    yield from (_HEAD.split(line) if line.count("] [") > 1 else (line,))


def _date(text: str) -> int | None:
    found = _DATE.search(text)
    return None if found is None else told_moment(found[1])


def _rank(text: str | None) -> int | None:
    """A rank; before there are ranks, and where a line names none, it is 0. None for one that no job has."""
    return 0 if text in (None, "-1") else whole(text, MOST_RANKS)


def _is_whole(value: str) -> bool:
    """Whether a value of a timer is all there: a line that was cut may end in a part of one."""
    return _TWO_DECIMALS.fullmatch(value) is not None


def _timer(value: str) -> int | None:
    took = number(value)
    return None if not took else ns_of(took, 1e6)
