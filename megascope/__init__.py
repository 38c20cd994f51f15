"""Observability and diagnostics for large-scale LLM pretraining: the public API of recording.

import megascope

megascope.init()
for step in range(steps):
    megascope.step(step)
    with megascope.segment("forward"):
        ...
megascope.shutdown()
"""

from .profiler.errors import MegascopeError, UsageError
from .profiler.session import begin, current, end, init, loader, segment, shutdown, step, timed
from .profiler.topology import Topology
from .profiler.vocabulary import SegmentKind

__version__ = "0.1.0"

__all__ = [
    "MegascopeError",
    "SegmentKind",
    "Topology",
    "UsageError",
    "begin",
    "current",
    "end",
    "init",
    "loader",
    "segment",
    "shutdown",
    "step",
    "timed",
]
