"""An open span, the thread that writes it, and what a device timer must offer."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from .box import WORD_HEADS


class DeviceTimer(Protocol):
    """What the recorder needs of `device_clock.CudaTimer`."""

    def stream_index(self, cuda_stream: Any) -> tuple[int, str]:
        """Number and name of a stream; None means the current one."""

    def mark(self, span: Span, field: str, cuda_stream: Any, *, last: bool) -> None:
        """Record an event on a stream; its time later goes into ``span.<field>``."""

    def close(self) -> None:
        """Resolve what is done, and stop."""


class Span:
    """One execution of a segment while it is open. Times are on the host's monotonic clock, in ns."""

    __slots__ = (
        "begun_ns",
        "child_ns",
        "cuda_stream",
        "end_ns",
        "exposed_ns",
        "group",
        "head",
        "marks",
        "on_device",
        "parent",
        "segment",
        "sequence",
        "serial",
        "slot",
        "start_ns",
        "status",
        "wait_parent",
        "wait_start_ns",
        "writer",
    )

    begun_ns: int
    child_ns: int
    cuda_stream: Any
    end_ns: int | None
    exposed_ns: int
    group: int
    head: bytes
    marks: int
    on_device: bool
    parent: Span | None
    segment: int
    sequence: int
    serial: int
    slot: int
    start_ns: int
    status: int
    wait_parent: Span | None
    wait_start_ns: int
    writer: Writer


class Writer:
    """One thread's ring: where its next record goes, and the innermost open span of the thread."""

    __slots__ = ("capacity", "count", "head_word", "index", "lock", "offset", "top")

    def __init__(self, index: int, offset: int, capacity: int, lock: threading.Lock | None) -> None:
        self.index, self.offset, self.capacity, self.lock = index, offset, capacity, lock
        self.head_word = WORD_HEADS + index
        self.count = 0
        self.top: Span | None = None
