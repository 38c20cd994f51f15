"""An open span, the thread that writes it, and what a device timer must offer."""

from __future__ import annotations

from typing import Any, Protocol

from .format import ABSENT_INDEX, RECORD_BYTES

BLOCKED = -1
"""Stands in `Writer.leaf` where no span may be open in the ring: the thread shares it, or a device is timed."""


class DeviceTimer(Protocol):
    """What the recorder needs of `device_clock.CudaTimer`."""

    def stream_index(self, cuda_stream: Any) -> tuple[int, str]:
        """Number and name of a stream; None means the current one."""

    def mark(self, span: Span, field: str, cuda_stream: Any, *, last: bool) -> None:
        """Record an event on a stream; its time later goes into ``span.<field>``."""

    def close(self) -> None:
        """Resolve what is done, and stop."""


class Span:
    """One execution of a segment while it is open. Times are on the host's monotonic clock, in ns.

    ``head`` is the beginning of its record and ``facts`` what an extended one adds; ``is_timed`` tells whether there
    will be one: not in a shadow step.
    """

    __slots__ = (
        "begun_ns",
        "child_ns",
        "cuda_stream",
        "end_ns",
        "exposed_ns",
        "facts",
        "group",
        "head",
        "is_extended",
        "is_open",
        "is_timed",
        "marks",
        "on_device",
        "parent",
        "segment",
        "sequence",
        "slot",
        "start_ns",
        "status",
        "step",
        "wait_parent",
        "wait_start_ns",
        "writer",
    )

    begun_ns: int
    child_ns: int
    cuda_stream: Any
    end_ns: int | None
    exposed_ns: int
    facts: bytes
    group: int
    head: bytes
    is_extended: bool
    is_open: bool
    is_timed: bool
    marks: int
    on_device: bool
    parent: Span | None
    segment: int
    sequence: int
    slot: int
    start_ns: int
    status: int
    step: int
    wait_parent: Span | None
    wait_start_ns: int
    writer: Writer


class Writer:
    """One thread: its open spans, and where the next record of its ring goes.

    ``leaf`` is when the innermost span began that is open in that very place of the ring; None where there is none.
    ``top`` is the innermost span that has left the ring for a slot, at the bottom a span that is none.
    ``ring`` is the writer that has the ring's position: another one where late threads share the last ring.
    """

    __slots__ = ("__weakref__", "first", "index", "lap", "leaf", "limit", "place", "ring", "top")

    def __init__(self, index: int, offset: int, capacity: int, shared: Writer | None) -> None:
        self.index = index
        self.first = self.place = offset
        self.limit = offset + capacity * RECORD_BYTES
        self.lap = 1
        self.ring = shared or self
        self.leaf: int | None = None
        self.top = bottom = Span()
        bottom.segment, bottom.begun_ns, bottom.child_ns, bottom.parent = ABSENT_INDEX, 0, 0, None
        bottom.is_open, bottom.on_device = True, False

    @property
    def innermost(self) -> Span | None:
        """The innermost span that has a slot; None where there is none."""
        return None if self.top.parent is None else self.top
