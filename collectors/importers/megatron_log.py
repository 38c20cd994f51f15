"""Imports logs of Megatron and DeepSpeed: iterations as steps, timers as spans of the rank that logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...profiler.errors import FormatError
from ...profiler.topology import Topology
from ...profiler.vocabulary import Clock, SegmentKind, Status
from .chrome_json import Unbroken, open_stream
from .columns import ITERATION, SegmentInfo, last_look, segment_rows
from .hostile import plain_name, whole
from .imported import Imported, Progress, Rows
from .layout_file import MOST_RANKS
from .log_lines import Iteration, Log, read_log

_INSIDE = {"batch-generator": ("forward-compute", "forward"), "batch generator": ("forward-compute", "forward")}
"""Timers that run inside another one; those of the optimizer's parts have its name in theirs."""


_LONGEST = 1 << 31
"""Above any length of a sequence, and any size of a batch."""


def timer_segment(name: str) -> SegmentInfo:
    """What a timer of Megatron measures."""
    plain = {"forward-compute": "forward", "backward-compute": "backward"}.get(name, name)
    words = set(re.split(r"[-_ ]", name))
    kind = SegmentKind.HOST
    if words & {"recv", "send"}:
        kind = SegmentKind.P2P
    elif "reduce" in words or "gather" in words or "scatter" in words:
        kind = SegmentKind.COLLECTIVE
    elif "optimizer" in words and "setup" not in words and "model" not in words:
        kind = SegmentKind.OPTIMIZER
    elif words & {"batch", "data"} and "setup" not in words and "iterators" not in words:
        kind = SegmentKind.DATA
    elif "checkpoint" in words:
        kind = SegmentKind.CHECKPOINT
    elif words & {"setup", "iterators", "model"}:
        kind = SegmentKind.INIT
    elif words & {"forward", "backward"}:
        kind = SegmentKind.COMPUTE
    return SegmentInfo(plain, kind, "pp" if kind == SegmentKind.P2P else None, "host", Clock.HOST)


@dataclass(frozen=True, slots=True)
class _Span:
    info: SegmentInfo
    step: int | None
    start_ns: int
    duration_ns: int | None
    parent: SegmentInfo | None
    own_ns: int | None


class MegatronLog:
    """One log file, of one launch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.others: list[str] = []
        self.run = re.sub(r"(\.(out|log|txt))?(\.gz)?$", "", plain_name(path)) or plain_name(path)

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises FormatError for a log without an iteration."""
        with closing(open_stream(self._path)) as stream:
            unbroken = Unbroken(stream)
            log = read_log(TextIOWrapper(BufferedReader(unbroken), "utf-8", errors="replace"))
        progress(1, 2)
        if not log.iterations:
            raise FormatError(f"{self._path} has no line of an iteration: it is no log of Megatron or DeepSpeed.")
        topology, world = find_layout(log)
        rank = max((world or 1) - 1, 0)
        begin = log.iterations[0].begin_ns or 0
        passes = list(zip(log.iterations, _starts(log.iterations, begin), strict=True))
        kept = _last_pass(passes)
        lost, is_dated = len(passes) - len(kept), any(one.begin_ns or one.end_ns for one in log.iterations)
        log.iterations, starts = [one for one, _ in kept], [start for _, start in kept]
        spans = [*_setup_spans(log, begin), *_step_spans(log.iterations, starts)]
        rows.add("ranks", _rank_row(rank, topology))
        rows.add("segments", segment_rows([one.info for one in spans]))
        rows.add("steps", _step_rows(log, starts, rank))
        rows.add("events", _event_rows(spans, rank))
        last = max(start + (one.duration_ns or 0) for one, start in zip(log.iterations, starts, strict=True))
        rows.add("heartbeats", last_look(rank, last, log.iterations[-1].step, {}))
        progress(2, 2)
        notes = list(_notes(log, rank, world, lost, is_dated=is_dated))
        if unbroken.is_cut:
            notes.append(f"{plain_name(self._path)} was cut: what could be unpacked was read")
        return Imported(
            layout={} if topology is None else dict(topology.axes),
            world_size=world,
            configuration=_configuration(log, plain_name(self._path)),
            start_ns=min([begin, *(one.start_ns for one in spans)]),
            end_ns=last,
            exit_reason=_exit_reason(log),
            notes=tuple(notes),
        )


_SIZES = (
    ("pp", ("pipeline_model_parallel_size", "pipe_parallel_size")),
    ("dp", ()),
    ("cp", ("context_parallel_size",)),
    ("tp", ("tensor_model_parallel_size", "model_parallel_size")),
)
"""Axes in Megatron's order, the outermost first, and the arguments that tell their sizes; dp is what remains."""


def find_layout(log: Log) -> tuple[Topology | None, int | None]:
    """The mesh from the dump of the arguments, and the number of ranks; None where the log does not tell."""

    def size_of(name: str) -> int | None:
        return whole(log.arguments.get(name), MOST_RANKS) or None

    world = log.world_size or size_of("world_size")
    sizes: dict[str, int] = {}
    for axis, names in _SIZES:
        sizes[axis] = next((size for name in names if (size := size_of(name)) is not None), 1)
    others = sizes["pp"] * sizes["cp"] * sizes["tp"]
    if world is None or world % others or not log.arguments:
        return None, world
    sizes["dp"] = world // others
    kept = {axis: size for axis, size in sizes.items() if size > 1 or axis in ("pp", "dp", "tp")}
    return Topology.from_mapping(kept), world


def _starts(iterations: list[Iteration], begin_ns: int) -> Iterator[int]:
    """Start of each iteration: where its own line tells its end, else behind those before it.

    With several iterations a line, the line's time is their mean, and the step is the last of them.
    """
    at, before = begin_ns, iterations[0].step - 1
    for one in iterations:
        took = one.duration_ns or 0
        at = max(at, one.begin_ns or 0)
        end = one.end_ns if one.end_ns is not None else at + took * max(one.step - before, 1)
        yield max(end - took, 0)
        at, before = end, one.step


def _last_pass(passes: list[tuple[Iteration, int]]) -> list[tuple[Iteration, int]]:
    """Iterations and their starts without those that the job went back behind: their work was lost, or done again."""
    kept: list[tuple[Iteration, int]] = []
    for one in passes:
        while kept and kept[-1][0].step >= one[0].step:
            kept.pop()
        kept.append(one)
    return kept


def _setup_spans(log: Log, begin_ns: int) -> Iterator[_Span]:
    """Timers from before the first iteration, one behind the other up to it."""
    at = begin_ns - sum(took or 0 for took in log.before.values())
    at = max(at, 0)
    for name, took in log.before.items():
        yield _Span(timer_segment(name), None, at, took, None, took)
        at += took or 0


def _step_spans(iterations: list[Iteration], starts: list[int]) -> Iterator[_Span]:
    """Timers of the iterations: how long is measured, when is not, so they stand one behind the other.

    An iteration without a timer that measured anything is one span as a whole.
    """
    for one, start in zip(iterations, starts, strict=True):
        if one.duration_ns is not None and not any(one.timers.values()):
            yield _Span(ITERATION, one.step, start, one.duration_ns, None, one.duration_ns)
        holders = {name: _holder(name, one.timers) for name in one.timers}
        at = start
        inner: dict[str, int] = {}
        for name, took in one.timers.items():
            holder = holders[name]
            if holder is None:
                inner[name] = at
                inside = sum(one.timers[child] or 0 for child, of in holders.items() if of == name)
                own = None if took is None else max(took - inside, 0)
                yield _Span(timer_segment(name), one.step, at, took, None, own)
                at += took or 0
        for name, took in one.timers.items():
            holder = holders[name]
            if holder is not None:
                yield _Span(timer_segment(name), one.step, inner[holder], took, timer_segment(holder), took)
                inner[holder] += took or 0


def _holder(name: str, timers: dict[str, int | None]) -> str | None:
    """The timer that this one runs inside of, where that was printed too."""
    if name.startswith("optimizer-") and "optimizer" in timers:
        return "optimizer"
    return next((one for one in _INSIDE.get(name, ()) if one in timers), None)


def _rank_row(rank: int, topology: Topology | None) -> pa.Table:
    places = {} if topology is None else topology.coordinates(rank)
    return pa.table(
        {
            "rank": pa.array([rank], pa.int32()),
            "host": pa.array([f"host-of-rank-{rank}"]),
            **{axis: pa.array([place], pa.int32()) for axis, place in places.items()},
        }
    )


def _step_rows(log: Log, starts: list[int], rank: int) -> pa.Table:
    length = whole(log.arguments.get("seq_length"), _LONGEST)
    usual = whole(log.arguments.get("global_batch_size"), _LONGEST)
    samples = [one.samples or usual for one in log.iterations]
    ones = log.iterations
    return pa.table(
        {
            "rank": pa.array([rank] * len(ones), pa.int32()),
            "step": pa.array([one.step for one in ones], pa.int64()),
            "start_ns": pa.array(starts, pa.int64()),
            "duration_ns": pa.array([one.duration_ns for one in ones], pa.int64()),
            "loss": pa.array([one.loss for one in ones], pa.float64()),
            "grad_norm": pa.array([one.grad_norm for one in ones], pa.float64()),
            "tokens": pa.array([n * length if n and length else None for n in samples], pa.int64()),
            "learning_rate": pa.array([one.learning_rate for one in ones], pa.float64()),
        }
    )


def _event_rows(spans: list[_Span], rank: int) -> pa.Table:
    status = [str(Status.UNMEASURED if one.duration_ns is None else Status.OK) for one in spans]
    waits = (SegmentKind.P2P, SegmentKind.COLLECTIVE)
    return pa.table(
        {
            "rank": pa.array([rank] * len(spans), pa.int32()),
            "step": pa.array([one.step for one in spans], pa.int64()),
            "segment": pa.array([one.info.id for one in spans], pa.int64()),
            "stream": pa.array(["host"] * len(spans), pa.string()),
            "thread": pa.array([0] * len(spans), pa.int16()),
            "parent": pa.array([None if one.parent is None else one.parent.id for one in spans], pa.int64()),
            "start_ns": pa.array([one.start_ns for one in spans], pa.int64()),
            "duration_ns": pa.array([one.duration_ns for one in spans], pa.int64()),
            "self_ns": pa.array([one.own_ns for one in spans], pa.int64()),
            "exposed_ns": pa.array([one.duration_ns if one.info.kind in waits else None for one in spans], pa.int64()),
            "clock": pa.array([str(Clock.HOST)] * len(spans), pa.string()),
            "status": pa.array(status, pa.string()),
        }
    )


def _configuration(log: Log, name: str) -> dict[str, Any]:
    skipped = [one.step for one in log.iterations if one.skipped]
    imported = {"format": "megatron-log", "file": name, "arguments": log.arguments}
    return {"imported": imported, **({"skipped_steps": skipped} if skipped else {})}


def _exit_reason(log: Log) -> str | None:
    """How the job ended, by its last iteration or what it said behind it; None for a log that merely stops."""
    last = log.iterations[-1]
    return "finished" if last.of is not None and last.step >= last.of else log.ended


def _notes(log: Log, rank: int, world: int | None, lost: int, *, is_dated: bool) -> Iterator[str]:
    if (world or 1) > 1:
        yield f"the log is of one rank of {world}: its lines are taken to be those of the last, rank {rank}"
    skipped = sum(one.skipped for one in log.iterations)
    if skipped:
        yield f"{skipped:,} iterations were skipped for their loss scale: they have no loss"
    nans = sum(one.nans for one in log.iterations)
    if nans:
        yield f"{nans:,} iterations had a loss that was not a number: it is left empty"
    if any(took is None for one in log.iterations for took in one.timers.values()):
        yield "timers of 0.00 ms were not measured: their spans have the status unmeasured"
    if any(one.timers for one in log.iterations):
        yield "timers tell how long, not when: in each step they stand one behind the other"
    if not is_dated:
        yield "the log tells no date: the first iteration begins at 1970-01-01 00:00 UTC"
    else:
        yield "the log tells no time zone: its dates are taken as UTC"
    if log.across_ranks:
        yield "timers that are printed as (min, max) across ranks are of no rank and are left out"
    if log.restarts:
        times = "once" if log.restarts == 1 else f"{log.restarts:,} times"
        yield f"the iterations go back {times}: {lost:,} of them, which were lost or ran again, are left out"
