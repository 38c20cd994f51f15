"""The black box's binary format, version 2: places of the header, of a record's fields, and how they are packed.

A record has 128 bytes. A span that was timed by the host on its own thread needs only the first half (``extended`` is
0, the second half says nothing); an operation has peer, group, size and the like in the second half. ``begun_ns`` is
the generation: it stands at the beginning and again behind the first fields (and at the end of an extended record), so
that a torn copy is recognised. ``lap`` counts how often the ring had been filled when the record was written, from 1;
it is 0 while the record is not complete, and is written last.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np

MAGIC = b"MEGABOX\0"
VERSION = 2
HEADER_BYTES = 4096
RECORD_BYTES = 128
PROGRESS_BYTES = 16
MAX_RINGS = 64

ABSENT_I64 = -(2**63)
ABSENT_I32 = -(2**31)
ABSENT_I16 = -(2**15)
ABSENT_INDEX = 2**32 - 1
"""Markers for a missing value in the box; the agent turns them into NULL."""

UNKNOWN_THREAD = 2**16 - 1
"""Thread of a span in flight that does not say which thread it is on."""

UNKNOWN_FLAG = 255
"""``waiting`` in a slot of version 1, which did not say."""

STATE_OPEN, STATE_CLOSED = 1, 2

# Positions of the live 8-byte words in the header, counted in words. Heads are of version 1 only.
WORD_STATE, WORD_STEP, WORD_STEP_START, WORD_UNSLOTTED, WORD_METADATA_LOST, WORD_LEAKED, WORD_HEADS = (
    32, 33, 34, 35, 36, 37, 64,
)  # fmt: skip

HEADER = struct.Struct("<8sIIIIIIqqQQQQ")


def _packer(layout: str) -> struct.Struct:
    """Little-endian without gaps. ``n`` is the int64 that CPython packs fastest, but it knows it natively only."""
    if sys.byteorder == "little" and struct.calcsize("@n") == 8:
        return struct.Struct("@" + layout.replace("q", "n"))
    return struct.Struct("<" + layout)


LEAF = _packer("qqIIihxxq24x")
"""Beginning of a plain span in its ring: begun_ns, step, segment, parent, microbatch, chunk, begun_ns again. What
follows is cleared, so that it counts as open."""

LEAF_END = _packer("qq")
"""Its end: duration_ns, lap."""

SEGMENT = _packer("I")

HEAD = _packer("qqIIihBBq")
"""The same beginning with ``extended`` and ``status`` before the generation's second copy."""

PLAIN = _packer("40sqqq")
"""A whole plain record: head, child_ns, duration_ns, lap."""

FACTS = _packer("qqIiHHBBBx")
"""What an operation adds: size_bytes, sequence, group, peer, stream, thread, clock, ended, waiting."""

EXTENDED = _packer("40sqqqqq32sq8x")
"""A whole extended record: head, child_ns, duration_ns, lap, start_ns, exposed_ns, facts, begun_ns once more."""

_FIELDS = (
    ("begun_ns", "<i8", 0),
    ("step", "<i8", 8),
    ("segment", "<u4", 16),
    ("parent", "<u4", 20),
    ("microbatch", "<i4", 24),
    ("chunk", "<i2", 28),
    ("extended", "u1", 30),
    ("status", "u1", 31),
    ("begun_again", "<i8", 32),
    ("child_ns", "<i8", 40),
    ("duration_ns", "<i8", 48),
    ("lap", "<u8", 56),
    ("start_ns", "<i8", 64),
    ("exposed_ns", "<i8", 72),
    ("size_bytes", "<i8", 80),
    ("sequence", "<i8", 88),
    ("group", "<u4", 96),
    ("peer", "<i4", 100),
    ("stream", "<u2", 104),
    ("thread", "<u2", 106),
    ("clock", "u1", 108),
    ("ended", "u1", 109),
    ("waiting", "u1", 110),
    ("begun_end", "<i8", 112),
)


def _dtype(**renamed: str) -> np.dtype[Any]:
    names, formats, offsets = zip(*_FIELDS, strict=True)
    wanted = [renamed.get(name, name) for name in names]
    return np.dtype({"names": wanted, "formats": list(formats), "offsets": list(offsets), "itemsize": RECORD_BYTES})


RAW = _dtype()
"""A record as it lies in the file."""

RECORD = _dtype(child_ns="self_ns")
"""A record as the reader returns it: self time for time of children, and every field filled."""

_OFFSETS = {name: offset for name, _, offset in _FIELDS}
HEAD_BYTES = HEAD.size
SEGMENT_OFFSET, STATUS_OFFSET, DURATION_OFFSET = _OFFSETS["segment"], _OFFSETS["status"], _OFFSETS["duration_ns"]
LAP_OFFSET, ENDED_OFFSET, WAITING_OFFSET = _OFFSETS["lap"], _OFFSETS["ended"], _OFFSETS["waiting"]
"""Places in a record. In a slot, ``ended`` is 1 once the operation is done and its rank has not waited for it yet, and
``waiting`` once the rank waits for it."""

PROGRESS = np.dtype([("issued", "<i8"), ("completed", "<i8")])

assert PLAIN.size == LEAF.size == RECORD_BYTES // 2
assert EXTENDED.size == RECORD_BYTES

NO_FACTS = (ABSENT_I64, ABSENT_I64, ABSENT_INDEX, ABSENT_I32, 0)
"""Size, sequence, group, peer and stream of a span that is no operation."""


def finished(raw: np.ndarray[Any, Any], thread: int) -> np.ndarray[Any, Any]:
    """Records as they lie in the file (dtype RAW, a copy; changed in place), completed to dtype RECORD.

    ``thread`` is that of the plain ones. Self time is absent where the duration is.
    """
    records: np.ndarray[Any, Any] = raw.view(RECORD)
    plain = np.flatnonzero(raw["extended"] == 0)
    if len(plain):
        half = np.zeros(8, "<i8")
        half[1] = ABSENT_I64
        half[2:6] = np.frombuffer(FACTS.pack(*NO_FACTS, thread, 0, 0, 0), "<i8")
        records.view("<i8").reshape(-1, 16)[plain, 8:] = half
        records["start_ns"][plain] = records["begun_ns"][plain]
    duration = records["duration_ns"]
    own = duration - raw["child_ns"]
    own[duration == ABSENT_I64] = ABSENT_I64
    records["self_ns"] = own
    return records


def as_written(records: np.ndarray[Any, Any], first: int, capacity: int) -> np.ndarray[Any, Any]:
    """Records (dtype RECORD) as a ring of so many places would hold them (dtype RAW), the first one being its
    ``first``: what `finished` does, backwards."""
    raw = records.copy().view(RAW)
    raw["extended"] = 1
    raw["begun_again"] = raw["begun_end"] = raw["begun_ns"]
    raw["child_ns"] = np.where(raw["duration_ns"] == ABSENT_I64, 0, raw["duration_ns"] - records["self_ns"])
    raw["lap"] = np.arange(first, first + len(raw)) // capacity + 1
    return raw


def is_whole(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which records (dtype RAW) are no torn copies."""
    begun = raw["begun_ns"]
    whole: np.ndarray[Any, Any] = (begun == raw["begun_again"]) & (begun != 0)
    whole &= (raw["extended"] == 0) | (begun == raw["begun_end"])
    return whole
