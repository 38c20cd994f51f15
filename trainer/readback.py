"""Brings a step's results and its duration to the host without a wait on a device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor, empty


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed, and how long it took where it ran: on the device from its first to its last operation."""

    step: int
    values: list[float]
    duration_ns: int


class _HostMark:
    """A moment on a CPU, where everything enqueued is done."""

    def __init__(self) -> None:
        self.moment_ns = time.monotonic_ns()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing is under way."""

    def elapsed_time(self, later: _HostMark) -> float:
        return (later.moment_ns - self.moment_ns) / 1e6


class Readback:
    """Results of steps, in order, once they have arrived. ``cuda`` is `torch.cuda`, or None on a CPU."""

    def __init__(self, cuda: Any = None) -> None:
        self._cuda = cuda
        self._began = self._mark()
        self._pending: list[tuple[int, Tensor, Any, Any]] = []

    def begin(self) -> None:
        """A step begins."""
        self._began = self._mark()

    def push(self, step: int, values: Tensor) -> None:
        """Take over the results of the step that ends."""
        if self._cuda is not None:
            host = empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
        self._pending.append((step, values, self._began, self._mark()))

    def ready(self, *, wait: bool = False, until: int | None = None) -> list[StepResult]:
        """What has arrived; with ``wait`` all of it, with ``until`` at least the results of steps up to that one."""
        result = []
        while self._pending and (
            wait or (until is not None and self._pending[0][0] <= until) or self._pending[0][3].query()
        ):
            step, values, began, ended = self._pending.pop(0)
            ended.synchronize()
            result.append(StepResult(step, values.tolist(), round(began.elapsed_time(ended) * 1e6)))
        return result

    def _mark(self) -> Any:
        if self._cuda is None:
            return _HostMark()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event
