"""What a variant is timed with: a recorder that notes when steps begin, and what a rank waits for meanwhile."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

from ...profiler.null import NullRecorder

WARM_UP_STEPS = 2
DATA_SEGMENT, DATA = "data_read", "data"


class Stopwatch(NullRecorder):
    """Notes the beginnings of steps, and how long the rank waits in those after the warm-up, by axis.

    A wait is what the recorder calls an operation's exposed time, on the host's clock; all of ``data_read`` is one, for
    "data". ``on_counted`` is called as the first step after the warm-up begins.
    """

    def __init__(self, on_counted: Callable[[], None] = lambda: None) -> None:
        self.wall_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.wait_ns: dict[str, int] = defaultdict(int)
        self._axes: list[str] = []
        self._on_counted, self.is_counting = on_counted, False

    def segment(self, name: str, _: object = None, axis: str = "") -> int:
        """The segment's number; its waits are its axis' ones."""
        self._axes.append(DATA if name == DATA_SEGMENT else axis)
        return len(self._axes) - 1

    def step(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        if len(self.wall_ns) == WARM_UP_STEPS:
            self._on_counted()
            self.is_counting = True
        self._note()

    def end_step(self, *_: Any, **__: Any) -> None:
        """The last step has ended."""
        self._note()
        self.is_counting = False

    def _note(self) -> None:
        self.wall_ns.append(time.monotonic_ns())
        self.cpu_ns.append(time.process_time_ns())

    def span(self, segment: int, *_: Any, **__: Any) -> Any:
        """Time spent reading data is counted, and nothing else."""
        return _Waiting(self, DATA) if self._axes[segment] == DATA else super().span()

    def begin_async(self, segment: int, **_: Any) -> _Waiting:  # type: ignore[override]
        """An operation begins, for which somebody may wait."""
        return _Waiting(self, self._axes[segment])

    def wait_begin(self, span: _Waiting) -> None:
        """The rank waits for the operation."""
        span.__enter__()

    def wait_end(self, span: _Waiting) -> None:
        """It need not wait any longer."""
        span.__exit__()

    def waited(self, axis: str, took_ns: int) -> None:
        """Add a wait."""
        if self.is_counting:
            self.wait_ns[axis] += took_ns

    def median_wall_ns(self) -> float:
        """How long a step took, of those after the warm-up."""
        walls = [after - before for before, after in pairwise(self.wall_ns)]
        return float(median(walls[WARM_UP_STEPS:]))

    def cpu_per_step(self) -> float:
        """Processor time of a step in ns, of those after the warm-up."""
        return (self.cpu_ns[-1] - self.cpu_ns[WARM_UP_STEPS]) / self._counted()

    def wait_per_step(self) -> dict[str, float]:
        """Nanoseconds of a step that the rank waited, by axis."""
        return {axis: total / self._counted() for axis, total in self.wait_ns.items()}

    def _counted(self) -> int:
        return len(self.wall_ns) - 1 - WARM_UP_STEPS


class _Waiting:
    __slots__ = ("_axis", "_begun_ns", "_watch")

    def __init__(self, watch: Stopwatch, axis: str) -> None:
        self._watch, self._axis, self._begun_ns = watch, axis, 0

    def __enter__(self) -> None:
        self._begun_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self._watch.waited(self._axis, time.monotonic_ns() - self._begun_ns)
