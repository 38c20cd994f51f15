"""The recorder's hot path: begin and end of spans, written to the black box without lock, system call or allocation
that grows."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from typing import Any

from .annotations import Annotations
from .box import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    BEGIN,
    BEGIN_BYTES,
    END,
    ENDED_OFFSET,
    HEADER_BYTES,
    MAX_RINGS,
    RECORD_BYTES,
    STATE_CLOSED,
    WORD_STATE,
    WORD_STEP,
    WORD_STEP_START,
    WORD_UNSLOTTED,
    BoxLayout,
)
from .metadata import MetadataKind, MetadataWriter
from .span import DeviceTimer, Span, Writer
from .vocabulary import STATUS_CODES, Status

_now, _pack_begin, _pack_end = time.monotonic_ns, BEGIN.pack_into, END.pack_into
OK, _UNMEASURED = STATUS_CODES.index(Status.OK), STATUS_CODES.index(Status.UNMEASURED)
ABORTED = STATUS_CODES.index(Status.ABORTED)
"""Status of a span that an exception ended: its time is not that of its work."""


class _SpanContext:
    __slots__ = ("_arguments", "_recorder", "span")

    def __init__(self, recorder: Recorder, arguments: tuple[int, int, int]) -> None:
        self._recorder, self._arguments = recorder, arguments

    def __enter__(self) -> Span:
        self.span = self._recorder.begin(*self._arguments)
        return self.span

    def __exit__(self, error: object, *_: object) -> None:
        self._recorder.end(self.span, OK if error is None else ABORTED)


class Recorder(Annotations):
    """Records one rank. Open it with `profiler.opening.open_recorder`; a disabled one is `NullRecorder`.

    Segments and groups are registered once and named by an index afterwards. ``begin``/``end`` nest on a thread;
    ``begin_async`` starts an operation that ends elsewhere (``end_async``) and that somebody may wait for
    (``wait_begin``, ``wait_end``): that wait is its exposed time, and is taken out of the self time of the span
    in which it happened.
    """

    enabled = True

    def __init__(
        self, box: mmap.mmap, layout: BoxLayout, metadata: MetadataWriter, device: DeviceTimer | None = None
    ) -> None:
        super().__init__(metadata, layout)
        self._map, self.device = box, device
        self._words = memoryview(box).cast("q")
        self._free = [HEADER_BYTES + index * RECORD_BYTES for index in reversed(range(layout.slots))]
        self._serials = itertools.count(1)
        self._local = threading.local()
        self._ring_locks: dict[int, threading.Lock] = {}
        self._writers: list[Writer] = []
        self._streams: set[int] = set()
        self._step = ABSENT_I64
        self._step_start_ns = 0
        self._progress_word = layout.groups_offset // 8

    def _new_writer(self) -> Writer:
        with self._setup_lock:
            index = min(len(self._writers), self.layout.rings - 1, MAX_RINGS - 1)
            offset = self.layout.rings_offset + index * self.layout.ring_records * RECORD_BYTES
            lock = None
            if index == self.layout.rings - 1:  # the last ring is shared by all threads that come late
                lock = self._ring_locks.setdefault(index, threading.Lock())
            writer = Writer(index, offset, self.layout.ring_records, lock)
            self._writers.append(writer)
            self._local.writer = writer
            return writer

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
        span.parent = parent = writer.top
        span.segment, span.writer, span.child_ns, span.on_device = segment, writer, 0, False
        span.serial = serial = next(self._serials)
        span.begun_ns = now = _now()
        outer = ABSENT_INDEX if parent is None else parent.segment
        # fmt: off
        try:
            span.slot = slot = self._free.pop()
        except IndexError:
            self._open_without_slot(
                span, (serial, now, self._step, ABSENT_I64, ABSENT_I64, segment, outer, ABSENT_INDEX, ABSENT_I32,
                       microbatch, chunk, 0, writer.index, 0, 0, 0, serial))
        else:
            _pack_begin(self._map, slot, serial, now, self._step, ABSENT_I64, ABSENT_I64, segment, outer, ABSENT_INDEX,
                        ABSENT_I32, microbatch, chunk, 0, writer.index, 0, 0, 0, serial)
        # fmt: on
        writer.top = span
        return span

    def end(self, span: Span, status: int = OK) -> None:
        """End a span, on any thread; a second end does nothing."""
        now = _now()
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
            self.device.mark(span, "end_ns", span.cuda_stream, last=True)  # type: ignore[union-attr]
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
            self.device.mark(span, "end_ns", span.cuda_stream, last=False)  # type: ignore[union-attr]
            return
        now = span.end_ns = _now()
        duration = now - span.begun_ns
        if span.slot >= 0:
            END.pack_into(
                self._map, span.slot + BEGIN_BYTES, span.begun_ns, duration, duration, ABSENT_I64, OK, 0, span.serial
            )
            self._map[span.slot + ENDED_OFFSET] = 1
        self.completed(span)

    def completed(self, span: Span) -> None:
        """Note the span's sequence number as the last that its group completed."""
        if span.group != ABSENT_INDEX and span.sequence != ABSENT_I64:
            word = self._progress_word + 2 * span.group + 1
            self._words[word] = max(self._words[word], span.sequence)

    def wait_begin(self, span: Span) -> None:
        """The caller begins to wait for the operation, on its thread or on its current stream."""
        if span.on_device:
            span.wait_parent = self.innermost()
            self.device.mark(span, "wait_start_ns", None, last=False)  # type: ignore[union-attr]
        else:
            span.wait_start_ns = _now()

    def wait_end(self, span: Span) -> None:
        """The caller has waited; the record is complete."""
        if span.on_device:
            self.device.mark(span, "exposed_ns", None, last=True)  # type: ignore[union-attr]
            return
        exposed = _now() - span.wait_start_ns
        top = self.innermost()
        if top is not None and not top.on_device:
            top.child_ns += exposed
        self.abandon(span, exposed)

    def abandon(self, span: Span, exposed_ns: int = ABSENT_I64) -> None:
        """Complete the record of an operation that nobody will wait for."""
        if span.on_device:
            self.device.mark(span, "", None, last=True)  # type: ignore[union-attr]
            return
        end_ns = span.end_ns
        if end_ns is None:
            self._finish(span, span.begun_ns, ABSENT_I64, ABSENT_I64, exposed_ns, ABORTED)
        else:
            duration = end_ns - span.begun_ns
            self._finish(span, span.begun_ns, duration, duration, exposed_ns, OK)

    def innermost(self) -> Span | None:
        """The innermost open span of the calling thread."""
        writer = getattr(self._local, "writer", None)
        return None if writer is None else writer.top

    # -- writing ------------------------------------------------------------------------------------------------

    def _open(
        self,
        writer: Writer,
        segment: int,
        microbatch: int,
        chunk: int,
        group: int = ABSENT_INDEX,
        sequence: int = ABSENT_I64,
        peer: int = ABSENT_I32,
        size_bytes: int = ABSENT_I64,
        cuda_stream: Any = None,
    ) -> Span:
        span = Span()
        span.segment, span.writer, span.group, span.sequence = segment, writer, group, sequence
        span.child_ns = span.marks = stream = 0
        span.end_ns = None
        span.parent = parent = writer.top
        span.serial = serial = next(self._serials)
        span.on_device = on_device = self.device is not None and self._on_device[segment]
        if on_device:
            stream = self._stream(cuda_stream)
            span.cuda_stream = cuda_stream
        span.begun_ns = now = _now()
        outer = ABSENT_INDEX if parent is None else parent.segment
        # fmt: off
        record = (serial, now, self._step, size_bytes, sequence, segment, outer, group, peer,
                  microbatch, chunk, stream, writer.index, on_device, 0, 0, serial)
        # fmt: on
        try:
            span.slot = slot = self._free.pop()
        except IndexError:
            self._open_without_slot(span, record)
        else:
            _pack_begin(self._map, slot, *record)
        if on_device:
            self.device.mark(span, "start_ns", cuda_stream, last=False)  # type: ignore[union-attr]
        return span

    def _open_without_slot(self, span: Span, record: tuple[int, ...]) -> None:
        span.slot, span.head = -1, BEGIN.pack(*record)
        self._words[WORD_UNSLOTTED] += 1

    def _finish(self, span: Span, start: int, duration: int, self_ns: int, exposed: int, status: int) -> None:
        """Move a span from its slot to the ring of the calling thread; a second end of the same span does nothing."""
        serial = span.serial
        if serial == 0:
            return
        span.serial = 0
        try:
            writer = self._local.writer
        except AttributeError:
            writer = self._new_writer()
        if writer.lock is not None:
            self._finish_shared(writer, span, (start, duration, self_ns, exposed, status, 0, serial))
            return
        box, slot, count = self._map, span.slot, writer.count
        offset = writer.offset + count % writer.capacity * RECORD_BYTES
        box[offset : offset + BEGIN_BYTES] = box[slot : slot + BEGIN_BYTES] if slot >= 0 else span.head
        _pack_end(box, offset + BEGIN_BYTES, start, duration, self_ns, exposed, status, 0, serial)
        writer.count = self._words[writer.head_word] = count + 1
        if slot >= 0:
            self._words[slot >> 3] = 0
            self._free.append(slot)

    def _finish_shared(self, writer: Writer, span: Span, end: tuple[int, ...]) -> None:
        """The last ring belongs to all threads that came late: they take turns."""
        assert writer.lock is not None
        slot = span.slot
        with writer.lock:
            count = self._words[writer.head_word]
            offset = writer.offset + count % writer.capacity * RECORD_BYTES
            self._map[offset : offset + BEGIN_BYTES] = self._map[slot : slot + BEGIN_BYTES] if slot >= 0 else span.head
            _pack_end(self._map, offset + BEGIN_BYTES, *end)
            self._words[writer.head_word] = count + 1
        if slot >= 0:
            self._words[slot >> 3] = 0
            self._free.append(slot)

    def finish_device_span(self, span: Span) -> None:
        """Write a span whose events have all been resolved; called by the device timer, off the hot path."""
        if span.end_ns is None:
            self._finish(span, span.begun_ns, ABSENT_I64, ABSENT_I64, ABSENT_I64, _UNMEASURED)
            return
        self.completed(span)
        duration = span.end_ns - span.start_ns
        exposed, status = getattr(span, "exposed_ns", ABSENT_I64), getattr(span, "status", OK)
        self._finish(span, span.start_ns, duration, duration - span.child_ns, exposed, status)

    def _stream(self, cuda_stream: Any) -> int:
        index, name = self.device.stream_index(cuda_stream)  # type: ignore[union-attr]
        if index not in self._streams:
            self._streams.add(index)
            self._write_metadata(MetadataKind.STREAM, {"index": index, "name": name})
        return index

    # -- steps and metadata -------------------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Begin step ``number`` and end the one before."""
        now = _now()
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
        self._close_step(_now())
        self._step = ABSENT_I64

    def close(self, reason: str = "finished") -> None:
        """Write the last step and the reason of the exit. Spans that are open stay in flight, for whoever reads."""
        if self._words[WORD_STATE] == STATE_CLOSED:
            return
        if self.device is not None:
            self.device.close()
        now = _now()
        self._close_step(now)
        self._write_metadata(MetadataKind.EXIT, {"reason": reason, "moment_ns": now})
        self._words[WORD_STATE] = STATE_CLOSED
        self._metadata.close()

    def detach(self) -> None:
        """After a fork, in the child: write to memory that nobody reads, never to the parent's box."""
        self._map = mmap.mmap(-1, self.layout.total_bytes)
        self._words = memoryview(self._map).cast("q")
        self._words[WORD_STATE] = STATE_CLOSED
        self._metadata.close()
        self.device = None


def _unlink(writer: Writer, span: Span) -> None:
    """Take a span out of the middle of a thread's stack: spans may overlap without nesting."""
    inner = writer.top
    while inner is not None:
        if inner.parent is span:
            inner.parent = span.parent
            return
        inner = inner.parent
