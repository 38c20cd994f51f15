"""A sink for the simulator's engine: sums of own time, duration and waiting by rank and step."""

from __future__ import annotations

from typing import Any

import numpy as np

from megascope.trainer.simulator.effects import FloatArray, IntArray
from megascope.trainer.simulator.engine import Engine
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.spans import Spans


class SpanSums:
    """Sums in nanoseconds, [world, steps], by segment: ``own``, ``duration``, ``exposed``."""

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self.own: dict[str, Any] = {}
        self.duration: dict[str, Any] = {}
        self.exposed: dict[str, Any] = {}

    @classmethod
    def of(cls, job: SimulatedJob) -> SpanSums:
        """Run a job and sum its spans."""
        sums = cls(job)
        Engine(job, [sums]).run(np.arange(job.steps))
        return sums

    def add(self, spans: Spans) -> None:
        """See `Sink`."""
        shape = (self._job.grid.width, len(spans.steps), spans.replicas.stop - spans.replicas.start)
        rank = self._job.grid.rank[spans.stage][:, spans.replicas]
        present = np.ones(shape) if spans.present is None else np.broadcast_to(spans.present, shape).astype(float)
        values = {
            "own": spans.duration if spans.own is None else spans.own,
            "duration": spans.duration,
            "exposed": np.zeros(1) if spans.exposed is None else spans.exposed,
        }
        for what, one in values.items():
            table = getattr(self, what).setdefault(spans.segment, np.zeros((self._job.world_size, self._job.steps)))
            index = spans.steps - self._job.first_step
            by_rank = np.moveaxis(np.broadcast_to(one, shape) * present * spans.repeat, 1, 2)  # [T, G, S]
            table[rank[:, :, None], index[None, None, :]] += by_rank

    def end_block(self) -> None:
        """See `Sink`."""

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """See `Sink`."""


def changed(before: FloatArray, after: FloatArray, least: float = 1e-6) -> tuple[set[int], set[int]]:
    """Ranks and steps (by their place) in which two sums differ by more than that part."""
    differs = np.abs(after - before) > least * np.maximum(np.abs(before), 1.0)
    rank, step = np.nonzero(differs)
    return set(rank.tolist()), set(step.tolist())
