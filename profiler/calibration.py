"""What a span costs in this process: measured on a scratch box when a recorder is opened, in about a millisecond."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from .box.box import BoxLayout
from .box.metadata import MetadataWriter
from .recorder import Recorder

ROUNDS, SPANS = 5, 64

_SCRATCH = BoxLayout(slots=4, rings=2, ring_records=ROUNDS * SPANS, groups=1)  # the last ring is a shared one


def recorder_span_ns() -> float:
    """Nanoseconds for begin and end of a span with a micro-batch, on the host: the best of some rounds.

    The best, because whatever else the machine does only adds to it.
    """
    metadata, steps = (MetadataWriter(Path(os.devnull)) for _ in range(2))
    scratch = Recorder(mmap.mmap(-1, _SCRATCH.total_bytes), _SCRATCH, metadata, steps)
    try:
        segment = scratch.segment("calibration")
        return min(_round(scratch, segment) for _ in range(ROUNDS))
    finally:
        scratch.close()


def _round(recorder: Recorder, segment: int) -> float:
    begin, end = recorder.begin, recorder.end
    start = time.perf_counter_ns()
    for number in range(SPANS):
        end(begin(segment, number))
    return (time.perf_counter_ns() - start) / SPANS
