"""Whether the job's steps became longer over the run, whoever is to blame: a reason not to call it healthy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .peers import FloatArray, IntArray
from .verdict import Abstention

MIN_GROWTH = 1.10
"""Median step of the last tenth over that of the first tenth after warm-up."""

MIN_ERRORS = 4.0
"""The growth is so many standard errors of the two medians at least: steps are never equally long."""

GROWTH_SIGNAL = "step-time"
"""What an abstention for growing steps is called."""

MAX_LAG = 4
"""Steps lie so far apart at most whose differences are taken for noise."""

MIN_COLUMNS = 3
"""Columns that stand for either end, however few there are."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Steps that became ``ratio`` times as long, from step ``since`` on."""

    ratio: float
    since: int

    @property
    def note(self) -> Abstention:
        """Why the job is not called healthy."""
        reason = (
            f"steps became x{self.ratio:.2f} longer from about step {self.since} on and nothing that was judged "
            f"explains it"
        )
        return Abstention(GROWTH_SIGNAL, reason)


def find_growth(step_ms: FloatArray, steps: IntArray) -> Growth | None:
    """Whether steps [S] are longer at the end than at the beginning; None too where too few are known.

    The noise is taken from differences between steps close to each other, which a slow growth hardly moves: of the lag
    at which they are least, for a step that takes longer every second or third time is no noise. The standard error of
    a median of n values is 1.2533 sigma / sqrt(n).
    """
    known = np.isfinite(step_ms) & (step_ms > 0)
    logs, at = np.log(step_ms[known]), steps[known]
    ends = max(len(logs) // 10, MIN_COLUMNS)
    if len(logs) < 3 * ends:
        return None
    early, late = float(np.median(logs[:ends])), float(np.median(logs[-ends:]))
    sigma = min(_noise_at(logs, lag) for lag in range(1, min(MAX_LAG, len(logs) - 1) + 1))
    error = 1.2533 * sigma * math.sqrt(2 / ends)
    if late - early <= max(math.log(MIN_GROWTH), MIN_ERRORS * error):
        return None
    above = np.cumsum((logs - (early + late) / 2)[::-1])[::-1]  # the end that is longer by most, taken together
    return Growth(math.exp(late - early), int(at[int(np.argmax(above))]))


def _noise_at(logs: FloatArray, lag: int) -> float:
    """Robust deviation of one step from steps that are so many apart, as a log-ratio."""
    return 1.4826 * float(np.median(np.abs(logs[lag:] - logs[:-lag]))) / math.sqrt(2)
