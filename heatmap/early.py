"""Early warnings: ranks that have become slower against their own past, before they are slow enough to be accused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set

import numpy as np

from .compare import Comparison
from .detect import Noise, spread
from .peers import FloatArray, IntArray, row_median
from .thresholds import Thresholds
from .verdict import EarlyWarning

MAX_WARNINGS = 20

MIN_RATIO = 1.03
"""Newest columns over the rank's own baseline, both relative to its peers."""

NEWEST = (6, 12, 24)
"""Columns that are held against those before: a change is seen with the fewest that are sure."""

NEWEST_AVERAGED = (2, 3)
"""The same where a column is an average over several steps."""

BASELINE = 5
"""So many times as many columns before them are the rolling baseline; it takes at least as many as the newest."""

ROLLING_Z = 2.0
"""Added to what a search over all ranks needs: whoever is warned of is not accused, but is looked at."""

APART = 5.0
"""Shift over the spread of all ranks' shifts."""

MIN_SHARE = 0.005
"""Excess over the baseline as a share of a step's time."""


def find_warnings(
    comparisons: Mapping[str, Comparison],
    ranks: IntArray,
    steps: IntArray,
    step_ms: FloatArray,
    accused: Set[int],
    thresholds: Thresholds,
    explained: Callable[[str, int, slice, slice], float] | None = None,
) -> tuple[EarlyWarning, ...]:
    """Ranks whose newest columns are raised above their own rolling baseline, the most raised first.

    ``comparisons`` are those of segments by name, over the same ``ranks`` [R] and ``steps`` [S]; who is ``accused`` is
    not warned of. What all peers do alike moves nobody: ratios to the peers are compared. ``explained`` gives the ratio
    that other work explains, by segment, row, and the columns before and since: what is left has to reach `MIN_RATIO`.
    """
    is_averaged = thresholds.shortest_steps is not None
    found: dict[int, EarlyWarning] = {}
    for name, comparison in comparisons.items():
        for newest in NEWEST_AVERAGED if is_averaged else NEWEST:
            for row, shift, since in _shifted(comparison, newest, step_ms, thresholds):
                rank, ratio = int(ranks[row]), math.exp(shift)
                if explained is not None and _is_other_work(shift, explained(name, row, *_parts(comparison, newest))):
                    continue
                if rank not in accused and (rank not in found or found[rank].ratio_to_own_baseline < ratio):
                    found[rank] = EarlyWarning(rank, name, int(steps[since]), round(ratio, 4))
    return tuple(_largest(found.values()))


def _largest(found: Iterable[EarlyWarning]) -> list[EarlyWarning]:
    return sorted(found, key=lambda one: (-one.ratio_to_own_baseline, one.rank))[:MAX_WARNINGS]


def _shifted(
    comparison: Comparison, newest: int, step_ms: FloatArray, thresholds: Thresholds
) -> list[tuple[int, float, int]]:
    """Rows that are raised in their newest columns, by how much (log), and the column since when."""
    logs, columns = comparison.logs, comparison.logs.shape[1]
    before, since = _parts(comparison, newest)
    length = columns - newest - before.start
    if length < max(newest, 4):
        return []
    base = row_median(logs[:, before])
    shift = row_median(logs[:, since]) - base
    error = _error(comparison.noise, newest, length)
    usual = float(np.nanmedian(step_ms)) if np.isfinite(step_ms).any() else math.inf
    needed = max(
        math.log(MIN_RATIO),
        error * (thresholds.needed_z(len(logs), columns, newest, True) + ROLLING_Z),
        APART * max(spread(shift[np.isfinite(shift)]), 0.002),
    )
    result = []
    for row in np.flatnonzero(shift >= needed).tolist():
        raised = logs[row] - base[row]
        inside = raised[since]
        excess = shift[row] * row_median(comparison.peers[row : row + 1, since])[0]
        if np.mean(inside[np.isfinite(inside)] > shift[row] / 2) >= 0.8 and excess >= MIN_SHARE * usual:
            result.append((row, float(shift[row]), _since(raised, float(shift[row]))))
    return result


def _parts(comparison: Comparison, newest: int) -> tuple[slice, slice]:
    """The columns of the rolling baseline, and the newest."""
    columns = comparison.logs.shape[1]
    return slice(max(columns - newest * (1 + BASELINE), 0), columns - newest), slice(columns - newest, columns)


def _is_other_work(shift: float, explained: float) -> bool:
    """Whether less of a shift (log) is left than a warning takes."""
    return shift - math.log(explained) < math.log(MIN_RATIO)


def _error(noise: Noise, newest: int, before: int) -> float:
    """Standard error of the difference between the medians of so many columns."""
    return math.hypot(noise.standard_error(newest), noise.standard_error(before))


def _since(raised: FloatArray, shift: float) -> int:
    """Column from which on a row is raised to its end: the end that lies above half the shift by most."""
    gains = np.nan_to_num(np.clip(raised, -2 * shift, 2 * shift) - shift / 2)
    return int(np.argmax(np.cumsum(gains[::-1])[::-1]))
