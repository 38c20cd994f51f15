"""Whether the job's steps became longer over the run, whoever is to blame: a reason not to call it healthy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .detect import find_raised, measure_noise
from .peers import FloatArray, IntArray
from .verdict import Abstention

MIN_GROWTH = 1.10
"""Median step of the last tenth over that of the first tenth after warm-up."""

MIN_ERRORS = 4.0
"""The growth is so many standard errors of the two medians at least: steps are never equally long."""

GROWTH_SIGNAL = "step-time"
"""What an abstention for growing steps is called."""

LONGER_STEPS, LONGER_Z, STEADY, QUICK = 12, 8.0, 0.8, 0.25
"""A stretch of longer steps is so long, so many errors beyond the others, and so many of its steps are longer. Others
are those near the lower quartile: a stretch may take up more than half of the steps."""

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


def find_longer(step_ms: FloatArray, steps: IntArray, width: int = 1) -> Abstention | None:
    """A stretch of steps [S] that are longer than all others, which has ended; None where there is none.

    ``width`` is how many steps a column stands for: the stretch is of `LONGER_STEPS` at least, and of two columns.
    """
    known = np.isfinite(step_ms) & (step_ms > 0)
    logs = np.full(len(step_ms), np.nan)
    logs[known] = np.log(step_ms[known])
    if known.sum() < 3 * MIN_COLUMNS:
        return None
    logs -= np.quantile(logs[known], QUICK)
    noise = measure_noise(logs[None, :])
    if noise is None:
        return None
    one = find_raised(0, logs, noise, math.log(MIN_GROWTH), LONGER_Z)
    if one is None or one.effect < math.log(MIN_GROWTH) or one.share_beyond < STEADY:
        return None
    length, rest = one.last - one.first + 1, np.delete(logs, slice(one.first, one.last + 1))
    rest = rest[np.isfinite(rest)]
    if length < max(-(-LONGER_STEPS // width), 2) or len(rest) < MIN_COLUMNS or float(np.median(rest)) > one.effect / 2:
        return None
    reason = (
        f"steps {int(steps[one.first])} to {int(steps[one.last]) + width - 1} took x{math.exp(one.effect):.2f} of the "
        f"others and nothing that was judged explains it"
    )
    return Abstention(GROWTH_SIGNAL, reason)


def _noise_at(logs: FloatArray, lag: int) -> float:
    """Robust deviation of one step from steps that are so many apart, as a log-ratio."""
    return 1.4826 * float(np.median(np.abs(logs[lag:] - logs[:-lag]))) / math.sqrt(2)
