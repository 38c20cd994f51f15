"""Rollups of all ranks as the spans come in: sums and log-histograms of dense arrays, never a row for each span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...collectors.rollups.histogram import bins_of
from ...collectors.rollups.rollup import to_arrow, window_rows
from ...collectors.rollups.windows import WINDOW_STEPS, Summary, Windows
from .effects import FloatArray, IntArray
from .job import SimulatedJob
from .spans import SEGMENTS, Spans, shape_of

Bins = npt.NDArray[np.int16]
Rows = Callable[[pa.Table], None]


@dataclass(slots=True)
class _Times:
    """Durations of one segment, added up over its spans in a step, [T, S, G], and the bin of every one."""

    total: FloatArray
    least: FloatArray
    largest: FloatArray
    bins: list[tuple[int, Bins]] = field(default_factory=list)

    @classmethod
    def of(cls, shape: tuple[int, int, int]) -> _Times:
        return cls(np.zeros(shape), np.full(shape, np.inf), np.full(shape, -np.inf))

    def add(self, values: FloatArray, weight: int) -> None:
        """Add values, each of which stands for ``weight`` spans."""
        self.total += values if weight == 1 else values * weight
        np.minimum(self.least, values, out=self.least)
        np.maximum(self.largest, values, out=self.largest)
        self.bins.append((weight, bins_of(values).astype(np.int16)))


@dataclass(slots=True)
class _Cells:
    """What is known so far of one segment on one stage and block of replicas."""

    spans: Spans
    duration: _Times
    own: _Times | None
    exposed: FloatArray
    count: int = 0
    exposed_count: int = 0


class RollupSink:
    """Turns spans into rows of ``rank_windows`` and hands them out, window by window of the piece's steps.

    Windows that a piece of steps does not fill come in parts, which add up.
    """

    def __init__(self, job: SimulatedJob, rows: Rows) -> None:
        self._job, self._rows = job, rows
        self._cells: dict[tuple[str, int, int, int, int], _Cells] = {}

    def add(self, spans: Spans) -> None:
        """Take spans of one segment."""
        if spans.present is not None:
            self._rows(self._sparse_rows(spans))
            return
        shape = shape_of(spans, self._job.grid.width)
        key = (spans.segment, spans.stage, spans.replicas.start, int(spans.steps[0]), len(spans.steps))
        cells = self._cells.get(key)
        if cells is None:
            own = None if spans.own is None else _Times.of(shape)
            cells = self._cells[key] = _Cells(spans, _Times.of(shape), own, np.zeros(shape))
        cells.count += spans.repeat
        cells.duration.add(np.broadcast_to(spans.duration, shape), spans.repeat)
        if cells.own is not None:
            assert spans.own is not None
            cells.own.add(np.broadcast_to(spans.own, shape), spans.repeat)
        if spans.exposed is not None:
            cells.exposed += spans.exposed if spans.repeat == 1 else spans.exposed * spans.repeat
            cells.exposed_count += spans.repeat

    def end_block(self) -> None:
        """Hand out the rows of what has been added."""
        for cells in self._cells.values():
            for windows in self._windows(cells):
                self._rows(to_arrow(windows))
        self._cells = {}

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """Nothing is left by then."""

    def _windows(self, cells: _Cells) -> list[Windows]:
        """Rows of all lengths of windows, each made of the one before."""
        spans, job = cells.spans, self._job
        ranks = job.grid.rank[spans.stage][:, spans.replicas]
        first, starts = _runs(spans.steps, WINDOW_STEPS[0])
        summaries = {"duration": _Grouped.of(cells.duration, cells.count, starts)}
        summaries["self"] = summaries["duration"]
        if cells.own is not None:
            summaries["self"] = _Grouped.of(cells.own, cells.count, starts)
        exposed = np.add.reduceat(cells.exposed, starts, axis=1)
        exposed_counts = np.diff(np.append(starts, len(spans.steps))) * cells.exposed_count
        result = []
        for level, length in enumerate(WINDOW_STEPS):
            if level:
                first, starts = _runs(first, length)
                own_is_duration = summaries["self"] is summaries["duration"]
                summaries["duration"] = summaries["duration"].grouped(starts)
                summaries["self"] = summaries["duration"] if own_is_duration else summaries["self"].grouped(starts)
                exposed = np.add.reduceat(exposed, starts, axis=1)
                exposed_counts = np.add.reduceat(exposed_counts, starts)
            shape = (ranks.shape[0], len(first), ranks.shape[1])
            segment = SEGMENTS[spans.segment].identity(spans.segment)
            result.append(
                Windows(
                    np.broadcast_to(ranks[:, np.newaxis], shape).reshape(-1),
                    np.full(shape, segment).reshape(-1),
                    np.full(shape, length).reshape(-1),
                    np.broadcast_to(first[:, np.newaxis], shape).reshape(-1),
                    {name: one.summary() for name, one in summaries.items()},
                    np.broadcast_to(exposed_counts[:, np.newaxis], shape).reshape(-1),
                    exposed.reshape(-1).astype(np.int64),
                )
            )
        return result

    def _sparse_rows(self, spans: Spans) -> pa.Table:
        """Rows of spans that only some ranks have in some steps."""
        assert spans.present is not None
        shape = shape_of(spans, self._job.grid.width)
        there = np.broadcast_to(spans.present, shape)
        ranks = self._job.grid.rank[spans.stage][:, np.newaxis, spans.replicas]
        duration = np.broadcast_to(spans.duration, shape)[there].astype(np.int64)
        return window_rows(
            np.broadcast_to(ranks, shape)[there],
            np.full(len(duration), SEGMENTS[spans.segment].identity(spans.segment)),
            np.broadcast_to(spans.steps[:, np.newaxis], shape)[there],
            duration,
            duration,
        )


def _runs(steps: IntArray, length: int) -> tuple[IntArray, IntArray]:
    """First steps of the windows that ascending steps lie in, and where each window's steps begin."""
    windows = steps // length * length
    starts = np.flatnonzero(np.append(True, windows[1:] != windows[:-1]))
    return windows[starts], starts


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Times over windows: [T, W, G], and histograms [T, W, G, bins] whose first bin is ``low``."""

    count: IntArray
    total: FloatArray
    least: FloatArray
    largest: FloatArray
    histogram: IntArray
    low: int

    @classmethod
    def of(cls, times: _Times, count: int, starts: IntArray) -> _Grouped:
        """Group steps; each step has ``count`` spans."""
        width, steps, replicas = times.total.shape
        shape = (width, len(starts), replicas)
        lengths = np.diff(np.append(starts, steps))
        return cls(
            np.broadcast_to((lengths * count)[:, np.newaxis], shape),
            np.add.reduceat(times.total, starts, axis=1),
            np.minimum.reduceat(times.least, starts, axis=1),
            np.maximum.reduceat(times.largest, starts, axis=1),
            *_histograms(times.bins, shape, lengths),
        )

    def grouped(self, starts: IntArray) -> _Grouped:
        """The same over longer windows."""
        return _Grouped(
            np.add.reduceat(self.count, starts, axis=1),
            np.add.reduceat(self.total, starts, axis=1),
            np.minimum.reduceat(self.least, starts, axis=1),
            np.maximum.reduceat(self.largest, starts, axis=1),
            np.add.reduceat(self.histogram, starts, axis=1)
            if len(starts) < self.histogram.shape[1]
            else self.histogram,
            self.low,
        )

    def summary(self) -> Summary:
        """As rows, [T * W * G]."""
        histogram = self.histogram.reshape(-1, self.histogram.shape[-1])
        filled = histogram != 0
        places = np.flatnonzero(filled)
        return Summary(
            self.count.reshape(-1).astype(np.int64),
            self.total.reshape(-1).astype(np.int64),
            self.least.reshape(-1).astype(np.int64),
            self.largest.reshape(-1).astype(np.int64),
            np.append(0, np.cumsum(np.count_nonzero(filled, axis=1))),
            (places % histogram.shape[1] + self.low).astype(np.int32),
            histogram.reshape(-1)[places],
        )


def _histograms(
    bins: Sequence[tuple[int, Bins]], shape: tuple[int, int, int], lengths: IntArray
) -> tuple[IntArray, int]:
    """Histograms [T, W, G, bins] of arrays of bins, each [T, S, G] with a weight, and the number of the first bin."""
    low = min(int(one.min()) for _, one in bins)
    size = max(int(one.max()) for _, one in bins) - low + 1
    rows = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    base = np.repeat(rows, lengths, axis=1) * size - low
    result = np.zeros(int(np.prod(shape)) * size, np.int64)
    for weight in {weight for weight, _ in bins}:
        keys = np.stack([one for found, one in bins if found == weight]) + base
        result += weight * np.bincount(keys.reshape(-1), minlength=len(result))
    return result.reshape(*shape, size), low
