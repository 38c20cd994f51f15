"""A clock of work over a time and counts of the kernel that are told, and what it wrote of a step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler import work_clock
from megascope.profiler.recorder import Recorder
from megascope.profiler.work_clock import WorkClock

from .recording import Recorded


class Machine:
    """A thread that runs, waits for a core and sleeps for as long as told; and the others of its process."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._path, self.now_ns, self.waited_ns, self.cpu_ns, self.helped_ns = path, 0, 0, 0, 0
        self._write()
        patch.setattr(work_clock, "monotonic_ns", lambda: self.now_ns)
        patch.setattr(work_clock, "thread_time_ns", lambda: self.cpu_ns)
        patch.setattr(work_clock, "process_time_ns", lambda: self.cpu_ns + self.helped_ns)
        self.clock = WorkClock(os.open(path, os.O_RDONLY))

    def pass_(self, ran_ns: int, waited_ns: int = 0, *, slept_ns: int = 0, helped_ns: int = 0) -> None:
        """Time passes: on a core, then while none is free, then asleep. ``helped_ns`` is other threads' on a core."""
        self.now_ns += ran_ns + waited_ns + slept_ns
        self.waited_ns += waited_ns
        self.cpu_ns += ran_ns
        self.helped_ns += helped_ns
        self._write()

    def _write(self) -> None:
        self._path.write_text(f"{self.cpu_ns} {self.waited_ns} 77\n")


def step_of(recorded: Recorded, run: Callable[[], object]) -> dict[str, Any]:
    """The line of one step in which something runs."""
    recorder = recorded.recorder
    assert isinstance(recorder, Recorder)
    recorder.step(0)
    run()
    recorder.end_step()
    return [line for line in recorded.metadata() if line["kind"] == "step"][-1]


def spend(recorder: Recorder, segment: int, seconds: float) -> None:
    """Keep a segment open, and a core busy, for so long."""
    with recorder.span(segment):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            pass
