"""The in-flight slots: taken, given back, and taken away from spans that were begun and never ended."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterable

from .annotations import Annotations
from .box import BoxLayout
from .format import (
    ABSENT_I64,
    ABSENT_INDEX,
    EXTENDED,
    HEAD_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    WORD_LEAKED,
    WORD_METADATA_LOST,
    WORD_UNSLOTTED,
)
from .metadata import MetadataWriter
from .span import Span, Writer

LEAK_STEPS = 2
"""A span that began at least so many steps ago may count as one that nobody will end."""


class OpenSpans(Annotations):
    """The part of a recorder that shows what is in flight, and how far each group is."""

    def __init__(self, box: mmap.mmap, layout: BoxLayout, metadata: MetadataWriter, steps: MetadataWriter) -> None:
        super().__init__(metadata, steps, layout)
        self._map = box
        self._words = memoryview(box).cast("q")
        self._free_slots = [HEADER_BYTES + index * RECORD_BYTES for index in reversed(range(layout.slots))]
        self._operations: dict[int, Span] = {}
        self._open_unslotted = 0
        self._step: int | None = None
        self._progress_word = layout.groups_offset // 8

    def find_slot(self, span: Span) -> None:
        """Take a slot from spans that nobody will end, or do without: where none is free."""
        self._reclaim()
        try:
            span.slot = slot = self._free_slots.pop()
        except IndexError:
            span.slot = -1
            self._words[WORD_UNSLOTTED] += 1
            self._open_unslotted += 1
            return
        if span.is_extended:
            begun_ns = span.begun_ns
            EXTENDED.pack_into(self._map, slot, span.head, 0, 0, 0, begun_ns, ABSENT_I64, span.facts, begun_ns)
        else:
            self._map[slot : slot + HEAD_BYTES] = span.head

    def free(self, span: Span) -> None:
        """Give a slot back."""
        slot = span.slot
        if slot >= 0:
            self._operations.pop(slot, None)
            self._words[slot >> 3] = 0
            self._free_slots.append(slot)
        else:
            self._open_unslotted -= 1

    def push(self, writer: Writer, span: Span) -> None:
        """Put a leaf that has no slot on its thread's stack. Where there are too many such, it counts as leaked."""
        span.parent, writer.leaf = writer.top, None
        if not self._is_too_many(span):
            writer.top = span
            return
        span.is_open = False
        self._words[WORD_LEAKED] += 1
        self.abort(span)
        self.free(span)

    def _is_too_many(self, span: Span) -> bool:
        """Whether so many spans are open beyond the slots that nobody can mean to end them."""
        return span.slot < 0 and self._open_unslotted > self.layout.slots

    def _reclaim(self) -> None:
        """Give up spans that were begun in earlier steps and never ended: they are written as aborted, and counted."""
        if self._step is None:
            return
        given_up = leaked(open_spans(self.writers(), list(self._operations.values())), self._step)
        for span in given_up:  # all slots first: writing them may need one
            span.is_open = False
            unlink(span.writer, span)
            self.free(span)
        self._words[WORD_LEAKED] += len(given_up)
        for span in given_up:
            self.abort(span)

    def completed(self, span: Span) -> None:
        """Note the span's sequence number as the last that its group completed."""
        if span.group != ABSENT_INDEX and span.sequence != ABSENT_I64:
            word = self._progress_word + 2 * span.group + 1
            self._words[word] = max(self._words[word], span.sequence)

    def _lose_metadata(self, what: str, error: Exception) -> None:
        super()._lose_metadata(what, error)
        self._words[WORD_METADATA_LOST] = self.metadata_lost

    def writers(self) -> list[Writer]:
        """The threads that have recorded anything and still run."""
        raise NotImplementedError

    def abort(self, span: Span) -> None:
        """Write a span that is no longer open without its times."""
        raise NotImplementedError


def open_spans(writers: Iterable[Writer], operations: Iterable[Span]) -> list[Span]:
    """All spans that hold a slot: those on the threads' stacks, and operations that end elsewhere."""
    found = {span.slot: span for span in operations}
    for writer in writers:
        span: Span | None = writer.top
        while span is not None and span.parent is not None:
            found[span.slot] = span
            span = span.parent
    return [span for slot, span in found.items() if slot >= 0 and span.is_open]


def leaked(spans: Iterable[Span], step: int) -> list[Span]:
    """Spans that may be given up: the older half of those of one segment that began in earlier steps.

    The segment is the one that has most of them, and at least two: one span may well be open for the whole run.
    """
    old = [span for span in spans if span.step != ABSENT_I64 and span.step <= step - LEAK_STEPS]
    if not old:
        return []
    segment, count = Counter(span.segment for span in old).most_common(1)[0]
    of_segment = sorted((span for span in old if span.segment == segment), key=lambda span: span.begun_ns)
    return of_segment[: (count + 1) // 2] if count > 1 else []


def unlink(writer: Writer, span: Span) -> Span | None:
    """Take a span out of a thread's stack, from its middle too: spans may overlap without nesting.

    What another thread ended while this one began a child goes with it. Returns the span just inside it, if any.
    """
    inner = writer.top
    while inner.parent is not None and inner is not span:
        if inner.parent is span:
            inner.parent = span.parent
            return inner
        inner = inner.parent
    if writer.top is span and span.parent is not None:
        writer.top = span.parent
    while writer.top.parent is not None and not writer.top.is_open:
        writer.top = writer.top.parent
    return None
