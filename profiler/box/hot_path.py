"""The recorder's hot path: begin and end of a span in some 30 bytecodes each and one write to the box each.

Two closures, because CPython reads their variables faster than attributes. A span that is begun while no other one is
open in the ring of its thread is written straight to the next place of that ring (it is a leaf), and its end completes
the record there. Whatever else happens on the thread meanwhile moves it to a slot first (``promote``).

Signal handlers, garbage collection and other threads run only where CPython looks for them: after a call. So what
belongs together (claiming the place and leaving it) stands here without a call in between, and no lock is needed.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from .format import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    DURATION_OFFSET,
    HEAD_BYTES,
    LEAF,
    LEAF_END,
    PLAIN,
    RECORD_BYTES,
    SEGMENT,
    SEGMENT_OFFSET,
)
from .span import BLOCKED, Span, Writer

OK = 0
"""Code of `Status.OK`."""

Token = int | Span
"""What `begin` gives and `end` takes: when the span began, or the span itself where it has a slot of its own."""

NO_SPAN = 0
"""Stands for a token where no span was begun, as in compiled code; `end` ignores it, and None."""


class Begin(Protocol):
    """Begins a span on this thread, inside the thread's innermost open one."""

    def __call__(self, segment: int, microbatch: int = ..., chunk: int = ...) -> Token:
        """``segment`` is an index that `Annotations.segment` gave; a number that does not fit is left out."""


class End(Protocol):
    """Ends a span, on any thread; a second end does nothing, nor does that of `NO_SPAN` or None."""

    def __call__(self, token: Token, status: int = ...) -> None:
        """``status`` is a code of `STATUS_CODES`; a span with another one than OK is no measurement of its work."""


class SlowPath(Protocol):
    """What the hot path leaves to `RingWriter`."""

    def new_writer(self) -> Writer:
        """First span of a thread."""

    def begin_slotted(self, writer: Writer, segment: int, microbatch: int, chunk: int) -> Span:
        """Begin a span that gets a slot at once."""

    def repair_leaf(self, writer: Writer, now: int, segment: int, microbatch: int, chunk: int) -> None:
        """Write the leaf again without the numbers that do not fit."""

    def find_slot(self, span: Span) -> None:
        """Find a slot where none is free, or do without."""

    def push(self, writer: Writer, span: Span) -> None:
        """Put a span that has no slot on the thread's stack, or give it up."""

    def free(self, span: Span) -> None:
        """Give a slot back."""

    def end_otherwise(self, writer: Writer, token: Token, now: int, status: int) -> None:
        """End anything but the innermost span of the calling thread."""


class HotPath(NamedTuple):
    """The closures, and what changes their variables."""

    begin: Begin
    end: End
    promote: Callable[[Writer], bool]
    set_step: Callable[[int, bool], None]
    set_box: Callable[[mmap.mmap], None]


def hot_path(slow: SlowPath, local: threading.local, box: mmap.mmap, free_slots: list[int]) -> HotPath:  # noqa: PLR0915
    """Make the hot path of a recorder; ``local.writer`` is the calling thread's `Writer`."""
    words = memoryview(box).cast("q")
    step, is_quiet = ABSENT_I64, False
    now_ns, pack_leaf, pack_end, pack_plain = time.monotonic_ns, LEAF.pack_into, LEAF_END.pack_into, PLAIN.pack_into
    unpack_segment = SEGMENT.unpack_from
    not_a_number = (struct.error, TypeError)

    def begin(segment: int, microbatch: int = ABSENT_I32, chunk: int = ABSENT_I16) -> Token:
        try:
            writer = local.writer
        except AttributeError:
            writer = slow.new_writer()
        now = now_ns()
        while writer.leaf is not None:
            if not promote(writer):
                return slow.begin_slotted(writer, segment, microbatch, chunk)
        writer.leaf = now
        try:
            pack_leaf(box, writer.place, now, step, segment, writer.top.segment, microbatch, chunk, now)
        except not_a_number:
            slow.repair_leaf(writer, now, segment, microbatch, chunk)
        return now

    def end(token: Token, status: int = OK) -> None:
        now = now_ns()
        try:
            writer = local.writer
        except AttributeError:
            writer = slow.new_writer()
        if writer.leaf is not token or status:
            if writer.top.begun_ns is token and writer.leaf is None and not status:
                end_top(writer, token, now)
            else:
                slow.end_otherwise(writer, token, now, status)
            return
        try:
            duration = now - token
        except TypeError:  # None, where nothing was begun
            return
        writer.leaf = None
        place = writer.place
        writer.top.child_ns += duration
        if is_quiet:
            words[place >> 3] = 0
            return
        lap, following = writer.lap, place + RECORD_BYTES
        if following == writer.limit:
            following = writer.first
            writer.lap = lap + 1
        writer.place = following
        pack_end(box, place + DURATION_OFFSET, duration, lap)

    def promote(writer: Writer) -> bool:
        """Move the thread's leaf from the ring to a slot, so that the ring can be written; False where it is blocked.

        Whatever interrupts this (a signal handler, another thread) may do the same: the one that comes first counts.
        """
        leaf = writer.leaf
        if leaf is None or leaf == BLOCKED:
            return leaf is None
        place = writer.place
        span = Span()
        span.writer, span.begun_ns, span.child_ns = writer, leaf, 0
        (span.segment,) = unpack_segment(box, place + SEGMENT_OFFSET)
        span.head = head = box[place : place + HEAD_BYTES]
        span.step, span.is_timed, span.is_open = step, not is_quiet, True
        span.on_device = span.is_extended = False
        try:
            span.slot = slot = free_slots.pop()
            box[slot : slot + HEAD_BYTES] = head
        except IndexError:
            slow.find_slot(span)
        if writer.leaf is not leaf:
            slow.free(span)
        elif span.slot < 0:
            slow.push(writer, span)
        else:
            span.parent = writer.top
            writer.top, writer.leaf = span, None
        return True

    def end_top(writer: Writer, token: int, now: int) -> None:
        span = writer.top
        parent = span.parent
        if span.begun_ns is not token or writer.leaf is not None or parent is None or not parent.is_open:
            slow.end_otherwise(writer, token, now, OK)
            return
        if span.is_extended or not span.is_timed:
            slow.end_otherwise(writer, span, now, OK)
            return
        duration = now - token
        writer.top = parent
        span.is_open = False
        parent.child_ns += duration
        place, lap = writer.place, writer.lap
        following = place + RECORD_BYTES
        if following == writer.limit:
            following = writer.first
            writer.lap = lap + 1
        writer.place = following
        pack_plain(box, place, span.head, span.child_ns, duration, lap)
        slot = span.slot
        if slot < 0:
            slow.free(span)
        else:
            words[slot >> 3] = 0
            free_slots.append(slot)

    def set_step(number: int, quiet: bool) -> None:
        nonlocal step, is_quiet
        step, is_quiet = number, quiet

    def set_box(other: mmap.mmap) -> None:
        nonlocal box, words
        box, words = other, memoryview(other).cast("q")

    return HotPath(begin, end, promote, set_step, set_box)
