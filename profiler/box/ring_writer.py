"""Writes spans into the black box: slots while they are open, the rings of their threads once they have ended."""

from __future__ import annotations

import mmap
import struct
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..patching import Undo
from ..vocabulary import STATUS_CODES, Status
from .box import BoxLayout
from .format import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    DURATION_OFFSET,
    EXTENDED,
    FACTS,
    HEAD,
    HEAD_BYTES,
    LEAF_END,
    MAX_RINGS,
    NO_FACTS,
    PLAIN,
    RECORD_BYTES,
    STATUS_OFFSET,
)
from .hot_path import OK, Token, hot_path
from .metadata import MetadataKind, MetadataWriter
from .open_spans import OpenSpans, unlink
from .span import BLOCKED, DeviceTimer, Span, Writer

now_ns, pack_extended = time.monotonic_ns, EXTENDED.pack_into
UNMEASURED, ABORTED = STATUS_CODES.index(Status.UNMEASURED), STATUS_CODES.index(Status.ABORTED)
"""Status of a span whose time was not taken, and of one that an exception ended: its time is not that of its work."""

_NOT_A_NUMBER = (struct.error, TypeError)


class RingWriter(OpenSpans):
    """The part of a recorder that writes records. Its caller decides when a span begins and ends."""

    def __init__(self, box: mmap.mmap, layout: BoxLayout, metadata: MetadataWriter, steps: MetadataWriter) -> None:
        super().__init__(box, layout, metadata, steps)
        self._device: DeviceTimer | None = None
        self.spool: Path | None = None
        self.find_device: Callable[[], None] | None = None
        self.release_device: Undo = lambda: None
        self._local = threading.local()
        # A list's append, remove and copy cannot be interrupted: threads come and go while others look at them.
        self._writers: list[weakref.ref[Writer]] = []
        self._writers_made = 0
        self._shared: Writer | None = None
        self.main_writer: Writer | None = None
        self._streams: set[int] = set()
        self._is_quiet = False
        hot = hot_path(self, self._local, box, self._free_slots)
        self.begin, self.end, self._promote, self._set_step, self._set_box = hot

    @property
    def device(self) -> DeviceTimer | None:
        """Times segments on a device; None where the host's clock does."""
        return self._device

    @device.setter
    def device(self, timer: DeviceTimer | None) -> None:
        self._device = timer
        if timer is not None:
            for writer in self.writers():
                self._empty_ring(writer)
                writer.leaf = BLOCKED

    def new_writer(self) -> Writer:
        """First span of a thread. The threads that come late share the last ring."""
        with self._setup_lock:
            last = min(self.layout.rings, MAX_RINGS) - 1
            index = min(self._writers_made, last)
            offset = self.layout.rings_offset + index * self.layout.ring_records * RECORD_BYTES
            writer = Writer(index, offset, self.layout.ring_records, self._shared if index == last else None)
            if index == last:
                self._shared = writer.ring
            if index == last or self._device is not None:
                writer.leaf = BLOCKED
            self._writers_made += 1
            self._writers.append(weakref.ref(writer, self._writers.remove))
            if threading.current_thread() is threading.main_thread():
                self.main_writer = writer
            self._local.writer = writer
            return writer

    def _writer(self) -> Writer:
        try:
            writer: Writer = self._local.writer
        except AttributeError:
            writer = self.new_writer()
        return writer

    # -- from the ring to a slot --------------------------------------------------------------------------------

    def _empty_ring(self, writer: Writer) -> None:
        while writer.leaf is not None and writer.leaf != BLOCKED:
            self._promote(writer)

    def writers(self) -> list[Writer]:
        """The threads that have recorded anything and still run."""
        return [writer for each in self._writers.copy() if (writer := each()) is not None]

    def abort(self, span: Span) -> None:
        """Write a span that is no longer open without its times."""
        if span.is_timed:
            self._write(self._writer(), span, span.begun_ns, ABSENT_I64, 0, ABSENT_I64, ABORTED)

    def begin_slotted(self, writer: Writer, segment: int, microbatch: int, chunk: int) -> Span:
        """Begin a span that nests on its thread and gets a slot at once."""
        span = self._open(writer, segment, microbatch, chunk)
        if not self._is_too_many(span):
            writer.top = span
        return span

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
        if writer.leaf is not None:
            self._empty_ring(writer)
        parent, stream, device = writer.top, 0, self._device
        if device is not None and parent.parent is None and group != ABSENT_INDEX and self.main_writer is not None:
            parent = self.main_writer.top  # autograd's thread communicates for the main thread's backward
        span = Span()
        span.writer, span.segment, span.parent, span.child_ns, span.end_ns = writer, segment, parent, 0, None
        span.group, span.sequence, span.is_open, span.is_extended = group, sequence, True, True
        span.is_timed, span.marks = not self._is_quiet, 0
        span.step = step = ABSENT_I64 if self._step is None else self._step
        # An operation keeps its events in a step without timings too: they tell when it is no longer in flight.
        keeps_events = device is not None and (span.is_timed or group != ABSENT_INDEX)
        span.on_device = on_device = keeps_events and self._on_device[segment]
        if on_device:
            span.cuda_stream, stream = cuda_stream, self._stream(cuda_stream)
        span.begun_ns = now = now_ns()
        try:
            span.head = HEAD.pack(now, step, segment, parent.segment, microbatch, chunk, 1, OK, now)
            span.facts = FACTS.pack(size_bytes, sequence, group, peer, stream, writer.index, on_device, 0, 0)
        except _NOT_A_NUMBER:  # then without any of them
            span.group, span.sequence = ABSENT_INDEX, ABSENT_I64
            span.head = HEAD.pack(now, step, segment, parent.segment, ABSENT_I32, ABSENT_I16, 1, OK, now)
            span.facts = FACTS.pack(*NO_FACTS[:4], stream, writer.index, on_device, 0, 0)
        try:
            span.slot = slot = self._free_slots.pop()
            pack_extended(self._map, slot, span.head, 0, 0, 0, now, ABSENT_I64, span.facts, now)
        except IndexError:
            self.find_slot(span)
        if on_device:
            self._mark(span, "start_ns", cuda_stream, last=False)
        return span

    def repair_leaf(self, writer: Writer, now: int, segment: int, microbatch: int, chunk: int) -> None:
        """Write the leaf again without the numbers that do not fit."""
        step = ABSENT_I64 if self._step is None else self._step
        outer = writer.top.segment
        head = HEAD.pack(now, step, segment, outer, ABSENT_I32, ABSENT_I16, 0, OK, now)
        if writer.leaf == now:
            self._map[writer.place : writer.place + HEAD_BYTES] = head

    # -- from the slot, or from the ring itself, to the ring ----------------------------------------------------

    def end_otherwise(self, writer: Writer, token: Token, now: int, status: int) -> None:
        """End a span that is not the calling thread's leaf, or not well; nothing where there is none."""
        if not token:
            return
        if isinstance(token, Span):
            self._end_slotted(token, now, status)
        elif writer.leaf == token:
            # As in `hot_path`: no call but the last.
            writer.leaf = None
            place, duration = writer.place, now - token
            writer.top.child_ns += duration
            if self._is_quiet:
                self._words[place >> 3] = 0
                return
            lap, following = writer.lap, place + RECORD_BYTES
            if following == writer.limit:
                following = writer.first
                writer.lap = lap + 1
            writer.place = following
            self._map[place + STATUS_OFFSET] = status
            LEAF_END.pack_into(self._map, place + DURATION_OFFSET, duration, lap)
        elif (found := self._find(writer, token)) is not None:
            self._end_slotted(found, now, status)

    def _find(self, writer: Writer, begun_ns: int) -> Span | None:
        """The open span that began then, on this thread or on another."""
        for each in (writer, *self.writers()):
            if each.leaf == begun_ns:
                self._promote(each)
            span: Span | None = each.top
            while span is not None:
                if span.begun_ns == begun_ns and span.is_open:
                    return span
                span = span.parent
        return None

    def _end_slotted(self, span: Span, now: int, status: int) -> None:
        if span.writer.leaf is not None:
            self._empty_ring(span.writer)
        if not span.is_open:
            return
        inner = unlink(span.writer, span)
        duration = now - span.begun_ns
        parent, overlap = span.parent, 0
        if inner is not None and inner.is_open and not inner.on_device and not span.on_device:
            overlap = now - inner.begun_ns  # in which a span ran that goes on: its own, and no other's
            span.child_ns += overlap
        if parent is not None and not parent.on_device:
            parent.child_ns += duration - overlap
        if span.on_device:
            span.status = status
            self._mark(span, "end_ns", span.cuda_stream, last=True)
            return
        self._finish(span, span.begun_ns, duration, span.child_ns, ABSENT_I64, status)

    def _finish(self, span: Span, start: int, duration: int, child: int, exposed: int, status: int) -> None:
        """Move a span from its slot to the ring of the calling thread; a second end of the same span does nothing."""
        if not span.is_open:
            return
        span.is_open = False
        if span.is_timed:
            self._write(self._writer(), span, start, duration, child, exposed, status)
        self.free(span)

    def _write(
        self, writer: Writer, span: Span, start: int, duration: int, child: int, exposed: int, status: int
    ) -> None:
        ring, begun_ns, head, index = writer.ring, span.begun_ns, span.head, span.writer.index
        is_extended = span.is_extended or span.writer is not writer or ring is not writer
        if status or is_extended is not span.is_extended:
            head = head[: STATUS_OFFSET - 1] + bytes((is_extended, status)) + head[STATUS_OFFSET + 1 :]
        facts = span.facts if span.is_extended else FACTS.pack(*NO_FACTS, index, 0, 0, 0)
        if writer.leaf is not None:
            self._empty_ring(writer)
        # From here to the one call that writes the record: no other call, see `hot_path`.
        place, lap, following = ring.place, ring.lap, ring.place + RECORD_BYTES
        if following == ring.limit:
            following = ring.first
            ring.lap = lap + 1
        ring.place = following
        if is_extended:
            pack_extended(self._map, place, head, child, duration, lap, start, exposed, facts, begun_ns)
        else:
            PLAIN.pack_into(self._map, place, head, child, duration, lap)

    # -- device -------------------------------------------------------------------------------------------------

    def _mark(self, span: Span, field: str, cuda_stream: Any, *, last: bool) -> None:
        """Let the device timer record an event; without a timer any more, the span ends unmeasured."""
        device = self._device
        if device is not None:
            device.mark(span, field, cuda_stream, last=last)
        elif last:
            self.give_up(span)

    def give_up(self, span: Span, status: int = UNMEASURED) -> None:
        """Write a device span without times: it was captured, or its events cannot be read."""
        self._finish(span, span.begun_ns, ABSENT_I64, 0, ABSENT_I64, status)

    def lose_device(self) -> None:
        """The device timer failed for good: from here on segments are timed by the host's clock."""
        self._device = self.find_device = None
        self.release_device()

    def finish_device_span(self, span: Span) -> None:
        """Write a span whose events have all been resolved; called by the device timer, off the hot path."""
        self.completed(span)
        assert span.end_ns is not None
        exposed, status = getattr(span, "exposed_ns", ABSENT_I64), getattr(span, "status", OK)
        self._finish(span, span.start_ns, span.end_ns - span.start_ns, span.child_ns, exposed, status)

    def _stream(self, cuda_stream: Any) -> int:
        index, name = self._device.stream_index(cuda_stream)  # type: ignore[union-attr]
        if index not in self._streams:
            self._streams.add(index)
            self._write_metadata(MetadataKind.STREAM, {"index": index, "name": name})
        return index
