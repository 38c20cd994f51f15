"""Imports the curves that Megatron's tests keep as JSON: loss, memory and iteration time of every few steps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...profiler.errors import FormatError
from ...profiler.vocabulary import Status
from .chrome_json import open_stream
from .columns import ITERATION, last_look, segment_rows
from .hostile import plain_name, whole
from .imported import Imported, Progress, Rows
from .log_lines import ns_of_seconds, number

TIME, LOSS = "iteration-time", "lm loss"
_GRAD_NORM, _RATE = "grad-norm", "learning-rate"
_HEALTH = {
    "mem-allocated-bytes": "memory_allocated_bytes",
    "mem-max-allocated-bytes": "memory_max_allocated_bytes",
}
_AXES = re.compile(r"(tp|pp|dp|cp|ep)(\d+)")
_ORDER = ("pp", "dp", "ep", "cp", "tp")


class MegatronCurves:
    """One file of curves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.others: list[str] = []
        self.run = re.sub(r"(\.json)?(\.gz)?$", "", plain_name(path)) or plain_name(path)

    def read(self, rows: Rows, progress: Progress) -> Imported:
        """Hand over all rows. Raises FormatError where the file has no curve of iteration times."""
        curves = self._curves()
        if TIME not in curves:
            raise FormatError(f"{self._path} has no curve called {TIME}: there is nothing to tell how long steps took.")
        lengths = {step: ns_of_seconds(value) for step, value in curves[TIME].items()}
        took = {step: length for step, length in lengths.items() if length is not None}
        if not took:
            raise FormatError(f"All values of {TIME} in {self._path} are missing.")
        progress(1, 2)
        steps = sorted(took)
        starts, durations = _placed(steps, took)
        rows.add("ranks", pa.table({"rank": pa.array([0], pa.int32()), "host": ["host-of-rank-0"]}))
        rows.add("steps", _step_rows(curves, steps, starts, durations))
        rows.add("segments", segment_rows([ITERATION]))
        rows.add("events", _event_rows(steps, starts, durations))
        rows.add("health", _health_rows(curves, steps, starts, durations))
        rows.add("heartbeats", last_look(0, starts[-1] + durations[-1], steps[-1], {}))
        progress(2, 2)
        found = {axis: int(size) for axis, size in _AXES.findall(self._path.name)}
        notes = [
            "the file tells no date: the first step begins at 1970-01-01 00:00 UTC, and steps that it leaves out are "
            "taken to be as long as the shorter of those around them",
        ]
        last = max(curves[TIME])
        if steps[-1] < last:
            notes.append(f"from step {steps[-1] + 1} on every value is missing: the run ended before step {last}")
        return Imported(
            layout={},
            world_size=None,
            configuration={
                "imported": {"format": "megatron-json", "file": plain_name(self._path)},
                "parallel_sizes": {axis: found[axis] for axis in _ORDER if axis in found},
            },
            start_ns=0,
            end_ns=starts[-1] + durations[-1],
            notes=tuple(notes),
        )

    def _curves(self) -> dict[str, dict[int, float | None]]:
        try:
            with open_stream(self._path) as stream:
                told = json.loads(stream.read())
        except (ValueError, OSError, EOFError, RecursionError) as error:
            raise FormatError(f"{self._path} cannot be read as JSON ({error}): get a whole copy of it.") from error
        if not isinstance(told, dict):
            raise FormatError(f"{self._path} is no JSON object: it holds no curves.")
        return {name: _values(one["values"]) for name, one in told.items() if _is_curve(one)}


def _is_curve(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("values"), dict)


def _values(values: Mapping[str, Any]) -> dict[int, float | None]:
    """Value by step; the text nan means that there is none."""
    numbers = {whole(step): number(str(value)) for step, value in values.items()}
    return {step: value for step, value in numbers.items() if step is not None}


def _placed(steps: list[int], lengths: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Start and duration of the steps, ns; each of those in between counts as long as the shorter neighbour."""
    starts: list[int] = []
    durations: list[int] = []
    at, before = 0, steps[0] - 1
    for step in steps:
        took = lengths[step]
        at += min([took, *durations[-1:]]) * (step - before - 1)
        starts.append(at)
        durations.append(took)
        at, before = at + took, step
    return starts, durations


def _step_rows(
    curves: Mapping[str, Mapping[int, float | None]], steps: list[int], starts: list[int], durations: list[int]
) -> pa.Table:
    def curve(name: str) -> pa.Array:
        values = curves.get(name, {})
        return pa.array([values.get(step) for step in steps], pa.float64())

    return pa.table(
        {
            "rank": pa.array([0] * len(steps), pa.int32()),
            "step": pa.array(steps, pa.int64()),
            "start_ns": pa.array(starts, pa.int64()),
            "duration_ns": pa.array(durations, pa.int64()),
            "loss": curve(LOSS),
            "grad_norm": curve(_GRAD_NORM),
            "learning_rate": curve(_RATE),
        }
    )


def _event_rows(steps: list[int], starts: list[int], durations: list[int]) -> pa.Table:
    count = len(steps)
    return pa.table(
        {
            "rank": pa.array([0] * count, pa.int32()),
            "step": pa.array(steps, pa.int64()),
            "segment": pa.array([ITERATION.id] * count, pa.int64()),
            "stream": pa.array([ITERATION.stream] * count, pa.string()),
            "thread": pa.array([0] * count, pa.int16()),
            "start_ns": pa.array(starts, pa.int64()),
            "duration_ns": pa.array(durations, pa.int64()),
            "self_ns": pa.array(durations, pa.int64()),
            "clock": pa.array([str(ITERATION.clock)] * count, pa.string()),
            "status": pa.array([str(Status.OK)] * count, pa.string()),
        }
    )


def _health_rows(
    curves: Mapping[str, Mapping[int, float | None]], steps: list[int], starts: list[int], durations: list[int]
) -> pa.Table:
    """Memory at the end of each step."""
    found = [
        (start + duration, metric, curves[name].get(step))
        for name, metric in _HEALTH.items()
        if name in curves
        for step, start, duration in zip(steps, starts, durations, strict=True)
    ]
    return pa.table(
        {
            "host": pa.array(["host-of-rank-0"] * len(found), pa.string()),
            "moment_ns": pa.array([moment for moment, *_ in found], pa.int64()),
            "metric": pa.array([metric for _, metric, _ in found], pa.string()),
            "value": pa.array([value for *_, value in found], pa.float64()),
            "flag": pa.array(["blank" if value is None else None for *_, value in found], pa.string()),
        }
    )
