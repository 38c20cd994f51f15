"""Device time without synchronising: pooled CUDA events, one pending queue a stream, chained reference events."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .box.span import Span

log = logging.getLogger(__name__)

REFERENCE_INTERVAL_NS = 400_000_000
"""Event times are float32 milliseconds: below a second a difference is good to 61 ns, at 10 s only to 1 us."""

POLL_INTERVAL_S = 0.02
MAX_FAILURES = 100
"""Events that may fail in a row before the device counts as lost."""

_SPINS = 200
_CLOSED, _BROKEN = 1 << 30, 1 << 29
"""Flags in ``Span.marks``, above the number of marks that are pending: no mark follows; one of them has no time."""


class SpanSink(Protocol):
    """Where resolved spans go: the recorder."""

    def finish_device_span(self, span: Span) -> None:
        """Write a span whose events have all been resolved."""

    def give_up(self, span: Span) -> None:
        """Write a span that has no times."""

    def lose_device(self) -> None:
        """The device cannot be timed any more."""


@dataclass(frozen=True, slots=True)
class _Reference:
    event: Any
    host_ns: int


@dataclass(slots=True)
class _Mark:
    event: Any
    reference: _Reference
    span: Span
    field: str
    last: bool


class CudaTimer:
    """Times spans with events on the streams that their work runs on.

    ``cuda`` is `torch.cuda` or anything with its ``Event``, ``Stream``, ``current_stream`` and
    ``is_current_stream_capturing``. The constructor synchronises once; nothing does afterwards: events are asked with
    ``query()``, by ``poll``. Times come out on the host's monotonic clock: a reference event on a private stream that
    carries no work is recorded every 0.4 s, each is chained to the one before in integer ns, and held between the host
    times just before and after it.
    """

    def __init__(self, cuda: Any, sink: SpanSink, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._cuda, self._sink, self._clock = cuda, sink, clock
        self._pool: list[Any] = []
        self._queues: dict[Any, deque[_Mark]] = {}
        self._streams: dict[Any, tuple[int, str]] = {}
        self._stream = cuda.Stream()
        self._failures = 0
        self.events_created = 0
        event = self._event()
        event.record(self._stream)
        event.synchronize()
        self._reference = _Reference(event, clock())
        self._candidate: tuple[Any, int] | None = None
        self._stop = threading.Event()
        self._poll_lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def start_thread(self) -> None:
        """Poll from a thread of its own, every 20 ms."""
        self._thread = threading.Thread(target=self._run, name="megascope-device-clock", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop the thread and resolve what the device has finished within the time given."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        deadline = time.monotonic() + timeout_s
        while self.poll() and time.monotonic() < deadline:
            time.sleep(0.005)

    def hold(self) -> None:
        """Ask nothing of any event until `release`: a query from another thread would break a graph capture."""
        self._poll_lock.acquire()

    def release(self) -> None:
        """Go on after `hold`, on the same thread."""
        self._poll_lock.release()

    def _run(self) -> None:
        while not self._stop.wait(POLL_INTERVAL_S):
            self.poll()

    # -- hot path -----------------------------------------------------------------------------------------------

    def stream_index(self, cuda_stream: Any) -> tuple[int, str]:
        """Number (from 1; 0 is the host) and name of a stream; None means the current one."""
        stream = self._cuda.current_stream() if cuda_stream is None else cuda_stream
        known = self._streams.get(stream)
        if known is None:
            index = len(self._streams) + 1
            known = self._streams[stream] = (index, f"stream {index}")
        return known

    def mark(self, span: Span, field: str, cuda_stream: Any, *, last: bool) -> None:
        """Record an event on a stream; once it is resolved its time goes into ``span.<field>``.

        ``exposed_ns`` receives the time since ``wait_start_ns``; ``last`` tells that no mark of the span follows.
        Inside a graph capture, and where an event cannot be recorded, the span will have no times.
        """
        stream = self._cuda.current_stream() if cuda_stream is None else cuda_stream
        try:
            recorded = not self._cuda.is_current_stream_capturing()
            if recorded:
                event = self._event()
                event.record(stream)
        except RuntimeError:
            recorded = False
        if recorded:
            span.marks += 1
            queue = self._queues.get(stream)
            if queue is None:
                queue = self._queues.setdefault(stream, deque())
            queue.append(_Mark(event, self._reference, span, field, last))
            return
        span.marks |= _BROKEN
        if last:
            self._close(span)

    def _event(self) -> Any:
        try:
            return self._pool.pop()
        except IndexError:
            self.events_created += 1
            return self._cuda.Event(enable_timing=True)

    # -- off the hot path ---------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Resolve every event that is done; return how many are still pending."""
        with self._poll_lock:
            try:
                self._advance_reference()
            except RuntimeError:
                self._failures += 1
            for queue in list(self._queues.values()):
                while queue and self._is_done(queue[0]):
                    self._resolve(queue.popleft())
            if self._failures > MAX_FAILURES:
                self._give_up_all()
            return sum(len(queue) for queue in self._queues.values())

    def _is_done(self, mark: _Mark) -> bool:
        try:
            done = bool(mark.event.query())
        except RuntimeError:
            self._failures += 1
            mark.span.marks |= _BROKEN
            return True
        self._failures = 0
        return done

    def _resolve(self, mark: _Mark) -> None:
        span = mark.span
        if not span.marks & _BROKEN:
            try:
                moment = mark.reference.host_ns + round(mark.reference.event.elapsed_time(mark.event) * 1e6)
                _set(mark, moment)
                self._pool.append(mark.event)
            except RuntimeError:
                span.marks |= _BROKEN
        span.marks -= 1
        if mark.last:
            self._close(span)
        elif span.marks & ~_BROKEN == _CLOSED:
            self._complete(span)

    def _close(self, span: Span) -> None:
        span.marks |= _CLOSED
        if span.marks & ~_BROKEN == _CLOSED:
            self._complete(span)

    def _complete(self, span: Span) -> None:
        if span.marks & _BROKEN:
            self._sink.give_up(span)
        else:
            self._sink.finish_device_span(span)

    def _give_up_all(self) -> None:
        """The device answers nothing but errors: end what is pending without times, and stop for good."""
        log.warning("The device cannot be timed any more: later segments are timed by the host's clock.")
        self._sink.lose_device()
        self._stop.set()
        for queue in self._queues.values():
            for mark in queue:
                mark.span.marks |= _BROKEN
            while queue:
                self._resolve(queue.popleft())

    def _advance_reference(self) -> None:
        if self._candidate is None:
            before = self._clock()
            if before - self._reference.host_ns < REFERENCE_INTERVAL_NS:
                return
            event = self._cuda.Event(enable_timing=True)
            event.record(self._stream)
            self._candidate = (event, before)
            for _ in range(_SPINS):  # the private stream is idle: the event is done within microseconds
                if event.query():
                    break
        event, before = self._candidate
        if event.query():
            after = self._clock()
            chained = self._reference.host_ns + round(self._reference.event.elapsed_time(event) * 1e6)
            self._reference = _Reference(event, min(max(chained, before), after))
            self._candidate = None


def _set(mark: _Mark, moment: int) -> None:
    """Write a resolved time into its span, and what it means for the span around it."""
    span = mark.span
    if mark.field == "exposed_ns":
        span.exposed_ns = moment - span.wait_start_ns
        if span.wait_parent is not None and span.wait_parent.on_device:
            span.wait_parent.child_ns += span.exposed_ns
    elif mark.field:
        setattr(span, mark.field, moment)
    if mark.field == "end_ns" and mark.last and span.parent is not None and span.parent.on_device:
        span.parent.child_ns += moment - span.start_ns
