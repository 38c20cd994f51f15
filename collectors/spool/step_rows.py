"""Rows of ``steps``, put together from the lines in which a rank reports a step and its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from ..tables.schemas import TABLES

_KEY = {"run", "attempt", "rank", "step", "start_ns", "duration_ns", "shadow", "worked_ns"}
_METRICS = {column.name: column.type for column in TABLES["steps"].columns if column.name not in _KEY}
_MOST_WAITING = 64
_MOST_RECENT = 16

Values = dict[str, Any]


class StepRows:
    """Collects the lines of one rank. A row is handed out once a later step has begun; metrics that come even later
    (a device's results are read a step or two behind) hand it out again, complete: the newest row of a step counts.
    ``first``: the first step that was read here and has ended, with its start (monotonic ns).
    """

    def __init__(self, clock_base_ns: int, state: Mapping[str, Any] | None = None) -> None:
        self._base_ns = clock_base_ns
        self._held: dict[int, Values] = _by_step((state or {}).get("held", ()))
        self._recent: dict[int, Values] = _by_step((state or {}).get("recent", ()))
        self._changed: dict[int, None] = dict.fromkeys((state or {}).get("changed", ()))
        self._ready: list[Values] = list((state or {}).get("ready", ()))
        self.rejected = int((state or {}).get("rejected", 0))
        self.first: tuple[int, int] | None = None

    def state(self) -> dict[str, Any]:
        """What the rows handed out so far do not tell, for a later incarnation of the agent."""
        return {
            "held": list(self._held.items()),
            "recent": list(self._recent.items()),
            "changed": list(self._changed),
            "ready": self._ready,
            "rejected": self.rejected,
        }

    def add_step(self, line: Mapping[str, Any]) -> None:
        """A step has ended: its start (monotonic ns) and duration. ValueError or TypeError for what is no number."""
        step, start_ns = _integer(line["step"]), _integer(int(line["start_ns"]) + self._base_ns)
        duration_ns = line.get("duration_ns")
        ended = {"start_ns": start_ns, "duration_ns": None if duration_ns is None else _integer(duration_ns)}
        if isinstance(line.get("shadow"), bool):
            ended["shadow"] = line["shadow"]
        worked_ns = line.get("worked_ns")
        if isinstance(worked_ns, int) and 0 <= worked_ns < 2**63:  # else it is not known
            ended["worked_ns"] = worked_ns
        self.first = self.first or (step, start_ns - self._base_ns)
        self._release(other for other in list(self._held) if other != step)
        self._held.setdefault(step, {}).update(ended)

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Metrics of a step; several lines add up. A value that its column cannot hold is ``rejected``."""
        step = _integer(line["step"])
        values = self._fitting(line)
        if step in self._recent and step not in self._held:
            self._recent[step].update(values)
            self._changed[step] = None
            return
        self._release(other for other in list(self._held) if other != step)
        self._held.setdefault(step, {}).update(values)
        while len(self._held) > _MOST_WAITING:
            del self._held[next(iter(self._held))]

    def _fitting(self, line: Mapping[str, Any]) -> Values:
        values: Values = {}
        for name in _METRICS.keys() & line.keys():
            try:
                is_float = pa.types.is_floating(_METRICS[name])
                values[name] = float(line[name]) if is_float else _integer(line[name])
            except (TypeError, ValueError, OverflowError):
                self.rejected += 1
        return values

    def take(self, current_step: int | None, unfinished_start_ns: int | None = None, *, ended: bool) -> list[Values]:
        """Rows that are ready, as column values without run, attempt and rank.

        ``current_step`` is the step that the rank was in before the lines were read. ``ended`` tells that no more
        lines come: a step that never ended then has no duration, and starts at ``unfinished_start_ns`` (monotonic).
        """
        if ended:
            if current_step in self._held and unfinished_start_ns is not None:
                self._held[current_step].setdefault("start_ns", unfinished_start_ns + self._base_ns)
            self._release(list(self._held))
        elif current_step is not None:
            self._release(step for step in list(self._held) if step < current_step)
        for step in self._changed:
            self._ready.append({"step": step, **self._recent[step]})
        self._changed = {}
        ready, self._ready = self._ready, []
        return ready

    def _release(self, steps: Iterable[int]) -> None:
        for step in steps:
            if "start_ns" in self._held[step]:
                values = self._held.pop(step)
                self._ready.append({"step": step, **values})
                self._recent.pop(step, None)
                self._recent[step] = values
        for step in list(self._recent)[:-_MOST_RECENT]:
            if step not in self._changed:
                del self._recent[step]


def _integer(value: Any) -> int:
    """A whole number of 64 bits; ValueError, TypeError or OverflowError for anything else."""
    number = int(value)
    if number != value or not -(2**63) <= number < 2**63:
        raise ValueError(f"{value!r} is no whole number of 64 bits")
    return number


def _by_step(pairs: Iterable[tuple[int, Values]]) -> dict[int, Values]:
    return {int(step): dict(values) for step, values in pairs}
