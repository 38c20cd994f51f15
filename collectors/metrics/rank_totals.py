"""What has been seen of one rank so far: its steps, its work, what it waited for, its last heartbeat."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...profiler.vocabulary import STATUS_CODES, WAITING_KINDS, SegmentKind, Status
from ..spool.event_rows import SpanArrays
from ..spool.rows import Names

WORK_KINDS = frozenset({SegmentKind.COMPUTE, SegmentKind.OPTIMIZER, SegmentKind.DATA, SegmentKind.GC})

_KEPT_STEPS = 64
_OK = STATUS_CODES.index(Status.OK)


class RankTotals:
    """Grows with every row and span. Memory is bounded: the work of the newest steps, and sums."""

    def __init__(self) -> None:
        self.steps, self.steps_s = 0, 0.0
        self.last_step_s: float | None = None
        self.work_ns, self.waited_ns = 0, 0
        self.has_spans = False
        self.work_of_steps: dict[int, int] = {}
        self.in_flight_age_s: float | None = None
        self.heartbeat_at: float | None = None
        self._counted: dict[int, None] = {}
        self._flags: tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None

    def add_step(self, row: Mapping[str, Any]) -> None:
        """A row of ``steps``; one of a step that was counted before tells only what came late."""
        step, duration_ns = row["step"], row.get("duration_ns")
        if duration_ns is None or step in self._counted:
            return
        self._counted[step] = None
        while len(self._counted) > _KEPT_STEPS:
            del self._counted[next(iter(self._counted))]
        self.steps += 1
        self.steps_s += duration_ns / 1e9
        self.last_step_s = duration_ns / 1e9

    def add_heartbeat(self, row: Mapping[str, Any]) -> None:
        """A row of ``heartbeats`` that was sampled just now."""
        begun = [flight["begun_ns"] for flight in row["in_flight"] if flight["begun_ns"] is not None]
        self.in_flight_age_s = max(0.0, (row["moment_ns"] - min(begun)) / 1e9) if begun else None
        self.heartbeat_at = time.monotonic()

    def add_spans(self, spans: SpanArrays, names: Names) -> None:
        """Spans of steps, as far as they were measured."""
        columns = spans.columns
        usable = (columns["status"] == _OK) & (columns["step"] >= 0)
        if not usable.any():
            return
        self.has_spans = True
        step = columns["step"][usable]
        ids, is_work, is_wait = self._segments(names)
        place = np.searchsorted(ids, columns["segment"][usable])
        self_ns = np.where(is_work[place], np.maximum(columns["self_ns"][usable], 0), 0)
        exposed_ns = np.where(is_wait[place], np.maximum(columns["exposed_ns"][usable], 0), 0)
        self.waited_ns += int(exposed_ns.sum())
        self.work_ns += int(self_ns.sum())
        steps, index = np.unique(step, return_inverse=True)
        for one, took in zip(steps.tolist(), np.bincount(index, weights=self_ns).tolist(), strict=True):
            self.work_of_steps[one] = self.work_of_steps.get(one, 0) + int(took)
        for old in sorted(self.work_of_steps)[:-_KEPT_STEPS]:
            del self.work_of_steps[old]

    def _segments(self, names: Names) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Identities in ascending order, and of each whether it is work, or waits for other ranks."""
        if self._flags is None or self._flags[0] != names.version:
            kinds = {segment.id: segment.kind for segment in names.segments.values()}
            ids = np.array(sorted(kinds), np.int64)
            is_work = np.array([kinds[one] in WORK_KINDS for one in sorted(kinds)], bool)
            is_wait = np.array([kinds[one] in WAITING_KINDS for one in sorted(kinds)], bool)
            self._flags = names.version, ids, is_work, is_wait
        return self._flags[1:]
