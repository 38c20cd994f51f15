"""A rank that became slower than it was, in a job too small to tell it from its peers by how fast they are.

Ranks that share cores, or are simply few, differ by more than a slow-down of a tenth would show. What they differ by at
all times cancels if each is held against its own past: the change of a rank's work at some step, beside the changes of
all other ranks at the same step. What slows the whole job moves all of them alike. The others' changes are also the
yardstick of chance: as many as there are, none of them may come near.

That is worth a warning and no accusation, unless the times are cleaned of load (`slowed`) and the rank has become
slower by these alone as well: not one that stayed as it was while all others became faster. On eight ranks, chance
gives none in 200 jobs of white noise, one in about a hundred where neighbouring steps correlate by 0.3 (as in trainings
on shared cores), and up to four in a hundred where noise lasts for tens of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .detect import Noise, spread
from .peers import FloatArray, column_median, row_median

MIN_ROWS, MAX_ROWS = 8, 64
"""Ranks of a job that is judged so: with fewer, the others' changes are no yardstick; with more, peers are a better."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a change has to reach: ``ratio`` of the rank's work beyond the others'; ``apart``, the change over the
    largest one of any other rank, up or down; ``z``, the change over its standard error along the steps (what is tried,
    some ranks at some steps, is in it); ``columns``, steps before it and from it on; and ``by_itself``, the ratio to
    its own past alone, which the whole job's load is in."""

    ratio: float
    apart: float
    z: float
    columns: int
    by_itself: float = 0.0


WARNED = Bar(1.06, 2.5, 5.0, 40)

BLOCKS = 3
"""Parts of the steps since the change, in each of which the rank stands out: what comes and goes is load."""

LEAST_OF_BLOCK = 0.5
"""Share of the change that each of them shows at least."""

SPLITS = 40
"""Steps at which a change is looked for, evenly spread."""


@dataclass(frozen=True, slots=True)
class OwnChange:
    """A row whose values are raised from column ``first`` on: ``effect`` as a log-ratio to its own past, beyond what
    the other rows changed; ``others`` is the largest change of these, up or down; ``z`` its surety."""

    row: int
    first: int
    effect: float
    others: float
    z: float


def find_own_change(work: FloatArray, bar: Bar = WARNED) -> OwnChange | None:
    """The rank that became slower, from every rank's work per step [R, S]; None where no one did for sure.

    Raises nothing: rows and columns without a value are left out, and too few of either give None.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(work)
    logs[~np.isfinite(logs)] = np.nan
    known = np.isfinite(logs).mean(axis=1) >= 0.9
    if not MIN_ROWS <= known.sum() <= MAX_ROWS or not known.all() or logs.shape[1] < 2 * bar.columns:
        return None
    own, logs = logs, logs - column_median(logs)
    noise = _noise(logs)
    first = np.unique(np.linspace(bar.columns, logs.shape[1] - bar.columns, SPLITS).astype(int)).tolist()
    found = [one for at in first if (one := _at(logs, at, noise, bar)) is not None]
    best = max(found, key=lambda one: one.z, default=None)
    if best is None or not _is_lasting(logs, best):
        return None
    by_itself = changes(own[best.row : best.row + 1], slice(0, best.first), slice(best.first, None))[0]
    return best if math.exp(by_itself) >= bar.by_itself else None


def _noise(logs: FloatArray) -> Noise:
    """Noise along the steps from long blocks, a quarter of them: load of a shared machine may last."""
    strays, block = logs - row_median(logs)[:, None], logs.shape[1] // 4
    step = spread(strays[np.isfinite(strays)])
    of_blocks = np.stack([row_median(strays[:, at * block : (at + 1) * block]) for at in range(4)], axis=1)
    white = 1.2533 * step / math.sqrt(block)
    return Noise(step, max(spread(of_blocks[np.isfinite(of_blocks)]), white, 1e-4), block)


def changes(logs: FloatArray, before: slice, after: slice) -> FloatArray:
    """Change of every row's median from one part of the columns to another, [R]."""
    result: FloatArray = row_median(logs[:, after]) - row_median(logs[:, before])
    return result


def _at(logs: FloatArray, first: int, noise: Noise, bar: Bar) -> OwnChange | None:
    """The row that changed most at a column, if it passes."""
    columns = logs.shape[1]
    shift = changes(logs, slice(0, first), slice(first, columns))
    row = int(np.argmax(shift))
    effect, others = _beyond(shift, row)
    z = effect / math.hypot(noise.standard_error(first), noise.standard_error(columns - first))
    is_passed = effect >= max(math.log(bar.ratio), bar.apart * others) and z >= bar.z
    return OwnChange(row, first, effect, others, z) if is_passed else None


def _beyond(shift: FloatArray, row: int) -> tuple[float, float]:
    """A row's change beyond the others' median, and the largest of theirs about it."""
    rest = np.delete(shift, row)
    middle = float(np.median(rest))
    return float(shift[row]) - middle, float(np.abs(rest - middle).max())


def _is_lasting(logs: FloatArray, one: OwnChange) -> bool:
    """Whether the row stands out in every part of the columns since the change."""
    edges = np.linspace(one.first, logs.shape[1], BLOCKS + 1).astype(int)
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        effect, others = _beyond(changes(logs, slice(0, one.first), slice(begin, end)), one.row)
        if effect < max(LEAST_OF_BLOCK * one.effect, others):
            return False
    return True
