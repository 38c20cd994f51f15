"""When the shown steps began on the shown ranks, on the reference clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...collectors.reading.store import Attempt
from ..alignment import clocks_of
from ..heat.data import placement_of
from ..span_clock import aligned_starts
from ..workbench import Workbench
from .choice import SpanChoice

MOST_STEPS = 500
"""Of more steps no starts are marked."""

_STARTS = """
    SELECT rank, step, start_ns FROM steps
    WHERE rank IN ({}) AND step BETWEEN ? AND ? ORDER BY rank, step
"""

_BOUNDS = """
    SELECT rank, min(start_ns) AS first_ns, max(start_ns + coalesce(duration_ns, 0)) AS last_ns FROM steps
    WHERE list_contains(?, rank) AND step BETWEEN ? AND ? GROUP BY rank ORDER BY rank
"""


@dataclass(frozen=True, slots=True)
class StepStarts:
    """Rows [K]: rank, step, and the step's start in UTC ns; at least one."""

    ranks: npt.NDArray[np.int32]
    steps: npt.NDArray[np.int64]
    starts_ns: npt.NDArray[np.int64]

    def first_ns(self) -> int:
        """The first start of the first step: where two steps are laid side by side."""
        return int(self.starts_ns[self.steps == self.steps.min()].min())

    def rows(self, base_ns: int) -> list[list[int]]:
        """[rank, step, ns from the base] of every start; none where there are too many to be told apart."""
        if self.steps.max() - self.steps.min() > MOST_STEPS:
            return []
        columns = (self.ranks.tolist(), self.steps.tolist(), (self.starts_ns - base_ns).tolist())
        return [list(row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """When the shown steps began and ended, UTC ns; ``is_aligned``: all moments are on the reference clock."""

    first_ns: int
    last_ns: int
    is_aligned: bool


def _are_aligned(bench: Workbench, attempt: Attempt, ranks: Iterable[int]) -> bool:
    """Whether moments of these ranks can be compared: all have a known clock, or the job has one host."""
    clocks = clocks_of(bench, attempt)
    return all(rank in clocks for rank in ranks) or len(set(placement_of(bench, attempt).hosts)) <= 1


def step_bounds(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> Bounds | None:
    """Of the chosen steps on the chosen ranks; None where none is stored."""
    rows = bench.store.query(_BOUNDS, [list(choice.ranks), *choice.steps], attempt)
    if not rows.num_rows:
        return None
    ranks = rows["rank"].to_numpy().astype(np.int32)
    first, last = (aligned_starts(bench, attempt, ranks, rows[name].to_numpy()) for name in ("first_ns", "last_ns"))
    return Bounds(int(first.min()), int(last.max()), _are_aligned(bench, attempt, ranks.tolist()))


def step_starts(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> StepStarts | None:
    """The starts of the chosen steps on the chosen ranks; None where none is stored."""
    sql = _STARTS.format(", ".join(str(rank) for rank in choice.ranks))
    rows = bench.store.query(sql, list(choice.steps), attempt)
    if not rows.num_rows:
        return None
    ranks = rows["rank"].to_numpy().astype(np.int32)
    starts_ns = aligned_starts(bench, attempt, ranks, rows["start_ns"].to_numpy())
    return StepStarts(ranks, rows["step"].to_numpy().astype(np.int64), starts_ns)
