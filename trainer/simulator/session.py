"""One simulation: the engine runs over all steps, then over those whose spans are wanted; rows go to the writer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...collectors.tables.schemas import RANKS_PER_BLOCK
from . import tables
from .background import Background
from .clocks import HostClocks
from .effects import FloatArray, IntArray
from .engine import Engine, pieces, room_for_steps
from .events import EventSink
from .groups import Groups
from .hangs.ahead import IN_STEP, Lead
from .job import SimulatedJob
from .rollups import RollupSink
from .spans import Sink, Spans, shape_of

Progress = Callable[[int, int], None]

EVENTS_AT_ONCE = 2_000_000
"""Spans that are collected before they are written: about 300 MB."""

WINDOW_BYTES = 256 * 2**20
"""Rollups that are collected before they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What of a job is written. ``span_ranks`` None: all; ``span_steps``: first and last, None for all.

    ``heartbeat_s`` None: ten over the whole run; 0: none. ``clock_offsets``: write the truth about clocks as if it had
    been measured. ``leaves_out``: segments that run and that nobody recorded, neither in spans nor in rollups.
    """

    windows: bool = True
    steps: bool = True
    span_ranks: tuple[int, ...] | None = ()
    span_steps: tuple[int, int] | None = None
    heartbeat_s: float | None = None
    clock_offsets: bool = False
    leaves_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came out. ``lengths_ns`` [steps]: from each synchronisation to the next; ``moments_ns`` [steps + 1]: theirs,

    on the true clock. ``spans`` is what the job ran, ``written_spans`` what of it lies in ``events``.
    """

    job: SimulatedJob
    lengths_ns: IntArray
    moments_ns: IntArray
    spans: int
    written_spans: int
    window_rows: int


class Session:
    """One simulation: first all steps without spans, which tells when each was; then those whose spans are wanted."""

    def __init__(
        self,
        job: SimulatedJob,
        recording: Recording,
        background: Background,
        progress: Progress | None,
        lead: Lead = IN_STEP,
    ) -> None:
        self.job, self.recording, self._background = job, recording, background
        self._progress, self._lead = progress, lead
        self.groups = Groups(job)
        self.moments_ns: IntArray = np.array([job.start_ns], np.int64)
        self._begins: tuple[IntArray, FloatArray, FloatArray] | None = None
        self.step_begin_ns: IntArray = np.full(job.world_size, job.start_ns)
        self._windows: dict[int, list[pa.Table]] = {}
        self._window_bytes = self._window_rows = self._spans = self._written_spans = 0
        self._steps = self._done = self._total = 0

    def simulate(self, steps: int) -> None:
        """Simulate the first ``steps`` steps."""
        self._steps = steps
        sinks: list[Sink] = [
            *([self._recorded(RollupSink(self.job, self._take_windows))] if self.recording.windows else []),
            _Notes(self),
        ]
        wanted = self._wanted_steps()
        engine = Engine(self.job, sinks, steps=steps, on_block=self._advance)
        self._total = (steps + len(wanted)) * len(list(engine.blocks()))
        for piece in pieces(self.job):
            index = piece[piece < steps]
            if len(index):
                lengths = engine.run(index).astype(np.int64)
                self.moments_ns = np.concatenate([self.moments_ns, self.moments_ns[-1] + np.cumsum(lengths)])
                self._write_steps()
        self._write_windows()
        if len(wanted):
            self._simulate_spans(wanted)

    def result(self) -> Simulated:
        """What came out."""
        lengths, spans = np.diff(self.moments_ns), self._spans
        return Simulated(self.job, lengths, self.moments_ns, spans, self._written_spans, self._window_rows)

    def write_heartbeats(self) -> None:
        """Heartbeats of all ranks."""
        if self.recording.heartbeat_s == 0:
            return
        for moment in tables.heartbeat_moments(self.moments_ns, self.recording.heartbeat_s).tolist():
            for rank, rows in tables.heartbeat_rows(self.job, self.groups, moment, self.moments_ns):
                self._background.write("heartbeats", rows, rank=rank)

    # -- steps and windows --------------------------------------------------------------------------------------

    def count_spans(self, spans: int) -> None:
        """Count what the job ran."""
        self._spans += spans

    def note_ends(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """When the steps of a piece began and ended."""
        self._begins = index, begin, end

    def _write_steps(self) -> None:
        assert self._begins is not None
        index, begin, end = self._begins
        grid = self.job.grid
        last = end[grid.stage, grid.tp, -1, grid.replica].astype(np.int64)
        clocks = HostClocks.of(self.job)
        self.step_begin_ns = clocks.recorded_ns(self.moments_ns[index[-1] + 1] + last, grid.host)
        if self.recording.steps:
            for rank, rows in tables.step_rows(self.job, index, begin, end, self.moments_ns):
                self._background.write("steps", rows, rank=rank)

    def _take_windows(self, rows: pa.Table) -> None:
        self._window_rows += rows.num_rows
        self._window_bytes += rows.nbytes
        blocks = rows["rank"].to_numpy() // RANKS_PER_BLOCK
        found = np.unique(blocks)
        for block in found.tolist():
            part = rows if len(found) == 1 else rows.filter(pa.array(blocks == block))
            self._windows.setdefault(block, []).append(part)
        if self._window_bytes >= WINDOW_BYTES:
            self._write_windows()

    def _write_windows(self) -> None:
        for block, parts in self._windows.items():
            self._background.write("rank_windows", pa.concat_tables(parts), rank=block * RANKS_PER_BLOCK)
        self._windows, self._window_bytes = {}, 0

    def _advance(self, steps: int) -> None:
        self._done = min(self._done + steps, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)

    # -- spans --------------------------------------------------------------------------------------------------

    def _wanted_steps(self) -> IntArray:
        """Steps whose spans are wanted, counted from 0."""
        if self.recording.span_ranks == () or self._steps < 1:
            return np.zeros(0, np.int64)
        first, last = self.recording.span_steps or (self.job.first_step, self.job.last_step)
        return np.arange(first - self.job.first_step, min(last - self.job.first_step + 1, self._steps))

    def _simulate_spans(self, wanted: IntArray) -> None:
        job = self.job
        ranks = np.arange(job.world_size)
        if self.recording.span_ranks is not None:
            ranks = np.array(sorted(set(self.recording.span_ranks)), np.int64)
        per_step = sum(
            int((job.grid.stage[ranks] == stage).sum()) * tables.spans_per_step(job, stage)
            for stage in range(job.grid.stages)
        )
        at_once = int(np.clip(min(EVENTS_AT_ONCE // max(per_step, 1), room_for_steps(job) - 1), 1, 99))
        sink = EventSink(job, ranks, self.moments_ns, self.groups, self._take_spans, self._lead)
        engine = Engine(job, [self._recorded(sink)], steps=self._steps, on_block=self._advance)
        for first in range(0, len(wanted), at_once):
            part = wanted[first : first + at_once]
            sink.steps = part + job.first_step
            # One step more: an all-gather is seen to its end in the step after its own.
            engine.run(np.arange(part[0], min(part[-1] + 2, self._steps)))
        self._written_spans = sink.count

    def _recorded(self, sink: Sink) -> Sink:
        return _Recorded(sink, self.recording.leaves_out) if self.recording.leaves_out else sink

    def _take_spans(self, rows: pa.Table, rank: int) -> None:
        self._background.write("events", rows, rank=rank)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A sink that hears nothing of the segments that are left out."""

    sink: Sink
    leaves_out: frozenset[str]

    def add(self, spans: Spans) -> None:
        """Hand on what is recorded."""
        if spans.segment not in self.leaves_out:
            self.sink.add(spans)

    def end_block(self) -> None:
        """Hand on."""
        self.sink.end_block()

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """Hand on."""
        self.sink.end_piece(index, begin, end)


class _Notes:
    """A sink that counts spans, and notes when steps began and ended."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, spans: Spans) -> None:
        """Count them."""
        shape = shape_of(spans, self._session.job.grid.width)
        there = math.prod(shape) if spans.present is None else np.count_nonzero(np.broadcast_to(spans.present, shape))
        self._session.count_spans(int(there) * spans.repeat)

    def end_block(self) -> None:
        """Blocks are for others."""

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """Note them."""
        self._session.note_ends(index, begin, end)
