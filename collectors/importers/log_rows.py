"""Rows of the iterations and the timers that a log tells: steps, spans one behind the other, the rank that logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ...profiler.topology import Topology
from ...profiler.vocabulary import Clock, SegmentKind, Status
from .columns import ITERATION, SegmentInfo
from .log_lines import Iteration

_INSIDE = {
    "batch-generator": ("forward-compute", "forward"),
    "batch generator": ("forward-compute", "forward"),
    "backward-inner": ("backward",),
    "backward-all-reduce": ("backward",),
}
"""Timers that run inside another one; those of the optimizer's parts have its name in theirs."""


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
class Span:
    """A timer in its place; ``own_ns`` is without the timers inside it. Of ``step`` None before the first one."""

    info: SegmentInfo
    step: int | None
    start_ns: int
    duration_ns: int | None
    parent: SegmentInfo | None
    own_ns: int | None


def starts_of(iterations: list[Iteration], begin_ns: int) -> Iterator[int]:
    """Start of each iteration, ns: where its own line tells its end, else behind those before it.

    One whose length is not told has the place of its timers. With several iterations a line, the line's time is their
    mean, and the step is the last of them.
    """
    at, before = begin_ns, iterations[0].step - 1
    for one in iterations:
        took = taken_ns(one)
        at = max(at, one.begin_ns or 0)
        end = one.end_ns if one.end_ns is not None else at + took * max(one.step - before, 1)
        yield max(end - took, 0)
        at, before = end, one.step


def taken_ns(one: Iteration) -> int:
    """How long an iteration took, ns; where nothing tells, the timers that are in no other one: the least it was."""
    if one.duration_ns is not None:
        return one.duration_ns
    return sum(took or 0 for name, took in one.timers.items() if _holder(name, one.timers) is None)


def last_pass(passes: list[tuple[Iteration, int]]) -> list[tuple[Iteration, int]]:
    """Iterations and their starts without those that the job went back behind: their work was lost, or done again."""
    kept: list[tuple[Iteration, int]] = []
    for one in passes:
        while kept and kept[-1][0].step >= one[0].step:
            kept.pop()
        kept.append(one)
    return kept


def step_spans(iterations: list[Iteration], starts: list[int]) -> Iterator[Span]:
    """Timers of the iterations: how long is measured, when is not, so they stand one behind the other.

    An iteration without a timer that measured anything is one span as a whole.
    """
    for one, start in zip(iterations, starts, strict=True):
        if one.duration_ns is not None and not any(one.timers.values()):
            yield Span(ITERATION, one.step, start, one.duration_ns, None, one.duration_ns)
        holders = {name: _holder(name, one.timers) for name in one.timers}
        at = start
        inner: dict[str, int] = {}
        for name, took in one.timers.items():
            holder = holders[name]
            if holder is None:
                inner[name] = at
                inside = sum(one.timers[child] or 0 for child, of in holders.items() if of == name)
                own = None if took is None else max(took - inside, 0)
                yield Span(timer_segment(name), one.step, at, took, None, own)
                at += took or 0
        for name, took in one.timers.items():
            holder = holders[name]
            if holder is not None:
                yield Span(timer_segment(name), one.step, inner[holder], took, timer_segment(holder), took)
                inner[holder] += took or 0


def _holder(name: str, timers: dict[str, int | None]) -> str | None:
    """The timer that this one runs inside of, where that was printed too."""
    if name.startswith("optimizer-") and "optimizer" in timers:
        return "optimizer"
    return next((one for one in _INSIDE.get(name, ()) if one in timers), None)


def rank_row(rank: int, topology: Topology | None) -> pa.Table:
    """A row of ``ranks``, on a host of its own."""
    places = {} if topology is None else topology.coordinates(rank)
    return pa.table(
        {
            "rank": pa.array([rank], pa.int32()),
            "host": pa.array([f"host-of-rank-{rank}"]),
            **{axis: pa.array([place], pa.int32()) for axis, place in places.items()},
        }
    )


def step_rows(
    ones: list[Iteration], starts: list[int], rank: int, *, samples: int | None, length: int | None
) -> pa.Table:
    """Rows of ``steps``. ``samples`` is the batch of an iteration that tells none, ``length`` that of a sequence."""
    counts = [one.samples or samples for one in ones]
    return pa.table(
        {
            "rank": pa.array([rank] * len(ones), pa.int32()),
            "step": pa.array([one.step for one in ones], pa.int64()),
            "start_ns": pa.array(starts, pa.int64()),
            "duration_ns": pa.array([one.duration_ns for one in ones], pa.int64()),
            "loss": pa.array([one.loss for one in ones], pa.float64()),
            "grad_norm": pa.array([one.grad_norm for one in ones], pa.float64()),
            "tokens": pa.array([n * length if n and length else None for n in counts], pa.int64()),
            "learning_rate": pa.array([one.learning_rate for one in ones], pa.float64()),
        }
    )


def event_rows(spans: list[Span], rank: int) -> pa.Table:
    """Rows of ``events``, on the host's stream."""
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
