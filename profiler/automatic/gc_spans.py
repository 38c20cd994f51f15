"""Garbage collection as spans: each collection of Python's collector, with its generation in the name."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..null import NullRecorder
from ..recorder import Recorder
from ..vocabulary import SegmentKind


def install_gc(recorder: Recorder | NullRecorder) -> Callable[[], None]:
    """Record collections as ``gc_0``, ``gc_1`` and ``gc_2``; what is returned takes it off again.

    A collection strikes on any thread between any two operations, also inside the recorder: what it does there is
    complete (begin and end of one span) before the recorder goes on.
    """
    segments = [recorder.segment(f"gc_{generation}", SegmentKind.GC) for generation in range(3)]
    local = threading.local()

    def observe(phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start":
            segment = segments[min(int(info["generation"]), 2)]
            local.span = recorder.begin(segment)
            if segment == segments[2]:  # the others are too short to look at a clock twice
                local.clock = clock = recorder.work_clocks.get(segment)
                if clock is not None:
                    clock.enter()
            return
        clock, local.clock = getattr(local, "clock", None), None
        if clock is not None:
            clock.leave()
        span = getattr(local, "span", None)  # None where the collection began before this was installed
        if span is not None:
            local.span = None
            recorder.end(span)

    gc.callbacks.append(observe)

    def undo() -> None:
        if observe in gc.callbacks:
            gc.callbacks.remove(observe)

    return undo
