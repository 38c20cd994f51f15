"""Spans of chosen ranks and steps as rows of ``events``, in the order of step, rank and start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...collectors.tables.schemas import RANKS_PER_BLOCK
from ...profiler.vocabulary import Clock, Status
from .clocks import HostClocks
from .effects import BoolArray, FloatArray, IntArray
from .groups import Groups
from .hangs.ahead import IN_STEP, Lead
from .job import SimulatedJob
from .launches import enqueued
from .spans import SEGMENTS, Spans, shape_of

Rows = Callable[[pa.Table, int], None]
"""Takes rows of ``events`` and a rank of the block that they belong to."""

ABSENT = -1

Slot = tuple[str, int | None, int | None, int]
"""Segment, chunk, micro-batch, and place in the group's numbering: what tells spans of a rank and step apart."""


@dataclass(slots=True)
class _Column:
    """The spans of one slot: times [repeat, n, S] in ns (exposed: `ABSENT` for none), and which of them are there."""

    spans: Spans
    start: IntArray
    duration: IntArray
    own: IntArray
    exposed: IntArray
    present: BoolArray


@dataclass(slots=True)
class _Chosen:
    """Chosen ranks of one stage and block of 512: ``rank``, ``tp`` and ``replica`` [n], and their spans by slot."""

    rank: IntArray
    tp: IntArray
    replica: IntArray
    columns: dict[Slot, _Column] = field(default_factory=dict)


class EventSink:
    """Collects the chosen spans of a few steps and hands them out as rows.

    ``moments_ns`` [steps + 1]: true moment of every synchronisation, known from a run without this sink. ``lead``: how
    far hosts are ahead of their devices; where they are, rows tell when the work was issued.
    """

    def __init__(
        self, job: SimulatedJob, ranks: IntArray, moments_ns: IntArray, groups: Groups, rows: Rows, lead: Lead = IN_STEP
    ) -> None:
        self._job, self._groups, self._rows, self._lead = job, groups, rows, lead
        self._clocks = HostClocks.of(job)
        self._moments_ns = moments_ns
        grid = job.grid
        self._chosen: dict[int, list[_Chosen]] = {}
        for block in np.unique(ranks // RANKS_PER_BLOCK):
            in_block = ranks[ranks // RANKS_PER_BLOCK == block]
            for stage in np.unique(grid.stage[in_block]):
                own = in_block[grid.stage[in_block] == stage]
                self._chosen.setdefault(int(stage), []).append(_Chosen(own, grid.tp[own], grid.replica[own]))
        self.steps: IntArray = np.zeros(0, np.int64)
        self.count = 0

    def add(self, spans: Spans) -> None:
        """Take spans of one segment: those of chosen ranks, and of ``steps``."""
        columns = np.flatnonzero(np.isin(spans.steps, self.steps))
        if not len(columns):
            return
        for chosen in self._chosen.get(spans.stage, ()):
            inside = (chosen.replica >= spans.replicas.start) & (chosen.replica < spans.replicas.stop)
            rows = np.flatnonzero(inside)
            if len(rows):
                self._take(chosen, spans, rows, columns)

    def _take(self, chosen: _Chosen, spans: Spans, rows: IntArray, columns: IntArray) -> None:
        shape = shape_of(spans, self._job.grid.width)
        where: Any = (slice(None), *np.ix_(rows, np.searchsorted(self.steps, spans.steps[columns])))
        tp = chosen.tp[rows][:, np.newaxis]
        replica = chosen.replica[rows][:, np.newaxis] - spans.replicas.start

        def pick(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            picked: npt.NDArray[Any] = np.broadcast_to(values, shape)[tp, columns[np.newaxis], replica]
            return picked

        number = 0 if spans.numbering is None else spans.numbering.place
        slot = (spans.segment, spans.chunk, spans.microbatch, number)
        column = chosen.columns.get(slot)
        if column is None:
            column = chosen.columns[slot] = self._column(spans, len(chosen.rank))
        start = self._moments_ns[spans.period[columns]] + pick(spans.start).astype(np.int64)
        duration = pick(spans.duration).astype(np.int64)
        repeats = np.arange(spans.repeat)[:, np.newaxis, np.newaxis]
        column.start[where] = start if spans.stride is None else start + repeats * pick(spans.stride).astype(np.int64)
        column.duration[where] = duration
        column.own[where] = duration if spans.own is None else pick(spans.own).astype(np.int64)
        if spans.exposed is not None:
            column.exposed[where] = pick(spans.exposed).astype(np.int64)
        column.present[where] = True if spans.present is None else pick(spans.present)

    def _column(self, spans: Spans, ranks: int) -> _Column:
        shape = (spans.repeat, ranks, len(self.steps))
        start, duration, own = (np.zeros(shape, np.int64) for _ in range(3))
        return _Column(spans, start, duration, own, np.full(shape, ABSENT, np.int64), np.zeros(shape, np.bool_))

    def end_block(self) -> None:
        """More may come."""

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """Hand out the rows."""
        for stage, parts in self._chosen.items():
            for chosen in parts:
                if chosen.columns:
                    rows = self._table(stage, chosen)
                    self.count += rows.num_rows
                    self._rows(rows, int(chosen.rank[0]))
                chosen.columns = {}

    # -- rows ---------------------------------------------------------------------------------------------------

    def _table(self, stage: int, chosen: _Chosen) -> pa.Table:
        """Rows of one stage's ranks: [S, n, slots] in the order of start within each step and rank."""
        columns = list(chosen.columns.values())

        def joined(name: str) -> npt.NDArray[Any]:
            return np.ascontiguousarray(np.concatenate([getattr(one, name) for one in columns]).transpose(2, 1, 0))

        start, present = joined("start"), joined("present")
        order = np.argsort(start, axis=2, kind="stable")
        steps, count, slots = start.shape
        lines = np.arange(steps * count).reshape(steps, count, 1)
        places = {
            "slot": order.reshape(-1),
            "row": np.broadcast_to(np.arange(count)[:, np.newaxis], start.shape).reshape(-1),
            "step": np.broadcast_to(self.steps[:, np.newaxis, np.newaxis], start.shape).reshape(-1),
            "at": (order + lines * slots).reshape(-1),
        }
        if not present.all():
            there = present.reshape(-1)[places["at"]]
            places = {name: values[there] for name, values in places.items()}
        duration = joined("duration")
        own, exposed = joined("own"), joined("exposed")
        issued = np.full_like(start, ABSENT)
        if self._lead.in_flight > 1:
            every = [(column.spans, repeat) for column in columns for repeat in range(column.spans.repeat)]
            issued = enqueued(self._job, stage, every, start, start + duration, present, self._lead)
        if not self._clocks.are_right:
            host = self._job.grid.host[chosen.rank][:, np.newaxis]
            duration = self._clocks.recorded_ns(start + duration, host)
            start = self._clocks.recorded_ns(start, host)
            issued = np.where(issued == ABSENT, ABSENT, self._clocks.recorded_ns(issued, host))
            duration -= start
            np.minimum(own, duration, out=own)
        at = places["at"]
        times = [values.reshape(-1)[at] for values in (start, duration, own, exposed, issued)]
        return self._arrow(stage, chosen, columns, places["slot"], places["row"], places["step"], times)

    def _arrow(
        self,
        stage: int,
        chosen: _Chosen,
        columns: list[_Column],
        slot: IntArray,
        row: IntArray,
        step: IntArray,
        times: list[IntArray],
    ) -> pa.Table:
        start, duration, own, exposed, issued = times
        fixed = _Fixed.of(columns)
        groups, peers = self._ends(stage, chosen, columns)
        pair = slot * len(chosen.rank) + row
        group, parent, per_step = groups.reshape(-1)[pair], fixed.parent[slot], fixed.per_step[slot]
        sequence = fixed.first[slot] + per_step * (step - self._job.first_step)
        return pa.table(
            {
                "rank": pa.array(chosen.rank.astype(np.int32)[row]),
                "step": pa.array(step),
                "microbatch": _nullable(fixed.microbatch[slot]),
                "chunk": _nullable(fixed.chunk[slot]),
                "segment": pa.array(fixed.segment[slot]),
                "stream": _named(fixed.stream[slot], fixed.streams),
                "thread": pa.array(np.zeros(len(slot), np.int16)),
                "parent": pa.array(parent, mask=parent == 0),
                "start_ns": pa.array(start),
                "duration_ns": pa.array(duration),
                "self_ns": pa.array(own),
                "exposed_ns": _nullable(exposed),
                "enqueue_ns": _nullable(np.where(fixed.clock[slot] == list(Clock).index(Clock.DEVICE), issued, ABSENT)),
                "clock": _named(fixed.clock[slot], [str(clock) for clock in Clock]),
                "group": pa.array(group, mask=group == 0),
                "sequence": pa.array(sequence, mask=per_step == 0),
                "peer": _nullable(peers.reshape(-1)[pair]),
                "size_bytes": _nullable(fixed.size_bytes[slot]),
                "status": _named(np.zeros(len(slot), np.int32), [str(Status.OK)]),
            }
        )

    def _ends(self, stage: int, chosen: _Chosen, columns: list[_Column]) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Group (0 for none) and peer (`ABSENT` for none) of every slot and rank, [slots, n]."""
        groups: list[IntArray] = []
        peers: list[npt.NDArray[np.int32]] = []
        for column in columns:
            spans, count = column.spans, len(chosen.rank)
            group, peer = np.zeros(count, np.int64), np.full(count, ABSENT, np.int32)
            if spans.group is not None:
                group = self._groups.identities(spans.group, stage, spans.ends)[chosen.tp, chosen.replica]
            if spans.peer is not None:
                peer = self._job.grid.rank[spans.peer, chosen.tp, chosen.replica].astype(np.int32)
            groups += [group] * spans.repeat
            peers += [peer] * spans.repeat
        return np.stack(groups), np.stack(peers)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What all spans of a slot share, [slots] each: `ABSENT` (for a parent 0) where there is none."""

    segment: IntArray
    parent: IntArray
    microbatch: npt.NDArray[np.int32]
    chunk: npt.NDArray[np.int16]
    stream: npt.NDArray[np.int32]
    clock: npt.NDArray[np.int32]
    first: IntArray
    per_step: IntArray
    size_bytes: IntArray
    streams: list[str]

    @classmethod
    def of(cls, columns: list[_Column]) -> _Fixed:
        streams = sorted({info.stream for info in SEGMENTS.values()})
        rows = [row for column in columns for row in cls._rows(column.spans, streams)]
        table = np.array(rows, np.int64).T
        segment, parent, microbatch, chunk, stream, clock, first, per_step, size_bytes = table
        return cls(
            segment, parent, microbatch.astype(np.int32), chunk.astype(np.int16), stream.astype(np.int32),
            clock.astype(np.int32), first, per_step, size_bytes, streams,
        )  # fmt: skip

    @staticmethod
    def _rows(spans: Spans, streams: list[str]) -> Iterator[tuple[int, ...]]:
        """The columns' values of each repetition."""
        info, numbering = SEGMENTS[spans.segment], spans.numbering
        for repeat in range(spans.repeat):
            yield (
                info.identity(spans.segment),
                0 if spans.parent is None else SEGMENTS[spans.parent].identity(spans.parent),
                ABSENT if spans.microbatch is None else spans.microbatch,
                ABSENT if spans.chunk is None else spans.chunk,
                streams.index(info.stream),
                list(Clock).index(info.clock),
                0 if numbering is None else numbering.place + 1 + repeat * numbering.stride,
                0 if numbering is None else numbering.per_step,
                ABSENT if spans.size_bytes is None else spans.size_bytes,
            )


def _nullable(values: npt.NDArray[np.generic]) -> pa.Array:
    return pa.array(values, mask=values == ABSENT)


def _named(codes: npt.NDArray[np.int32], names: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))
