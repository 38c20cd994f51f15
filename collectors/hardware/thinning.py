"""Leaves out rows of ``health`` that say again what was said before: limits, counters at rest, what a device lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .metrics import ALL

AGAIN_S = 60.0
"""What does not change is written again after so long: so that it shows that it is still looked at."""


class Thinner:
    """Passes gauges always; what is steady or NULL when it changes, and differences when they are not 0."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._last: dict[tuple[str | None, str], tuple[float, float | None, str | None]] = {}

    def reset(self) -> None:
        """Let everything pass once: there is a new reader."""
        self._last.clear()

    def thin(self, rows: Iterable[Mapping[str, Any]], now_s: float) -> Iterator[Mapping[str, Any]]:
        """The rows that have something to say. ``now_s``: moment on any clock that only goes on."""
        for row in rows:
            key = (row["device"], row["metric"])
            before = self._last.get(key)
            is_due = before is None or now_s - before[0] >= self._again_s
            if is_due or before is None or self._is_news(row, before[1], before[2]):
                self._last[key] = (now_s, row["value"], row["flag"])
                yield row

    @staticmethod
    def _is_news(row: Mapping[str, Any], value: float | None, flag: str | None) -> bool:
        metric = ALL.get(row["metric"])
        if metric is not None and metric.is_delta:
            return bool(row["value"]) or (row["value"] is None and flag != row["flag"])
        if row["value"] is None or (metric is not None and metric.is_steady):
            return bool((row["value"], row["flag"]) != (value, flag))
        return True
