"""The overhead of recording on one host while the job runs, from the steps that the agent sees go by."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from ..health import OVERHEAD, OVERHEAD_HIGH, OVERHEAD_LOW, judged
from ..overhead import compare_shadows, median_interval

EVERY_S = 300.0
"""Seconds between two values."""

KEPT_STEPS = 600
"""Newest steps that are kept: 30 shadow steps at one in 20. With `KEPT_RANKS` this bounds the memory, about 2 MB."""

KEPT_RANKS = 16
"""Of a host with more ranks these many, in the order of their first step: a step is as long for all."""


class OverheadWatch:
    """Keeps the newest steps of one attempt's ranks here, and tells from time to time what recording costs them."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._due = time.monotonic() + every_s
        self._ranks: set[int] = set()
        self._durations: dict[int, dict[int, int]] = {}
        self._shadows: set[int] = set()
        self._has_news = False

    def add(self, rank: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of ``steps`` of a rank as they become ready; those that tell no duration or no sort are left out."""
        for row in rows:
            step, duration_ns, shadow = row["step"], row.get("duration_ns"), row.get("shadow")
            if duration_ns is None or shadow is None or not self._is_kept(rank):
                continue
            self._durations.setdefault(step, {})[rank] = duration_ns
            if shadow:
                self._shadows.add(step)
            self._has_news = True
        if len(self._durations) > KEPT_STEPS:
            for step in sorted(self._durations)[:-KEPT_STEPS]:
                del self._durations[step]
                self._shadows.discard(step)

    def _is_kept(self, rank: int) -> bool:
        if rank not in self._ranks and len(self._ranks) < KEPT_RANKS:
            self._ranks.add(rank)
        return rank in self._ranks

    def take(self, *, is_over: bool) -> list[dict[str, Any]]:
        """Value, low and high end as columns of ``health``, NULL with a flag where too few steps were compared.

        None of them before it is time, or at the end of the attempt; nor where no step has come since the last ones.
        """
        if not self._has_news or not (is_over or time.monotonic() >= self._due):
            return []
        self._has_news, self._due = False, time.monotonic() + self._every_s
        durations = {step: float(median(found.values())) for step, found in self._durations.items()}
        values = median_interval(compare_shadows(durations, self._shadows))
        return [judged(metric, value) for metric, value in zip(_METRICS, values, strict=True)]


_METRICS = (OVERHEAD, OVERHEAD_LOW, OVERHEAD_HIGH)
