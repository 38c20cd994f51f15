"""The stretch of steps in which a quantity of the whole job or of a stage is raised."""

from __future__ import annotations

import math

import numpy as np

from ..detect import MAD_TO_SIGMA, Noise, Raised, find_raised
from ..observations import Observations
from ..peers import FloatArray

MEDIAN_ERROR = 1.2533
"""Standard error of the median of n normal values, in sigma / sqrt(n)."""

LEAST_SIGMA = 0.002
"""Steps are never known more exactly: what is alike to the last digit was not measured."""

FEW_COLUMNS = 20

_STARTS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Effects with which the search begins: each finds stretches of about its own size."""


def step_noise(values: FloatArray) -> float:
    """Standard deviation of one of the values [S] along the steps.

    From differences between neighbours: a level that shifts once moves one of them only. Of few values a stretch that
    begins and ends within others moves half of them, so there the lower quartile tells: 0.3186 sigma.
    """
    known = values[np.isfinite(values)]
    if len(known) < 3:
        return LEAST_SIGMA
    differences = np.abs(np.diff(known))
    if len(known) < FEW_COLUMNS:
        sigma = float(np.quantile(differences, 0.25)) / 0.3186
    else:
        sigma = MAD_TO_SIGMA * float(np.median(differences))
    return max(sigma / math.sqrt(2), LEAST_SIGMA)


def surest_stretch(row: int, logs: FloatArray, least_z: float) -> Raised | None:
    """The stretch in which log-ratios [S] are raised most surely; None where none is by ``least_z`` errors."""
    if np.isfinite(logs).sum() < 3:
        return None
    sigma = step_noise(logs)
    noise = Noise(step=sigma, of_block=MEDIAN_ERROR * sigma, block=1)
    found = (find_raised(row, logs, noise, start, least_z, end_slack=0) for start in _STARTS)
    return max((one for one in found if one is not None), key=lambda one: one.z, default=None)


def steps_of(first: int, last: int, seen: Observations) -> tuple[int, int]:
    """First and last step of a stretch of columns; the last column may not be complete yet."""
    return int(seen.steps[first]), seen.last_of(int(seen.steps[last]), seen.source.step_width)
