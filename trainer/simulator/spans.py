"""What the engine hands on: a segment's spans over tensor-parallel ranks, steps and replicas of a stage, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...profiler.topology import segment_id
from ...profiler.vocabulary import Clock, SegmentKind
from .effects import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What the store says about a segment: kind, axis, stream and clock."""

    kind: SegmentKind
    axis: str | None
    stream: str
    clock: Clock

    def identity(self, name: str) -> int:
        """Identity, as in the table ``segments``."""
        return segment_id(name, str(self.kind), self.axis)


def _info(kind: SegmentKind, axis: str | None, stream: str, clock: Clock = Clock.DEVICE) -> SegmentInfo:
    return SegmentInfo(kind, axis, stream, clock)


SEGMENTS = {
    "data": _info(SegmentKind.DATA, None, "host", Clock.HOST),
    "gc": _info(SegmentKind.GC, None, "host", Clock.HOST),
    "forward": _info(SegmentKind.COMPUTE, None, "compute"),
    "backward": _info(SegmentKind.COMPUTE, None, "compute"),
    "tp_all_gather": _info(SegmentKind.COLLECTIVE, "tp", "tp"),
    "tp_reduce_scatter": _info(SegmentKind.COLLECTIVE, "tp", "tp"),
    "send_forward": _info(SegmentKind.P2P, "pp", "pp_send_forward"),
    "recv_forward": _info(SegmentKind.P2P, "pp", "pp_recv_forward"),
    "send_backward": _info(SegmentKind.P2P, "pp", "pp_send_backward"),
    "recv_backward": _info(SegmentKind.P2P, "pp", "pp_recv_backward"),
    "dp_reduce_scatter": _info(SegmentKind.COLLECTIVE, "dp", "dp"),
    "dp_all_gather": _info(SegmentKind.COLLECTIVE, "dp", "dp"),
    "world_all_reduce": _info(SegmentKind.COLLECTIVE, "world", "world"),
    "optimizer": _info(SegmentKind.OPTIMIZER, None, "compute"),
    "checkpoint": _info(SegmentKind.CHECKPOINT, None, "host", Clock.HOST),
}
"""The segments of a simulated job, named and classified as the trainer does."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """Sequence numbers in the group: step n (from 0) has numbers n * ``per_step`` + ``place`` + 1, and so on."""

    per_step: int
    place: int
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans of one segment of one stage; times are whole nanoseconds as float64, each broadcast to [T, S, G].

    ``steps`` [S] are the numbers of the steps that the spans belong to; ``period`` [S] the number of the
    synchronisation from which ``start`` counts: n is the one before step n, counted from 0. ``replicas`` is the part
    of all replicas that G is. ``own`` None: all of the duration. ``exposed`` None: nobody waited. ``present`` None: all
    are there. ``repeat`` spans follow each other ``stride`` apart, with the same durations. ``group``: tp, dp, world,
    or a pipeline edge's kind with ``ends``, the stages it leads from and to. ``peer``: stage of the other end of p2p.
    """

    segment: str
    stage: int
    replicas: slice
    steps: IntArray
    period: IntArray
    start: FloatArray
    duration: FloatArray
    own: FloatArray | None = None
    exposed: FloatArray | None = None
    present: BoolArray | None = None
    microbatch: int | None = None
    chunk: int | None = None
    parent: str | None = None
    group: str | None = None
    ends: tuple[int, int] | None = None
    numbering: Numbering | None = None
    peer: int | None = None
    size_bytes: int | None = None
    repeat: int = 1
    stride: FloatArray | None = None


class Sink(Protocol):
    """Takes the engine's spans."""

    def add(self, spans: Spans) -> None:
        """Take spans of one segment. Arrays may be kept, not changed."""

    def end_block(self) -> None:
        """All spans of a block of replicas, or of the ends of all replicas' steps, have been added."""

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """All spans of the steps ``index`` [S] have been added.

        ``begin`` and ``end`` [P, T, S, G]: of the step on each rank, after the synchronisation before and at its end.
        """


def shape_of(spans: Spans, width: int) -> tuple[int, int, int]:
    """[T, S, G] that the arrays of spans are broadcast to."""
    return width, len(spans.steps), spans.replicas.stop - spans.replicas.start
