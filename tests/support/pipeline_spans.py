"""Spans of a small pipeline, walked with a clock: as scheduled, in another order, or with a barrier between actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from megascope.trainer.schedule import Action, as_rows, compute_order, training_schedule

from .span_store import Span

COST_MS = {"forward": 10.0, "backward": 20.0}
STEP_MS = 500.0


class Planted(StrEnum):
    """What is wrong with the pipeline."""

    NOTHING = "nothing"
    RECORDED = "a barrier that is a collective"
    SILENT = "a barrier that nobody recorded"
    ORDER = "all forwards before all backwards"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPipeline:
    """Ranks are stage x replicas + replica. All replicas meet at the end of a step."""

    stages: int = 2
    replicas: int = 4
    microbatches: int = 4
    steps: int = 40
    noise: float = 0.15
    planted: Planted = Planted.NOTHING
    since: int = 0
    until: int | None = None
    every: int = 1
    seed: int = 0

    def planted_in(self, step: int) -> Planted:
        """What is wrong in a step: what is planted, from ``since`` to before ``until``, in one of ``every`` steps."""
        inside = self.since <= step and (self.until is None or step < self.until)
        return self.planted if inside and step % self.every == 0 else Planted.NOTHING

    @property
    def layout(self) -> Mapping[str, int]:
        """Axes, the outermost first."""
        return {"pp": self.stages, "dp": self.replicas}

    def schedule_rows(self) -> Mapping[str, Sequence[Any]]:
        """Rows of the table ``schedule``."""
        rows = as_rows(training_schedule(self.stages, 1, self.microbatches, shards=False))
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
        columns["depends_on"] = [
            [{"stage": stage, "position": position} for stage, position in places] for places in columns["depends_on"]
        ]
        return columns

    def spans(self) -> list[Span]:
        """All spans of all steps."""
        random = np.random.default_rng(self.seed)
        return [span for step in range(self.steps) for span in _Step(self, step, random).run()]


class _Step:
    """One step: who is free when, and when each action ended."""

    def __init__(self, job: SmallPipeline, step: int, random: np.random.Generator) -> None:
        self._job, self._step, self._random = job, step, random
        self._planted = job.planted_in(step)
        self._free = np.full((job.stages, job.replicas), step * STEP_MS)
        self._ended: dict[tuple[int, str, int], np.ndarray] = {}
        self._spans: list[Span] = []

    def run(self) -> list[Span]:
        """Take the actions of all stages as soon as what they need has ended."""
        job = self._job
        left = {stage: self._order(stage) for stage in range(job.stages)}
        while any(left.values()):
            for stage, actions in left.items():
                while actions and self._needs(stage, actions[0]) <= self._ended.keys():
                    self._act(stage, actions.pop(0))
        self._meet(self._free, "all_reduce", "collective")
        return self._spans

    def _order(self, stage: int) -> list[Action]:
        order = compute_order(self._job.stages, stage, 1, self._job.microbatches)
        if self._planted is Planted.ORDER:
            order.sort(key=lambda action: str(action.kind) == "backward")
        return order

    def _needs(self, stage: int, action: Action) -> set[tuple[int, str, int]]:
        other = stage - 1 if str(action.kind) == "forward" else stage + 1
        return {(other, str(action.kind), action.microbatch or 0)} if 0 <= other < self._job.stages else set()

    def _act(self, stage: int, action: Action) -> None:
        kind, microbatch = str(action.kind), action.microbatch or 0
        start = self._free[stage]
        for key in self._needs(stage, action):
            there = self._ended[key] + 0.1
            self._span(stage, f"recv_{kind}", start, np.maximum(there - start, 0.0), microbatch, "p2p")
            start = np.maximum(start, there)
        if kind == "backward" and self._planted in (Planted.SILENT, Planted.RECORDED):
            meeting = start.max() + 0.2
            if self._planted is Planted.RECORDED:
                self._span(stage, "barrier", start, meeting - start, None, "collective")
            start = meeting + 0.01 * self._random.random(self._job.replicas)
        took = COST_MS[kind] * self._random.lognormal(0.0, self._job.noise, self._job.replicas)
        self._span(stage, kind, start, took, microbatch, "compute")
        self._free[stage] = self._ended[stage, kind, microbatch] = start + took

    def _meet(self, free: np.ndarray, name: str, kind: str) -> None:
        for stage in range(self._job.stages):
            self._span(stage, name, free[stage], free.max() + 1.0 - free[stage], None, kind)

    def _span(
        self, stage: int, name: str, start: np.ndarray, took: np.ndarray, microbatch: int | None, kind: str
    ) -> None:
        for replica in range(self._job.replicas):
            rank, waits = stage * self._job.replicas + replica, kind != "compute"
            self._spans.append(
                Span(
                    rank, self._step, name, float(start[replica]), float(took[replica]),
                    exposed_ms=float(took[replica]) if waits else None, kind=kind,
                    chunk=None if microbatch is None else 0, microbatch=microbatch,
                )
            )  # fmt: skip
