"""The recorder's hot path: begin and end of spans, written to the black box without lock, system call or allocation
that grows."""

from __future__ import annotations

from typing import Any

from .box import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    BEGIN_BYTES,
    END,
    ENDED_OFFSET,
    STATE_CLOSED,
    WORD_STATE,
    WORD_STEP,
    WORD_STEP_START,
)
from .metadata import MetadataKind
from .ring_writer import ABORTED, OK, NotANumber, RingWriter, now_ns, pack_begin
from .span import Span, Writer


class _SpanContext:
    __slots__ = ("_arguments", "_recorder", "span")

    def __init__(self, recorder: Recorder, arguments: tuple[int, int, int]) -> None:
        self._recorder, self._arguments = recorder, arguments

    def __enter__(self) -> Span:
        self.span = self._recorder.begin(*self._arguments)
        return self.span

    def __exit__(self, error: object, *_: object) -> None:
        self._recorder.end(self.span, OK if error is None else ABORTED)


class Recorder(RingWriter):
    """Records one rank. Open it with `profiler.opening.open_recorder`; a disabled one is `NullRecorder`.

    Segments and groups are registered once and named by an index afterwards. ``begin``/``end`` nest on a thread;
    ``begin_async`` starts an operation that ends elsewhere (``end_async``) and that somebody may wait for
    (``wait_begin``, ``wait_end``): that wait is its exposed time, and is taken out of the self time of the span
    in which it happened.
    """

    enabled = True

    # -- spans that nest on a thread ----------------------------------------------------------------------------

    def span(self, segment: int, microbatch: int = ABSENT_I32, chunk: int = ABSENT_I16) -> _SpanContext:
        """``with recorder.span(index, microbatch=3): ...``"""
        return _SpanContext(self, (segment, microbatch, chunk))

    def begin(self, segment: int, microbatch: int = ABSENT_I32, chunk: int = ABSENT_I16) -> Span:
        """Begin a span on this thread, inside the thread's innermost open one."""
        try:
            writer = self._local.writer
        except AttributeError:
            writer = self._new_writer()
        if self.device is not None:
            span = writer.top = self._open(writer, segment, microbatch, chunk)
            return span
        # The same as _open, in one function and without what only operations and devices need: this is the hot path.
        span = Span()
        parent = writer.top
        while parent is not None and parent.serial == 0:  # ended on another thread while this one began a child
            parent = parent.parent
        span.parent = parent
        span.segment, span.writer, span.child_ns, span.on_device = segment, writer, 0, False
        span.serial = serial = next(self._serials)
        span.begun_ns = now = now_ns()
        outer = ABSENT_INDEX if parent is None else parent.segment
        # fmt: off
        try:
            span.slot = slot = self._free.pop()
            pack_begin(self._map, slot, serial, now, self._step, ABSENT_I64, ABSENT_I64, segment, outer, ABSENT_INDEX,
                        ABSENT_I32, microbatch, chunk, 0, writer.index, 0, 0, 0, serial)
        except (IndexError, NotANumber, TypeError) as error:
            self._open_otherwise(error, span, (serial, now, self._step, ABSENT_I64, ABSENT_I64, segment, outer,
                                               ABSENT_INDEX, ABSENT_I32, microbatch, chunk, 0, writer.index, 0, 0, 0,
                                               serial))
        # fmt: on
        writer.top = span
        return span

    def end(self, span: Span, status: int = OK) -> None:
        """End a span, on any thread; a second end does nothing."""
        now = now_ns()
        origin = span.writer
        parent = span.parent
        if origin.top is span:
            origin.top = parent
        else:
            _unlink(origin, span)
        duration = now - span.begun_ns
        if parent is not None and not parent.on_device:
            parent.child_ns += duration
        if span.on_device:
            span.status = status
            self._mark(span, "end_ns", span.cuda_stream, last=True)
            return
        self._finish(span, span.begun_ns, duration, duration - span.child_ns, ABSENT_I64, status)

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
        try:
            writer = self._local.writer
        except AttributeError:
            writer = self._new_writer()
        if group != ABSENT_INDEX and sequence != ABSENT_I64:
            self._words[self._progress_word + 2 * group] = sequence
        return self._open(writer, segment, microbatch, chunk, group, sequence, peer, size_bytes, cuda_stream)

    def end_async(self, span: Span) -> None:
        """The operation is done (host), or its end is enqueued (device). Any thread, before waiters are told."""
        if span.on_device:
            self._mark(span, "end_ns", span.cuda_stream, last=False)
            return
        if span.serial == 0:  # abandoned: its slot belongs to another span by now
            return
        now = span.end_ns = now_ns()
        duration = now - span.begun_ns
        if span.slot >= 0:
            END.pack_into(
                self._map, span.slot + BEGIN_BYTES, span.begun_ns, duration, duration, ABSENT_I64, OK, 0, span.serial
            )
            self._map[span.slot + ENDED_OFFSET] = 1
        self.completed(span)

    def wait_begin(self, span: Span) -> None:
        """The caller begins to wait for the operation, on its thread or on its current stream."""
        if span.on_device:
            span.wait_parent = self.innermost()
            self._mark(span, "wait_start_ns", None, last=False)
        else:
            span.wait_start_ns = now_ns()

    def wait_end(self, span: Span) -> None:
        """The caller has waited; the record is complete."""
        if span.on_device:
            self._mark(span, "exposed_ns", None, last=True)
            return
        exposed = now_ns() - span.wait_start_ns
        top = self.innermost()
        if top is not None and not top.on_device:
            top.child_ns += exposed
        self.abandon(span, exposed)

    def abandon(self, span: Span, exposed_ns: int = ABSENT_I64) -> None:
        """Complete the record of an operation that nobody will wait for."""
        if span.on_device:
            self._mark(span, "", None, last=True)
            return
        end_ns = span.end_ns
        if end_ns is None:
            self._finish(span, span.begun_ns, ABSENT_I64, ABSENT_I64, exposed_ns, ABORTED)
        else:
            duration = end_ns - span.begun_ns
            self._finish(span, span.begun_ns, duration, duration, exposed_ns, OK)

    def innermost(self) -> Span | None:
        """The innermost open span of the calling thread.

        On a device, of the main thread where the calling one has none: a CUDA backward runs on autograd's threads, and
        what they wait for belongs to the main thread's ``backward``.
        """
        writer = getattr(self._local, "writer", None)
        top = None if writer is None else writer.top
        if top is None and self.device is not None and self.main_writer is not None:
            top = self.main_writer.top
        return top

    # -- steps and metadata -------------------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Begin step ``number`` and end the one before."""
        if self.find_device is not None:
            self.find_device()
        now = now_ns()
        self._close_step(now)
        self._step, self._step_start_ns = number, now
        self._words[WORD_STEP_START] = now
        self._words[WORD_STEP] = number

    def _close_step(self, now: int) -> None:
        if self._step != ABSENT_I64:
            values = {"step": self._step, "start_ns": self._step_start_ns, "duration_ns": now - self._step_start_ns}
            self._write_metadata(MetadataKind.STEP, values)

    def end_step(self) -> None:
        """End the current step without beginning another: what follows belongs to none."""
        self._close_step(now_ns())
        self._step = ABSENT_I64

    def close(self, reason: str = "finished") -> None:
        """Write the last step and the reason of the exit. Spans that are open stay in flight, for whoever reads."""
        if self._words[WORD_STATE] == STATE_CLOSED:
            return
        if self.device is not None:
            self.device.close()
            self.device = None
        now = now_ns()
        self._close_step(now)
        self._write_metadata(MetadataKind.EXIT, {"reason": reason, "moment_ns": now})
        self._words[WORD_STATE] = STATE_CLOSED
        self._metadata.close()
        self._steps.close()


def _unlink(writer: Writer, span: Span) -> None:
    """Take a span out of the middle of a thread's stack: spans may overlap without nesting."""
    inner = writer.top
    while inner is not None:
        if inner.parent is span:
            inner.parent = span.parent
            return
        inner = inner.parent
