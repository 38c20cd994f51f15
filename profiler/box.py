"""The black box's binary format: one memory-mapped file a rank, and a reader that never needs its writer.

Three regions follow the header: in-flight slots (never overwritten while open), one ring of completed spans per
writing thread (oldest overwritten and counted), and the last sequence numbers of each group. A record's serial
stands at its beginning and at its end and is written there last, so that a reader discards what is torn.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import FormatError

MAGIC = b"MEGABOX\0"
VERSION = 1
HEADER_BYTES = 4096
RECORD_BYTES = 128
PROGRESS_BYTES = 16
MAX_RINGS = 64

ABSENT_I64 = -(2**63)
ABSENT_I32 = -(2**31)
ABSENT_I16 = -(2**15)
ABSENT_INDEX = 2**32 - 1
"""Markers for a missing value in the box; the agent turns them into NULL."""

STATE_OPEN, STATE_CLOSED = 1, 2

# Positions of the live 8-byte words in the header, counted in words.
WORD_STATE, WORD_STEP, WORD_STEP_START, WORD_UNSLOTTED, WORD_METADATA_LOST, WORD_HEADS = 32, 33, 34, 35, 36, 64

_HEADER = struct.Struct("<8sIIIIIIqqQQQQ")

BEGIN = struct.Struct("<QqqqqIIIiihHHBBIQ")
"""First part of a record: serial, begun_ns, step, size_bytes, sequence, segment, parent, group, peer, microbatch,
chunk, stream, thread, clock, ended, reserved, serial again."""

END = struct.Struct("<qqqqIIQ")
"""Second part: start_ns, duration_ns, self_ns, exposed_ns, status, reserved, serial once more."""

BEGIN_BYTES = BEGIN.size

RECORD = np.dtype(
    [
        ("serial", "<u8"),
        ("begun_ns", "<i8"),
        ("step", "<i8"),
        ("size_bytes", "<i8"),
        ("sequence", "<i8"),
        ("segment", "<u4"),
        ("parent", "<u4"),
        ("group", "<u4"),
        ("peer", "<i4"),
        ("microbatch", "<i4"),
        ("chunk", "<i2"),
        ("stream", "<u2"),
        ("thread", "<u2"),
        ("clock", "u1"),
        ("ended", "u1"),
        ("reserved", "<u4"),
        ("serial_begin", "<u8"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("self_ns", "<i8"),
        ("exposed_ns", "<i8"),
        ("status", "<u4"),
        ("reserved_end", "<u4"),
        ("serial_end", "<u8"),
    ]
)
ENDED_OFFSET = 67
"""Place of ``ended`` in a slot: 1 once the operation is done and its rank has not waited for it yet."""

PROGRESS = np.dtype([("issued", "<i8"), ("completed", "<i8")])

assert RECORD.itemsize == RECORD_BYTES == BEGIN.size + END.size
assert RECORD.fields is not None
assert RECORD.fields["ended"][1] == ENDED_OFFSET


@dataclass(frozen=True, slots=True)
class BoxLayout:
    """Sizes of the regions: number of slots, rings (at most 64), records in a ring, and groups."""

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
    _HEADER.pack_into(box, 0, MAGIC, VERSION, RECORD_BYTES, *sizes, rank, pid, *offsets)
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
        magic, version, record_bytes, slots, rings, ring_records, groups, rank, pid, *offsets = _HEADER.unpack_from(
            self._map
        )
        self.layout = BoxLayout(slots, rings, ring_records, groups)
        if magic != MAGIC or record_bytes != RECORD_BYTES:
            raise FormatError(f"{path} is not a black box (wrong magic bytes). Remove it from the spool.")
        if version > VERSION:
            raise FormatError(f"{path} has version {version}, newer than {VERSION}: upgrade megascope to read it.")
        if self.layout.total_bytes != offsets[3] or size < offsets[3]:
            raise FormatError(f"{path} is cut short: {size} of {offsets[3]} bytes are there. It cannot be read.")
        self.rank, self.pid = int(rank), int(pid)
        self._words = np.frombuffer(self._map, "<i8", HEADER_BYTES // 8)
        self._slots = np.frombuffer(self._map, RECORD, slots, HEADER_BYTES)
        self._rings = np.frombuffer(self._map, RECORD, rings * ring_records, self.layout.rings_offset).reshape(
            rings, ring_records
        )
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
    def metadata_lost(self) -> int:
        """Metadata lines that could not be written."""
        return int(self._words[WORD_METADATA_LOST])

    def head(self, ring: int) -> int:
        """Number of records ever written to a ring."""
        return int(self._words[WORD_HEADS + ring])

    def read_ring(self, ring: int, tail: int) -> RingRead:
        """Copy what was completed in a ring since ``tail`` (a count of records, as the last read returned it)."""
        capacity = self.layout.ring_records
        head = self.head(ring)
        first = max(tail, head - capacity)
        places = np.arange(first, head) % capacity
        records = self._rings[ring][places]
        # What the writer overwrote while the copy was made is lost; the record under its pen is torn.
        safe_from = max(first, self.head(ring) - capacity + 1) if self.head(ring) > head else first
        records = records[safe_from - first :]
        whole = (records["serial"] == records["serial_end"]) & (records["serial"] == records["serial_begin"])
        records = records[whole & (records["serial"] != 0)]
        return RingRead(records, head, head - tail - len(records))

    def slots(self) -> np.ndarray[Any, Any]:
        """Copy of all open slots (dtype RECORD), the earliest begun first.

        ``ended`` is 1 where the operation is done but its rank has not waited for it yet: start and duration hold.
        """
        copy = self._slots.copy()
        whole: np.ndarray[Any, Any] = copy[(copy["serial"] != 0) & (copy["serial"] == copy["serial_begin"])]
        whole.sort(order="serial")
        return whole

    def progress(self) -> np.ndarray[Any, Any]:
        """Copy of the last sequence numbers (dtype PROGRESS) by group index; 0 where nothing was issued."""
        return self._progress.copy()

    def close(self) -> None:
        """Drop the views and unmap."""
        del self._words, self._slots, self._rings, self._progress
        self._map.close()
