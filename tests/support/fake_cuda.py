"""A device without hardware: a virtual clock, streams that are FIFO queues, events that answer "not ready"."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator


class FakeStream:
    """A queue of work; ``drained_ms`` is when everything enqueued so far will be done."""

    def __init__(self, device: FakeCuda, name: str) -> None:
        self.device, self.name, self.drained_ms = device, name, 0.0

    def launch(self, duration_ms: float) -> None:
        """Enqueue a kernel."""
        self.drained_ms = max(self.drained_ms, self.device.now_ms) + duration_ms

    def wait_event(self, event: FakeEvent) -> None:
        """Later work waits for the event."""
        assert event.moment_ms is not None
        self.drained_ms = max(self.drained_ms, event.moment_ms)

    def wait_stream(self, other: FakeStream) -> None:
        """Later work waits for everything that the other stream has now."""
        self.drained_ms = max(self.drained_ms, other.drained_ms)


class FakeEvent:
    """A timing event. Like CUDA's, it raises when asked for a time that is not there yet."""

    def __init__(self, device: FakeCuda, enable_timing: bool) -> None:
        self.device, self.enable_timing = device, enable_timing
        self.moment_ms: float | None = None
        self.captured = False
        device.events += 1

    def record(self, stream: FakeStream | None = None) -> None:
        self.captured = self.device.capturing  # recording succeeds inside a capture: only asking fails, as in CUDA
        self.moment_ms = max((stream or self.device.current).drained_ms, self.device.now_ms)

    def query(self) -> bool:
        self.device.queries += 1
        if self.captured or self.device.capturing or self.device.broken:
            raise RuntimeError("CUDA error: operation not permitted on an event last recorded in a capturing stream")
        return self.moment_ms is None or self.moment_ms <= self.device.now_ms

    def synchronize(self) -> None:
        assert self.moment_ms is not None
        self.device.synchronizations += 1
        self.device.now_ms = max(self.device.now_ms, self.moment_ms)

    def elapsed_time(self, other: FakeEvent) -> float:
        import numpy as np

        assert self.enable_timing
        assert other.enable_timing
        if not (self.query() and other.query()):
            raise RuntimeError("CUDA error: device not ready")
        assert self.moment_ms is not None
        assert other.moment_ms is not None
        return float(np.float32(other.moment_ms - self.moment_ms))


class FakeCuda:
    """Stands in for `torch.cuda`. The host's clock is the device's plus ``skew_ppm``."""

    def __init__(self, skew_ppm: float = 0.0) -> None:
        self.now_ms = 0.0
        self.skew_ppm = skew_ppm
        self.synchronizations = self.events = self.queries = 0
        self.capturing = self.broken = False
        self.clock_jitter_ns = itertools.cycle([0])
        self.current = FakeStream(self, "default")

    def host_ns(self) -> int:
        """The host's clock; ``clock_jitter_ns`` is added turn by turn."""
        return round(self.now_ms * (1 + self.skew_ppm * 1e-6) * 1e6) + next(self.clock_jitter_ns)

    def Event(self, *, enable_timing: bool = False) -> FakeEvent:  # noqa: N802  (torch's name)
        return FakeEvent(self, enable_timing)

    def Stream(self) -> FakeStream:  # noqa: N802  (torch's name)
        return FakeStream(self, "side")

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> FakeStream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        previous, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = previous
