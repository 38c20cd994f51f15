"""From completed records of black boxes to rows of ``events``: whole columns at a time, in the order of the table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...profiler.box.box import ABSENT_I16, ABSENT_I32, ABSENT_I64
from ...profiler.vocabulary import CLOCK_CODES, STATUS_CODES, Clock
from .rows import HOST_STREAM, MOST_INDEX, Identified, Names, Records

Array = npt.NDArray[Any]

DEVICE_TICK_NS = 256
"""Times of the device are rounded to this, so by at most 128 ns: CUDA gives its event times a resolution of about
0.5 us, and what lies below is noise that would fill a quarter of the store."""

_PIECE_RECORDS = 4096
"""Records lie 128 bytes apart: pieces that fit the cache are turned into columns several times faster."""

_DEVICE = CLOCK_CODES.index(Clock.DEVICE)
_CLOCKS, _STATUSES = [str(clock) for clock in CLOCK_CODES], [str(status) for status in STATUS_CODES]

_ABSENT: Mapping[str, int] = {
    "step": ABSENT_I64,
    "microbatch": ABSENT_I32,
    "chunk": ABSENT_I16,
    "duration_ns": ABSENT_I64,
    "self_ns": ABSENT_I64,
    "exposed_ns": ABSENT_I64,
    "sequence": ABSENT_I64,
    "peer": ABSENT_I32,
    "size_bytes": ABSENT_I64,
}
"""Columns that are taken over as they are, with the marker that stands for a missing value."""

_OTHERS: Mapping[str, Any] = {
    "segment": np.uint32,
    "parent": np.uint32,
    "group": np.uint32,
    "stream": np.uint16,
    "thread": np.int16,
    "start_ns": np.int64,
    "begun_ns": np.int64,
    "clock": np.uint8,
    "status": np.uint8,
}
_TYPES: Mapping[str, Any] = {
    name: np.int16 if absent == ABSENT_I16 else np.int32 if absent == ABSENT_I32 else np.int64
    for name, absent in _ABSENT.items()
} | dict(_OTHERS)

_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SpanArrays:
    """Spans of one rank as arrays [N], in the order in which they were written.

    ``columns`` has a key for each name in `_TYPES`. Identities are stable ones, times are UTC; what is missing is
    the smallest number of its type, also for ``parent`` and ``group``. ``stream`` counts in ``streams``.
    """

    rank: int
    columns: dict[str, Array]
    streams: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.columns["start_ns"])


def span_arrays(pieces: Sequence[Records], rank: int, clock_base_ns: int, names: Names) -> SpanArrays:
    """Turn completed records of one rank into columns.

    Times become UTC by adding ``clock_base_ns``; those of the device are rounded to its tick. A segment whose metadata
    was lost gets a name, which ``names`` then has.
    """
    columns = _gather(pieces)
    segments = np.minimum(columns["segment"], MOST_INDEX)
    names.complete(segments)
    for name, known, indices in (
        ("segment", names.segments, segments),
        ("parent", names.segments, columns["parent"]),
        ("group", names.groups, columns["group"]),
    ):
        columns[name] = _identities(indices, known)
    columns["start_ns"] += clock_base_ns
    columns["begun_ns"] += clock_base_ns
    _round_device_times(columns)
    return SpanArrays(rank, columns, _stream_labels(columns["stream"], names.streams))


def _gather(pieces: Sequence[Records]) -> dict[str, Array]:
    columns = {name: np.empty(sum(map(len, pieces)), kind) for name, kind in _TYPES.items()}
    place = 0
    for records in pieces:
        for first in range(0, len(records), _PIECE_RECORDS):
            piece = records[first : first + _PIECE_RECORDS]
            for name, column in columns.items():
                column[place : place + len(piece)] = piece[name]
            place += len(piece)
    return columns


def _identities(indices: Array, known: Mapping[int, Identified]) -> Array:
    """Stable identities of local indices, by a table whose last place stands for what is absent or unknown."""
    size = max(known, default=-1) + 1
    ids = np.full(size + 1, ABSENT_I64, np.int64)
    for index, entry in known.items():
        ids[index] = entry.id
    return ids[np.minimum(indices, size)]


def _round_device_times(columns: Mapping[str, Array]) -> None:
    on_device = columns["clock"] == _DEVICE
    if not on_device.any():
        return
    for name in ("start_ns", "duration_ns", "self_ns", "exposed_ns"):
        column = columns[name]
        rounded = (column + DEVICE_TICK_NS // 2) & -DEVICE_TICK_NS
        np.copyto(column, rounded, where=on_device & (column != ABSENT_I64))


def _stream_labels(indices: Array, names: Mapping[int, str]) -> tuple[str, ...]:
    highest = int(indices.max(initial=0))
    return tuple(names.get(index, HOST_STREAM if index == 0 else f"stream {index}") for index in range(highest + 1))


def event_rows(parts: Sequence[SpanArrays]) -> pa.Table:
    """Rows of ``events`` (without run and attempt), sorted by step, rank and start.

    A span timed by the device keeps the moment of its launch on the host as ``enqueue_ns``.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    places = _places(parts)
    ends = np.cumsum([len(part) for part in parts])
    slices = [places[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]

    def in_order(values: Iterable[Any], kind: Any) -> Array:
        column = np.empty(len(places), kind)
        for place, one in zip(slices, values, strict=True):
            column[place] = one
        return column

    def column(name: str) -> Array:
        return in_order((part.columns[name] for part in parts), parts[0].columns[name].dtype)

    labels, codes = _shared_streams(parts)
    clock = column("clock")
    arrays = {"rank": pa.array(in_order((part.rank for part in parts), np.int32))}
    arrays |= {name: _nullable(column(name), absent) for name, absent in _ABSENT.items()}
    arrays |= {name: _nullable(column(name), ABSENT_I64) for name in ("segment", "parent", "group")}
    arrays |= {name: pa.array(column(name)) for name in ("thread", "start_ns")}
    arrays |= {
        "enqueue_ns": _with_nulls(column("begun_ns"), clock == _DEVICE),
        "clock": _coded(clock, _CLOCKS),
        "status": _coded(column("status"), _STATUSES),
        "stream": _coded(in_order(codes, np.int32), labels),
    }
    return pa.table(arrays)


def _places(parts: Sequence[SpanArrays]) -> npt.NDArray[np.intp]:
    """For every span of the parts, which ascend by rank, its place in the table. Spans without a step come last.

    Each rank's spans are nearly in order, and steps are few: a sort of short keys puts the ranks' steps in order.
    """
    starts = np.concatenate([part.columns["start_ns"] for part in parts])
    steps = np.concatenate([part.columns["step"] for part in parts])
    steps[steps == ABSENT_I64] = _LAST
    ranks, owners = np.unique([part.rank for part in parts], return_inverse=True)
    owners = np.repeat(owners, [len(part) for part in parts])
    bounds = np.searchsorted(owners, np.arange(len(ranks) + 1))
    order = np.concatenate([np.argsort(starts[a:b], kind="stable") + a for a, b in itertools.pairwise(bounds)])
    key = _dense(steps) * len(ranks) + owners
    short = key.astype(np.uint16 if key.max(initial=0) < 2**16 else np.int64)
    order = order[np.argsort(short[order], kind="stable")]
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def _dense(steps: Array) -> Array:
    """Numbers from 0 in the order of the steps; gaps go only where there are large ones."""
    if not len(steps):
        return steps
    first = steps.min()
    is_dense = int(steps.max()) - int(first) < 2**31
    places: Array = steps - first if is_dense else np.unique(steps, return_inverse=True)[1]
    return places


def _shared_streams(parts: Sequence[SpanArrays]) -> tuple[list[str], list[Array]]:
    """All names of streams, and for every span of each part the place of its stream's name among them."""
    labels = {name: code for code, name in enumerate(dict.fromkeys(name for part in parts for name in part.streams))}
    tables = (np.array([labels[name] for name in part.streams], np.int32) for part in parts)
    return list(labels), [table[part.columns["stream"]] for part, table in zip(parts, tables, strict=True)]


def _nullable(values: Array, absent: int) -> pa.Array:
    return _with_nulls(values, values != absent)


def _with_nulls(values: Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """An Arrow array over the memory of ``values``, with a bitmap only where one is needed."""
    count = int(np.count_nonzero(valid))
    if count == len(values):
        return pa.array(values)
    kind = pa.from_numpy_dtype(values.dtype)
    if count == 0:
        return pa.nulls(len(values), kind)
    bitmap = np.packbits(valid, bitorder="little")
    buffers = [pa.py_buffer(bitmap), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers, len(values) - count)


def _coded(codes: Array, names: list[str]) -> pa.DictionaryArray:
    """Small codes as a dictionary column. Raises IndexError for a code that this version does not know."""
    if len(codes) and int(codes.max()) >= len(names):
        raise IndexError(f"code {int(codes.max())} is none of {', '.join(names)}")
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))
