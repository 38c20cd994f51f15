"""The black box: one memory-mapped file a rank, and a reader that never needs its writer.

Three regions follow the header: in-flight slots (never overwritten while open), one ring of completed spans per
writing thread (oldest overwritten and counted), and the last sequence numbers of each group. The innermost span of a
thread, as long as it is the only one that it opened last, is open in the next place of the thread's ring and not in a
slot: it moves to a slot before anything else is written there. The fields are in `format`.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from . import version_1 as box_version_1
from .format import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    HEADER,
    HEADER_BYTES,
    LAP_OFFSET,
    MAGIC,
    PROGRESS,
    PROGRESS_BYTES,
    RAW,
    RECORD,
    RECORD_BYTES,
    STATE_CLOSED,
    STATE_OPEN,
    UNKNOWN_THREAD,
    VERSION,
    WORD_LEAKED,
    WORD_METADATA_LOST,
    WORD_STATE,
    WORD_STEP,
    WORD_STEP_START,
    WORD_UNSLOTTED,
    finished,
    is_whole,
)

__all__ = [
    "ABSENT_I16",
    "ABSENT_I32",
    "ABSENT_I64",
    "ABSENT_INDEX",
    "HEADER_BYTES",
    "PROGRESS",
    "RAW",
    "RECORD",
    "RECORD_BYTES",
    "BoxLayout",
    "BoxReader",
    "RingRead",
    "create_box",
]


@dataclass(frozen=True, slots=True)
class BoxLayout:
    """Sizes of the regions: number of slots, rings (at most 64), records in a ring (2 at least), and groups."""

    slots: int = 1024
    rings: int = 8
    ring_records: int = 16384
    groups: int = 1024

    @property
    def rings_offset(self) -> int:
        """Byte at which the first ring starts."""
        return HEADER_BYTES + self.slots * RECORD_BYTES

    @property
    def groups_offset(self) -> int:
        """Byte at which the sequence numbers start."""
        return self.rings_offset + self.rings * self.ring_records * RECORD_BYTES

    @property
    def total_bytes(self) -> int:
        """Size of the file."""
        return self.groups_offset + self.groups * PROGRESS_BYTES


def create_box(path: Path, layout: BoxLayout, *, rank: int, pid: int) -> mmap.mmap:
    """Create the file, reserve all of its space, write the header and map it.

    Raises FileExistsError if the file is there, and OSError (ENOSPC) where the space cannot be reserved: a sparse
    file would end in SIGBUS once the disk is full.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, layout.total_bytes)
        box = mmap.mmap(fd, layout.total_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    sizes = (layout.slots, layout.rings, layout.ring_records, layout.groups)
    offsets = (HEADER_BYTES, layout.rings_offset, layout.groups_offset, layout.total_bytes)
    words = memoryview(box).cast("q")
    words[WORD_STEP] = words[WORD_STEP_START] = ABSENT_I64
    words[WORD_STATE] = STATE_OPEN
    words.release()
    HEADER.pack_into(box, 0, MAGIC, VERSION, RECORD_BYTES, *sizes, rank, pid, *offsets)
    return box


@dataclass(frozen=True, slots=True)
class RingRead:
    """Completed spans of one ring: records (dtype RECORD), the new tail, and how many were overwritten unread."""

    records: np.ndarray[Any, Any]
    tail: int
    lost: int


class BoxReader:
    """Reads a black box from outside, at any time, whatever its writer does.

    Raises FormatError for a file that is no black box, is cut short, or is of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                raise FormatError(f"{path} is not a black box: it has {size} bytes. Remove it or wait for its writer.")
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        magic, self.version, record_bytes, slots, rings, ring_records, groups, rank, pid, *offsets = HEADER.unpack_from(
            self._map
        )
        self.layout = BoxLayout(slots, rings, ring_records, groups)
        if magic != MAGIC or record_bytes != RECORD_BYTES:
            raise FormatError(f"{path} is not a black box (wrong magic bytes). Remove it from the spool.")
        if self.version > VERSION:
            raise FormatError(f"{path} has version {self.version}, newer than {VERSION}: upgrade megascope to read it.")
        if self.layout.total_bytes != offsets[3] or size < offsets[3]:
            raise FormatError(f"{path} is cut short: {size} of {offsets[3]} bytes are there. It cannot be read.")
        self.rank, self.pid = int(rank), int(pid)
        self._words = np.frombuffer(self._map, "<i8", HEADER_BYTES // 8)
        self._slots = np.frombuffer(self._map, np.uint8, slots * RECORD_BYTES, HEADER_BYTES)
        self._rings = np.frombuffer(self._map, np.uint8, rings * ring_records * RECORD_BYTES, self.layout.rings_offset)
        self._rings = self._rings.reshape(rings, ring_records * RECORD_BYTES)
        self._laps = self._rings.view("<u8").reshape(rings, ring_records, -1)[:, :, LAP_OFFSET // 8]
        self._progress = np.frombuffer(self._map, PROGRESS, groups, self.layout.groups_offset)

    @property
    def closed(self) -> bool:
        """Whether the writer said goodbye."""
        return int(self._words[WORD_STATE]) == STATE_CLOSED

    @property
    def step(self) -> int | None:
        """The step that the rank is in; None before the first."""
        step = int(self._words[WORD_STEP])
        return None if step == ABSENT_I64 else step

    @property
    def step_start_ns(self) -> int | None:
        """Start of that step on the monotonic clock."""
        start_ns = int(self._words[WORD_STEP_START])
        return None if start_ns == ABSENT_I64 else start_ns

    @property
    def unslotted(self) -> int:
        """Spans that found no free in-flight slot: they are timed, but were not visible while open."""
        return int(self._words[WORD_UNSLOTTED])

    @property
    def leaked(self) -> int:
        """Spans that were begun and never ended, and were given up so that others find a slot."""
        return int(self._words[WORD_LEAKED])

    @property
    def metadata_lost(self) -> int:
        """Metadata lines that could not be written."""
        return int(self._words[WORD_METADATA_LOST])

    def head(self, ring: int) -> int:
        """Number of records ever written to a ring.

        The places before the next one carry the newest lap, those from there on the lap before (or 0).
        """
        if self.version == 1:
            return box_version_1.head(self._words, ring)
        laps, capacity = self._laps[ring], self.layout.ring_records
        lap = int(laps[0])
        if lap == 0:  # never used, or a span is open in the first place while all others are of the last lap
            return int(laps[1]) * capacity
        low, high = 1, capacity
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if laps[middle] == lap else (low, middle)
        return (lap - 1) * capacity + low

    def read_ring(self, ring: int, tail: int, most: int | None = None) -> RingRead:
        """Copy what was completed in a ring since ``tail`` (a count of records, as the last read returned it).

        At most ``most`` records, the oldest first; the rest is there for the next read, unless overwritten till then.
        """
        capacity = self.layout.ring_records
        head = self.head(ring)
        first = max(tail, head - capacity)
        end = max(first, head if most is None else min(head, first + most))
        copy = self._copy(ring, first, end)
        if self.version == 1:
            whole, records = box_version_1.completed(copy.view(box_version_1.RECORD_1))
            moved = self.head(ring)
            # What the writer overwrote while the copy was made is lost; the record under its pen is torn.
            whole[: max(0, moved - capacity + 1 - first) if moved > head else 0] = False
        else:
            raw = copy.view(RAW)
            laps = np.arange(first, end) // capacity + 1
            # Looked at again after the copy: the writer clears the lap before it touches anything else of a record.
            whole = is_whole(raw) & (raw["lap"] == laps) & (self._laps_of(ring, first, end) == laps)
            records = finished(raw, ring)
        if not whole.all():
            records = records[whole]
        return RingRead(records, end, end - tail - len(records))

    def _copy(self, ring: int, first: int, end: int) -> np.ndarray[Any, Any]:
        """Copy the places of records ``first`` to ``end`` as plain bytes: 20 times faster than field by field."""
        capacity = self.layout.ring_records
        count, begin = end - first, first % capacity
        copy = np.empty(count * RECORD_BYTES, np.uint8)
        ahead = min(count, capacity - begin) * RECORD_BYTES
        places = self._rings[ring]
        copy[:ahead] = places[begin * RECORD_BYTES : begin * RECORD_BYTES + ahead]
        copy[ahead:] = places[: len(copy) - ahead]
        return copy

    def _laps_of(self, ring: int, first: int, end: int) -> np.ndarray[Any, Any]:
        capacity = self.layout.ring_records
        begin, laps = first % capacity, self._laps[ring]
        ahead = min(end - first, capacity - begin)
        return np.concatenate((laps[begin : begin + ahead], laps[: end - first - ahead]))

    def slots(self) -> np.ndarray[Any, Any]:
        """Copy of everything in flight (dtype RECORD), the earliest begun first.

        ``ended`` is 1 where the operation is done but its rank has not waited for it yet: start and duration hold.
        ``waiting`` is 1 where the rank waits for it. Elsewhere duration and self time are absent.
        """
        if self.version == 1:
            slots = box_version_1.in_flight(self._slots.copy().view(box_version_1.RECORD_1))
        else:
            leaves = [self._leaf(ring) for ring in range(self.layout.rings)]  # before the slots, to which they move
            raw = self._slots.copy().view(RAW)
            raw = raw[is_whole(raw)]
            leaves = [leaf[~np.isin(leaf["begun_ns"], raw["begun_ns"])] for leaf in leaves]
            slots = np.concatenate([finished(raw, UNKNOWN_THREAD), *leaves])
        is_open = slots["ended"] == 0
        slots["duration_ns"][is_open] = slots["self_ns"][is_open] = ABSENT_I64
        slots.sort(order="begun_ns")
        return slots

    def _leaf(self, ring: int) -> np.ndarray[Any, Any]:
        """The span that is open in the next place of a ring, if there is one."""
        head = self.head(ring)
        raw = self._copy(ring, head, head + 1).view(RAW)
        raw = raw[is_whole(raw) & (raw["lap"] == 0) & (raw["extended"] == 0)]
        return finished(raw, ring)

    def progress(self) -> np.ndarray[Any, Any]:
        """Copy of the last sequence numbers (dtype PROGRESS) by group index; 0 where nothing was issued."""
        return self._progress.copy()

    def close(self) -> None:
        """Drop the views and unmap."""
        del self._words, self._slots, self._laps, self._rings, self._progress
        self._map.close()
