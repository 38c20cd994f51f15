"""When the shown steps began on the shown ranks, on the reference clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..collectors.store import Attempt
from .span_choice import SpanChoice
from .span_clock import aligned_starts
from .workbench import Workbench

MOST_STEPS = 500
"""Of more steps no starts are marked."""

_STARTS = """
    SELECT rank, step, start_ns FROM steps
    WHERE rank IN ({}) AND step BETWEEN ? AND ? ORDER BY rank, step
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


def step_starts(bench: Workbench, attempt: Attempt, choice: SpanChoice) -> StepStarts | None:
    """The starts of the chosen steps on the chosen ranks; None where none is stored."""
    sql = _STARTS.format(", ".join(str(rank) for rank in choice.ranks))
    rows = bench.store.query(sql, list(choice.steps), attempt)
    if not rows.num_rows:
        return None
    ranks = rows["rank"].to_numpy().astype(np.int32)
    starts_ns = aligned_starts(bench, attempt, ranks, rows["start_ns"].to_numpy())
    return StepStarts(ranks, rows["step"].to_numpy().astype(np.int64), starts_ns)
