"""Writes spans into the black box: slots while they are open, the rings of their threads once they have ended."""

from __future__ import annotations

import itertools
import mmap
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
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
    HEADER_BYTES,
    MAX_RINGS,
    RECORD_BYTES,
    STATE_CLOSED,
    WORD_METADATA_LOST,
    WORD_STATE,
    WORD_UNSLOTTED,
    BoxLayout,
)
from .metadata import MetadataKind, MetadataWriter
from .span import DeviceTimer, Span, Writer
from .vocabulary import STATUS_CODES, Status

pack_begin, pack_end, now_ns = BEGIN.pack_into, END.pack_into, time.monotonic_ns
OK, UNMEASURED = STATUS_CODES.index(Status.OK), STATUS_CODES.index(Status.UNMEASURED)
ABORTED = STATUS_CODES.index(Status.ABORTED)
"""Status of a span that an exception ended: its time is not that of its work."""

NotANumber = struct.error
"""What packing raises for a number that does not fit its field."""


class RingWriter(Annotations):
    """The part of a recorder that writes records. Its caller decides when a span begins and ends."""

    def __init__(self, box: mmap.mmap, layout: BoxLayout, metadata: MetadataWriter, steps: MetadataWriter) -> None:
        super().__init__(metadata, steps, layout)
        self._map = box
        self.device: DeviceTimer | None = None
        self.spool: Path | None = None
        self.find_device: Callable[[], None] | None = None
        self._words = memoryview(box).cast("q")
        self._free = [HEADER_BYTES + index * RECORD_BYTES for index in reversed(range(layout.slots))]
        self._serials = itertools.count(1)
        self._local = threading.local()
        self._ring_locks: dict[int, threading.Lock] = {}
        self._writers = 0
        self.main_writer: Writer | None = None
        self._streams: set[int] = set()
        self._step = ABSENT_I64
        self._step_start_ns = 0
        self._progress_word = layout.groups_offset // 8

    def _new_writer(self) -> Writer:
        with self._setup_lock:
            index = min(self._writers, self.layout.rings - 1, MAX_RINGS - 1)
            offset = self.layout.rings_offset + index * self.layout.ring_records * RECORD_BYTES
            lock = None
            if index == min(self.layout.rings, MAX_RINGS) - 1:  # the last ring is shared by all threads that come late
                lock = self._ring_locks.setdefault(index, threading.Lock())
            writer = Writer(index, offset, self.layout.ring_records, lock)
            self._writers += 1
            if threading.current_thread() is threading.main_thread():
                self.main_writer = writer
            self._local.writer = writer
            return writer

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
        parent = writer.top
        if parent is None and self.device is not None and group != ABSENT_INDEX and self.main_writer is not None:
            parent = self.main_writer.top  # autograd's thread communicates for the main thread's backward
        span.parent = parent
        span.serial = serial = next(self._serials)
        span.on_device = on_device = self.device is not None and self._on_device[segment]
        if on_device:
            stream = self._stream(cuda_stream)
            span.cuda_stream = cuda_stream
        span.begun_ns = now = now_ns()
        outer = ABSENT_INDEX if parent is None else parent.segment
        # fmt: off
        record = (serial, now, self._step, size_bytes, sequence, segment, outer, group, peer,
                  microbatch, chunk, stream, writer.index, on_device, 0, 0, serial)
        # fmt: on
        try:
            span.slot = slot = self._free.pop()
            pack_begin(self._map, slot, *record)
        except (IndexError, NotANumber, TypeError) as error:
            self._open_otherwise(error, span, record)
        if on_device:
            self._mark(span, "start_ns", cuda_stream, last=False)
        return span

    def _open_otherwise(self, error: Exception, span: Span, record: tuple[Any, ...]) -> None:
        """Open a span without a slot where none is free; without its numbers where they are none that fit."""
        if isinstance(error, IndexError):
            span.slot = -1
            self._words[WORD_UNSLOTTED] += 1
        if not isinstance(error, IndexError) or not _fits(record):
            numbers = (ABSENT_INDEX, ABSENT_I32, ABSENT_I32, ABSENT_I16)
            record = (*record[:3], ABSENT_I64, ABSENT_I64, *record[5:7], *numbers, *record[11:])
        if span.slot < 0:
            span.head = BEGIN.pack(*record)
        else:
            pack_begin(self._map, span.slot, *record)

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
        pack_end(box, offset + BEGIN_BYTES, start, duration, self_ns, exposed, status, 0, serial)
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
            pack_end(self._map, offset + BEGIN_BYTES, *end)
            self._words[writer.head_word] = count + 1
        if slot >= 0:
            self._words[slot >> 3] = 0
            self._free.append(slot)

    def completed(self, span: Span) -> None:
        """Note the span's sequence number as the last that its group completed."""
        if span.group != ABSENT_INDEX and span.sequence != ABSENT_I64:
            word = self._progress_word + 2 * span.group + 1
            self._words[word] = max(self._words[word], span.sequence)

    def _mark(self, span: Span, field: str, cuda_stream: Any, *, last: bool) -> None:
        """Let the device timer record an event; without a timer any more, the span ends unmeasured."""
        device = self.device
        if device is not None:
            device.mark(span, field, cuda_stream, last=last)
        elif last:
            self.give_up(span)

    def give_up(self, span: Span, status: int = UNMEASURED) -> None:
        """Write a device span without times: it was captured, or its events cannot be read."""
        self._finish(span, span.begun_ns, ABSENT_I64, ABSENT_I64, ABSENT_I64, status)

    def lose_device(self) -> None:
        """The device timer failed for good: from here on segments are timed by the host's clock."""
        self.device = self.find_device = None

    def finish_device_span(self, span: Span) -> None:
        """Write a span whose events have all been resolved; called by the device timer, off the hot path."""
        self.completed(span)
        assert span.end_ns is not None
        duration = span.end_ns - span.start_ns
        exposed, status = getattr(span, "exposed_ns", ABSENT_I64), getattr(span, "status", OK)
        self._finish(span, span.start_ns, duration, duration - span.child_ns, exposed, status)

    def _lose_metadata(self, what: str, error: Exception) -> None:
        super()._lose_metadata(what, error)
        self._words[WORD_METADATA_LOST] = self.metadata_lost

    def _stream(self, cuda_stream: Any) -> int:
        index, name = self.device.stream_index(cuda_stream)  # type: ignore[union-attr]
        if index not in self._streams:
            self._streams.add(index)
            self._write_metadata(MetadataKind.STREAM, {"index": index, "name": name})
        return index

    def detach(self) -> None:
        """After a fork, in the child: write to memory that nobody reads, never to the parent's box."""
        self._map = mmap.mmap(-1, self.layout.total_bytes)
        self._words = memoryview(self._map).cast("q")
        self._words[WORD_STATE] = STATE_CLOSED
        self._metadata.close()
        self._steps.close()
        self.device = self.find_device = None
        self._setup_lock = threading.RLock()  # another thread of the parent may have held it
        self._ring_locks = {}
        self._local = threading.local()


def _fits(record: tuple[Any, ...]) -> bool:
    try:
        BEGIN.pack(*record)
    except (struct.error, TypeError):
        return False
    return True
