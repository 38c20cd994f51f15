"""The engine: walks the trainer's action lists with a clock, for all ranks and many steps at once.

All ranks meet once a step, in the all-reduce of the gradient norm. Between two such synchronisations time is counted
from the first: so all steps of a piece are computed together, as arrays over [tp, step, replica], one action after
another in an order that the schedule allows. Replicas meet only at the end of the step, so blocks of them are computed
one by one, small enough for the processor's cache. Between two synchronisations lie: optimizer and all-gather of the
step before, data, forwards and backwards, reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..schedule import walk
from .conditions import Conditions
from .draws import Purpose
from .effects import FloatArray, IntArray
from .job import SimulatedJob
from .pipeline import Begin, Block, Finish
from .spans import Numbering, Sink, Spans

BLOCK_RANKS = 256
"""Ranks of a stage in a block, at most; with 100 steps, an array takes 200 KiB."""

BLOCK_ACTIONS = 400_000
"""Actions of all stages x ranks of a stage in a block, about: what is drawn for and kept of them bounds the memory."""

PIECE_ELEMENTS = 1 << 22
"""Ranks x steps of a piece, at most: an array takes 32 MiB."""


@dataclass(slots=True)
class Tail:
    """What follows the synchronisation that ends a step, counted from there, [P, T, S, G] each.

    ``begin``: the rank sees the synchronisation complete; ``optimizer``: end of the optimizer; ``end``: of the step,
    after a checkpoint; ``gathered``: by chunk, the end of the all-gather; empty without data parallelism.
    """

    begin: FloatArray
    optimizer: FloatArray
    end: FloatArray
    gathered: list[FloatArray]

    def part(self, steps: slice) -> Tail:
        """Some of the steps."""
        begin, optimizer, end = (one[:, :, steps] for one in (self.begin, self.optimizer, self.end))
        return Tail(begin, optimizer, end, [one[:, :, steps] for one in self.gathered])


class Engine:
    """Simulates steps of a job and hands their spans to sinks.

    ``steps``: the job ends after so many of its steps. ``on_block`` is called after every block of replicas, with the
    number of steps that it was computed for.
    """

    def __init__(
        self,
        job: SimulatedJob,
        sinks: Sequence[Sink],
        *,
        steps: int | None = None,
        on_block: Callable[[int], None] | None = None,
    ) -> None:
        self.job, self.sinks = job, sinks
        self._steps = job.steps if steps is None else steps
        self._on_block = on_block
        self._order = walk(job.schedule)

    def run(self, index: IntArray) -> FloatArray:
        """Simulate the steps ``index`` [S], consecutive and counted from 0.

        Returns their lengths [S] in ns: from one synchronisation to the next. The result for a step does not depend on
        the other steps that are asked for.
        """
        conditions = Conditions(self.job, index)
        tail = self._tail(Conditions(self.job, np.concatenate([index[:1] - 1, index])))
        before, after = tail.part(slice(None, -1)), tail.part(slice(1, None))
        finish = Finish.empty(self.job, len(index))
        for number, replicas in enumerate(self.blocks()):
            begin = Begin(before.end[..., replicas], [one[..., replicas] for one in before.gathered])
            block = Block(self.job, conditions, replicas, number, begin, self._emit)
            for stage, position in self._order:
                block.act(stage, position)
            block.close(finish)
            self._emit_gathers(before, replicas, index, block.gather_waits)
            for sink in self.sinks:
                sink.end_block()
            if self._on_block is not None:
                self._on_block(len(index))
        lengths = self._synchronise(conditions, finish)
        self._emit_tail(conditions, after)
        if index[-1] == self._steps - 1:
            for replicas in self.blocks():
                self._emit_gathers(after.part(slice(-1, None)), replicas, index[-1:] + 1, None)
        for sink in self.sinks:
            sink.end_block()
            sink.end_piece(index, before.end, after.end)
        return lengths

    def blocks(self) -> Iterator[slice]:
        """The replicas in blocks: always the same ones of a job, since random numbers are drawn block by block."""
        grid = self.job.grid
        ranks = min(BLOCK_RANKS, BLOCK_ACTIONS // len(self._order))
        size = max(1, ranks // grid.width)
        for first in range(0, grid.replicas, size):
            yield slice(first, min(first + size, grid.replicas))

    def _emit(self, spans: Spans) -> None:
        for sink in self.sinks:
            sink.add(spans)

    # -- the end of a step --------------------------------------------------------------------------------------

    def _tail(self, conditions: Conditions) -> Tail:
        """Tails of the steps; before the first step of the job all are ready at once."""
        grid, index = self.job.grid, conditions.index
        shape = (grid.stages, grid.width, len(index), grid.replicas)
        begin = np.zeros(shape)
        if self.job.world_size > 1:
            begin += conditions.completions_ns(Purpose.EXIT)
        optimizer = begin + np.rint(self.job.costs.optimizer_ns * conditions.work("optimizer"))
        end = optimizer + conditions.pauses_ns("checkpoint")
        gathered: list[FloatArray] = []
        reached: FloatArray = np.zeros((1, 1, 1, 1))
        for chunk in range(self.job.chunks if grid.dp_size > 1 else 0):
            start = np.maximum(conditions.slowest(optimizer), reached)
            reached = start + conditions.data_parallel_ns("dp_all_gather", chunk)
            gathered.append(reached + conditions.completions_ns(Purpose.GATHERED, chunk))
        for values in (begin, optimizer, end, *gathered):
            values[:, :, index < 0] = 0.0
        return Tail(begin, optimizer, end, gathered)

    def _synchronise(self, conditions: Conditions, finish: Finish) -> FloatArray:
        """Reduce the gradients, then all-reduce their norm: lengths [S] from the synchronisation before to this one."""
        grid = self.job.grid
        arrival = finish.done
        if grid.dp_size > 1:
            arrival = self._reduce(conditions, finish, arrival)
        lengths: FloatArray = arrival.max(axis=(0, 1, 3))
        if self.job.world_size == 1:
            return lengths
        lengths = lengths + conditions.norm_ns()
        exits = np.broadcast_to(conditions.completions_ns(Purpose.EXIT), arrival.shape)
        for stage in range(grid.stages):
            wait = lengths[:, np.newaxis] + exits[stage] - arrival[stage]
            for part in self.blocks():
                self._emit(
                    Spans(
                        segment="world_all_reduce", stage=stage, replicas=part,
                        steps=conditions.steps, period=conditions.index,
                        start=arrival[stage][..., part], duration=wait[..., part], exposed=wait[..., part],
                        group="world", numbering=Numbering(1, 0), size_bytes=16,
                    )
                )  # fmt: skip
        return lengths

    def _reduce(self, conditions: Conditions, finish: Finish, arrival: FloatArray) -> FloatArray:
        """All reduce-scatters; when each rank has its gradients, [P, T, S, G]."""
        ends: dict[int, FloatArray] = {}
        reached: FloatArray | None = None
        for chunk in finish.reduce_order:
            latest = conditions.slowest(finish.reduce[chunk])
            if reached is not None:
                latest = np.maximum(latest, reached)
            reached = latest + conditions.data_parallel_ns("dp_reduce_scatter", chunk)
            seen = reached + conditions.completions_ns(Purpose.REDUCED, chunk)
            ends[chunk] = np.broadcast_to(seen, arrival.shape)
        for chunk in range(self.job.chunks):
            waits = np.maximum(ends[chunk] - arrival, 0)
            arrival = np.maximum(arrival, ends[chunk])
            self._emit_reductions(conditions, finish, chunk, ends[chunk], waits)
        return arrival

    def _emit_reductions(
        self, conditions: Conditions, finish: Finish, chunk: int, ends: FloatArray, waits: FloatArray
    ) -> None:
        numbering = Numbering(2 * self.job.chunks, finish.reduce_order.index(chunk))
        for stage in range(self.job.grid.stages):
            start = finish.reduce[chunk][stage]
            for part in self.blocks():
                self._emit(
                    Spans(
                        segment="dp_reduce_scatter", stage=stage, replicas=part,
                        steps=conditions.steps, period=conditions.index, start=start[..., part],
                        duration=(ends[stage] - start)[..., part], exposed=waits[stage][..., part],
                        chunk=chunk, group="dp", numbering=numbering, size_bytes=self.job.costs.reduce_scatter_bytes,
                    )
                )  # fmt: skip

    def _emit_tail(self, conditions: Conditions, tail: Tail) -> None:
        for stage in range(self.job.grid.stages):
            for part in self.blocks():
                begin, own, end = (one[stage][..., part] for one in (tail.begin, tail.optimizer, tail.end))
                spans = [("optimizer", begin, own - begin, None)]
                if (end > own).any():
                    spans.append(("checkpoint", own, end - own, end > own))
                for segment, start, duration, present in spans:
                    self._emit(
                        Spans(
                            segment=segment, stage=stage, replicas=part,
                            steps=conditions.steps, period=conditions.index + 1,
                            start=start, duration=duration, present=present,
                        )
                    )  # fmt: skip

    def _emit_gathers(
        self, tail: Tail, replicas: slice, index: IntArray, waits: dict[tuple[int, int], FloatArray] | None
    ) -> None:
        """The all-gathers of the steps before ``index``: how long they were waited for is known one step later.

        Those that nobody waits for, after the last step, have ``waits`` None.
        """
        job = self.job
        first = int(np.searchsorted(index, 1))
        if first == len(index):
            return
        for chunk, ends in enumerate(tail.gathered):
            for stage in range(job.grid.stages):
                start = tail.optimizer[stage][:, first:, replicas]
                self._emit(
                    Spans(
                        segment="dp_all_gather", stage=stage, replicas=replicas,
                        steps=job.first_step + index[first:] - 1, period=index[first:],
                        start=start, duration=ends[stage][:, first:, replicas] - start,
                        exposed=None if waits is None else waits[stage, chunk][:, first:],
                        chunk=chunk, group="dp", numbering=Numbering(2 * job.chunks, job.chunks + chunk),
                        size_bytes=job.costs.all_gather_bytes,
                    )
                )  # fmt: skip


def room_for_steps(job: SimulatedJob) -> int:
    """How many steps of a job may be computed at once (`PIECE_ELEMENTS`); 0 where one is more than that."""
    return PIECE_ELEMENTS // (job.world_size * max(1, job.chunks))


def pieces(job: SimulatedJob) -> Iterator[IntArray]:
    """All steps, in pieces of 100, or fewer of a large job: in whole windows of 10."""
    room = room_for_steps(job)
    size = 100 if room >= 100 else 20 if room >= 20 else 10
    first_size = size - job.first_step % size  # windows of steps begin at multiples
    first = 0
    while first < job.steps:
        last = min(first + (first_size if first == 0 else size), job.steps)
        yield np.arange(first, last)
        first = last


def simulate_lengths(job: SimulatedJob) -> FloatArray:
    """Lengths of all steps in ns, [steps], without recording anything."""
    engine = Engine(job, [])
    return np.concatenate([engine.run(piece) for piece in pieces(job)])
