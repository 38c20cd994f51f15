"""The recorder of one rank: spans, operations that end elsewhere, steps. What a span costs is in `hot_path`."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Mapping
from operator import index
from typing import Any, Protocol

from .box.box import BoxLayout
from .box.format import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    DURATION_OFFSET,
    ENDED_OFFSET,
    STATE_CLOSED,
    WAITING_OFFSET,
    WORD_STATE,
    WORD_STEP,
    WORD_STEP_START,
)
from .box.hot_path import OK, Begin, End, Token
from .box.metadata import MetadataKind, MetadataWriter
from .box.ring_writer import ABORTED, RingWriter, now_ns
from .box.span import Span
from .cadence import Cadence
from .null import NullRecorder
from .vocabulary import SegmentKind
from .work_clock import Rest, WorkClock

WORK_KINDS = frozenset({SegmentKind.COMPUTE, SegmentKind.OPTIMIZER})
"""Kinds of segments inside of which the clock of work runs, but not in those of other kinds inside of them."""


class OpenSpan(Protocol):
    """Makes a context manager of `Recorder.begin` and `Recorder.end`."""

    def __call__(
        self, segment: int, microbatch: int = ..., chunk: int = ...
    ) -> contextlib.AbstractContextManager[Token]:
        """Arguments as of `begin`."""


def _contexts(begin: Begin, end: End, clocks: Mapping[int, WorkClock | Rest]) -> OpenSpan:
    class SpanContext:
        __slots__ = ("chunk", "microbatch", "segment", "token")

        def __init__(self, segment: int, microbatch: int = ABSENT_I32, chunk: int = ABSENT_I16) -> None:
            self.segment, self.microbatch, self.chunk = segment, microbatch, chunk

        def __enter__(self) -> Token:
            self.token = token = begin(self.segment, self.microbatch, self.chunk)
            clock = clocks.get(self.segment)
            if clock is not None:
                clock.enter()
            return token

        def __exit__(self, kind: object, error: object, traceback: object) -> None:
            clock = clocks.get(self.segment)
            if clock is not None:
                clock.leave()
            end(self.token, OK if kind is None else ABORTED)

    return SpanContext


class Recorder(RingWriter):
    """Records one rank. Open it with `profiler.opening.open_recorder`; a disabled one is `NullRecorder`.

    Segments and groups are registered once and named by an index afterwards. ``begin``/``end`` nest on a thread;
    ``begin_async`` starts an operation that ends elsewhere (``end_async``) and that somebody may wait for
    (``wait_begin``, ``wait_end``): that wait is its exposed time, and is taken out of the self time of the span
    in which it happened.
    """

    enabled = True

    def __init__(
        self,
        box: mmap.mmap,
        layout: BoxLayout,
        metadata: MetadataWriter,
        steps: MetadataWriter,
        cadence: Cadence | None = None,
    ) -> None:
        super().__init__(box, layout, metadata, steps)
        self._cadence = cadence or Cadence()
        self._step_start_ns = self._segments_looked_at = 0
        self._work_clock: WorkClock | None = None
        self.work_clocks: dict[int, WorkClock | Rest] = {}
        """By segment: the clock that runs inside of its spans, or what holds it there."""
        self.span = _contexts(self.begin, self.end, self.work_clocks)

    # -- operations that end elsewhere --------------------------------------------------------------------------

    def begin_async(
        self,
        segment: int,
        *,
        group: int = ABSENT_INDEX,
        sequence: int = ABSENT_I64,
        peer: int = ABSENT_I32,
        size_bytes: int = ABSENT_I64,
        microbatch: int = ABSENT_I32,
        chunk: int = ABSENT_I16,
        cuda_stream: Any = None,
    ) -> Span:
        """Begin an operation, such as a collective; ``sequence`` becomes the last one issued in its group."""
        writer = self._writer()
        if group != ABSENT_INDEX and sequence != ABSENT_I64:
            self._words[self._progress_word + 2 * group] = sequence
        span = self._open(writer, segment, microbatch, chunk, group, sequence, peer, size_bytes, cuda_stream)
        self._operations[span.slot] = span
        return span

    def end_async(self, span: Span) -> None:
        """The operation is done (host), or its end is enqueued (device). Any thread, before waiters are told."""
        if span.on_device:
            self._mark(span, "end_ns", span.cuda_stream, last=False)
            return
        if not span.is_open:  # abandoned: its slot belongs to another span by now
            return
        now = span.end_ns = now_ns()
        if span.slot >= 0:
            self._words[(span.slot + DURATION_OFFSET) >> 3] = now - span.begun_ns
            self._map[span.slot + ENDED_OFFSET] = 1
        self.completed(span)

    def wait_begin(self, span: Span) -> None:
        """The caller begins to wait for the operation, on its thread or on its current stream."""
        if span.slot >= 0 and span.is_open:
            self._map[span.slot + WAITING_OFFSET] = 1
        if span.on_device:
            span.wait_parent = self.innermost()
            self._mark(span, "wait_start_ns", None, last=False)
        else:
            if self._work_clock is not None:
                self._work_clock.wait_begin(span)
            span.wait_start_ns = now_ns()

    def wait_end(self, span: Span) -> None:
        """The caller has waited; the record is complete."""
        if span.on_device:
            self._mark(span, "exposed_ns", None, last=True)
            return
        exposed = now_ns() - span.wait_start_ns
        self.wait_over(span)
        top = self.innermost()
        if top is not None and not top.on_device:
            top.child_ns += exposed
        self.abandon(span, exposed)

    def wait_over(self, span: Span) -> None:
        """The caller waits no more, however that ended; nothing is recorded. After `wait_end` it does nothing."""
        if self._work_clock is not None:
            self._work_clock.wait_end(span)

    def abandon(self, span: Span, exposed_ns: int = ABSENT_I64, status: int = OK) -> None:
        """Complete the record of an operation that nobody will wait for. ``status`` is that of one that has ended."""
        if span.on_device:
            span.status = status
            self._mark(span, "", None, last=True)
            return
        end_ns = span.end_ns
        if end_ns is None:
            self._finish(span, span.begun_ns, ABSENT_I64, 0, exposed_ns, ABORTED)
        else:
            self._finish(span, span.begun_ns, end_ns - span.begun_ns, 0, exposed_ns, status)

    def innermost(self) -> Span | None:
        """The innermost open span of the calling thread.

        On a device, of the main thread where the calling one has none: a CUDA backward runs on autograd's threads, and
        what they wait for belongs to the main thread's ``backward``.
        """
        writer = self._writer()
        if writer.leaf is not None:
            self._empty_ring(writer)
        top = writer.innermost
        if top is None and self.device is not None and self.main_writer is not None:
            top = self.main_writer.innermost
        return top

    # -- steps and metadata -------------------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Begin step ``number`` and end the one before. Whether it is timed follows from its number."""
        number = index(number)
        if self.find_device is not None:
            self.find_device()
        now = now_ns()
        self._close_step(now)
        is_quiet = not self._cadence.is_timed(number)
        self._count_work(is_quiet)
        self._step_start_ns = now
        self._words[WORD_STEP_START] = now
        self._words[WORD_STEP] = number
        self._enter(number, is_quiet)

    def _enter(self, number: int | None, is_quiet: bool) -> None:
        if is_quiet is not self._is_quiet:
            for writer in self.writers():  # what is open keeps what its own step says
                self._empty_ring(writer)
        self._step, self._is_quiet = number, is_quiet
        self._set_step(ABSENT_I64 if number is None else number, is_quiet)

    def _close_step(self, now: int) -> None:
        if self._step is None:
            return
        start_ns = self._step_start_ns
        values = {"step": self._step, "start_ns": start_ns, "duration_ns": now - start_ns, "shadow": self._is_quiet}
        worked_ns = None if self._work_clock is None else self._work_clock.take()
        if worked_ns is not None:
            values["worked_ns"] = worked_ns
        self._write_metadata(MetadataKind.STEP, values)

    def end_step(self) -> None:
        """End the current step without beginning another: what follows belongs to none."""
        self._close_step(now_ns())
        self._enter(None, False)

    def close(self, reason: str = "finished") -> None:
        """Write the last step and the reason of the exit. Spans that are open stay in flight, for whoever reads."""
        if self._words[WORD_STATE] == STATE_CLOSED:
            return
        if self.device is not None:
            self.device.close()
            self.device = None
        self.release_device()
        now = now_ns()
        self._close_step(now)
        self._write_metadata(MetadataKind.EXIT, {"reason": reason, "moment_ns": now})
        self._words[WORD_STATE] = STATE_CLOSED
        self._metadata.close()
        self._steps.close()
        self._count_no_work()

    def _count_work(self, is_quiet: bool) -> None:
        """Let the clock of work run from here on, also inside segments that were registered since; not on a device, nor
        in a step without timings."""
        if self._device is not None:
            self._count_no_work()
            return
        if is_quiet:
            self.work_clocks.clear()
            self._segments_looked_at = 0
            if self._work_clock is not None:
                self._work_clock.stop()
            return
        if self._step is None:
            if self._work_clock is None:
                self._work_clock = WorkClock.of_this_thread()
            else:
                self._work_clock.take()
        if self._work_clock is not None and len(self._segments) > self._segments_looked_at:
            self._segments_looked_at = len(self._segments)
            clock, rest = self._work_clock, Rest(self._work_clock)
            kinds = ((index, kind) for (_, kind, _), index in self._segments.copy().items())
            self.work_clocks.update((index, clock if kind in WORK_KINDS else rest) for index, kind in kinds)

    def _count_no_work(self) -> None:
        self.work_clocks.clear()
        if self._work_clock is not None:
            self._work_clock.close()
            self._work_clock = None

    def detach(self) -> None:
        """After a fork, in the child: write to memory that nobody reads, never to the parent's box."""
        self._map = mmap.mmap(-1, self.layout.total_bytes)
        self._words = memoryview(self._map).cast("q")
        self._words[WORD_STATE] = STATE_CLOSED
        self._set_box(self._map)
        self._metadata.close()
        self._steps.close()
        self._count_no_work()
        self._device = self.find_device = None
        self.release_device()
        self._setup_lock = threading.RLock()  # another thread of the parent may have held it


AnyRecorder = Recorder | NullRecorder
"""A recorder that is on or off."""
