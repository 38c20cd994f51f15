"""Data that all ranks wait for: how much of the job's time loading takes on nearly all ranks that load, and when.

What counts is loading that holds a rank up: no more than what its other work and its waiting leave of the step (loading
beside these costs nothing), and of a later stage only what outlasts the first forward of the stages before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...profiler.vocabulary import ActionKind, SegmentKind
from ..cells import SegmentCells
from ..detect import BoolArray
from ..observations import Observations
from ..peers import FloatArray, IntArray, row_median
from ..verdict import Pattern
from .work import compute_cells, spans_per_step, work_ms

ALIKE = 0.25
"""Quantile of the loading ranks that stands for all: three of four load for so long at least."""

RAISED_SHARE = 0.05
"""Loading beyond the quiet columns, as a share of the usual step, from which on a column is one that stalls."""

STEADY = 0.8
"""Share of the columns of a stretch that stall where it is one stretch, and does not come and go."""


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading costs at the stage that it costs most, as shares (0 to 1) of the job's time.

    ``share`` is what it takes on nearly all of the ``rows``: positions of the ranks of ``stage`` that load (None where
    there are no stages). ``stalls`` is the part of it in columns that stand out, ``raised`` how many these are.
    ``first`` and ``last`` are the columns in which it costs, ``peak`` the longest. ``growth`` is the last third's over
    the first's, and ``grown`` the share that growth costs.
    """

    stage: int | None
    rows: IntArray
    share: float
    stalls: float
    raised: int
    peak: int
    first: int
    last: int
    growth: float
    grown: float
    pattern: Pattern


def loading_cells(seen: Observations) -> list[SegmentCells]:
    """The segments in which data is loaded."""
    return [one for one in seen.cells if one.kind == SegmentKind.DATA]


def loading(seen: Observations) -> Loading | None:
    """What loading costs; None where nobody loads, or steps have no time.

    Where waiting is not known, work of others may have gone on beside it: no more than this.
    """
    cells = loading_cells(seen)
    step_ms = seen.step_ms
    if not cells or not np.isfinite(step_ms).any():
        return None
    step_ms = np.where(np.isfinite(step_ms), step_ms, float(np.nanmedian(step_ms)))
    total = float(step_ms.sum())
    loads = np.asarray(sum((one.count.sum(axis=0) for one in cells), np.zeros(1)) > 0).any(axis=1)
    roles = seen.placement.roles(seen.ranks)
    held, before = held_ms(seen, cells, step_ms), filling_ms(seen, roles)
    best: tuple[float, int, IntArray] | None = None
    for stage in np.unique(roles[(roles >= 0) & loads]).tolist():
        rows = np.flatnonzero((roles == stage) & loads)
        held[rows] = np.maximum(held[rows] - before[stage], 0.0)
        level = nearly_all(held[rows].sum(axis=1))
        if best is None or level > best[0]:
            best = level, stage, rows
    if best is None or not total > 0 or not best[0] > 0:
        return None
    level, stage, rows = best
    return _course(held[rows], step_ms, rows, stage if len(np.unique(roles)) > 1 else None, level / total)


def held_ms(seen: Observations, cells: Sequence[SegmentCells], step_ms: FloatArray) -> FloatArray:
    """Loading per step that neither other work nor waiting goes on beside, [R, S]."""
    busy = np.zeros((len(seen.ranks), len(step_ms))) if seen.waits_ms is None else np.nan_to_num(seen.waits_ms)
    for one in seen.cells:
        if one.kind != SegmentKind.DATA:
            busy = busy + np.nan_to_num(one.per_step_ms())
    spent = sum((np.nan_to_num(one.per_step_ms()) for one in cells), np.zeros(busy.shape))
    held: FloatArray = np.minimum(spent, np.maximum(step_ms - busy, 0.0))
    return held


def filling_ms(seen: Observations, roles: IntArray) -> dict[int, float]:
    """By stage, how long the first micro-batch is under way to it: a forward of each stage before."""
    forwards = [one for one in compute_cells(seen) if one.name == ActionKind.FORWARD]
    if forwards:
        each = forwards[0].per_span_ms()
    else:  # all of a micro-batch's compute, which is more: what a later stage loads then counts less
        each = work_ms(seen) / spans_per_step(seen) if compute_cells(seen) else np.zeros((len(roles), 1))
    result, so_far = {}, 0.0
    for stage in np.unique(roles[roles >= 0]).tolist():
        result[stage] = so_far
        own = each[roles == stage]
        so_far += float(np.nanmedian(own)) if np.isfinite(own).any() else 0.0
    return result


def nearly_all(values: FloatArray) -> float:
    """What three of four of the values [n] reach: of up to four, the least."""
    return float(np.quantile(values, ALIKE, method="inverted_cdf"))


def _course(held: FloatArray, step_ms: FloatArray, rows: IntArray, stage: int | None, share: float) -> Loading:
    """How loading [n, S] is spread over the columns."""
    usual, total = float(np.median(step_ms)), float(step_ms.sum())
    typical = np.quantile(held, ALIKE, axis=0, method="inverted_cdf")
    quiet = float(np.quantile(typical, 0.25))
    raised = np.asarray(typical > max(2 * quiet, quiet + RAISED_SHARE * usual), np.bool_)
    stalls = float((typical - quiet)[raised].sum()) / total
    early, middle, late = (_third(held, part) for part in range(3))
    growth, grown = late / early if early > 0 else 1.0, max(share - early * held.shape[1] / total, 0.0)
    first, last, pattern = 0, held.shape[1] - 1, Pattern.CHRONIC
    if early > 0 and early + 0.2 * (late - early) < middle < late - 0.2 * (late - early) and _is_slope(typical, raised):
        pattern = Pattern.DRIFTING
    elif 2 * stalls >= share:
        first, last, pattern = _stretch(raised)
    elif float(np.median(row_median(held))) < 0.25 * float(np.median(held.mean(axis=1))):
        pattern = Pattern.INTERMITTENT  # each rank in steps of its own
    peak = int(np.argmax(typical))
    return Loading(stage, rows, share, stalls, int(raised.sum()), peak, first, last, growth, grown, pattern)


def _is_slope(typical: FloatArray, raised: BoolArray) -> bool:
    """Whether values [S] lie closer to a line than to one level where they stand out and another where not."""
    at = np.arange(len(typical))
    line = np.polyval(np.polyfit(at, typical, 1), at)
    levels = np.full(len(typical), float(typical[~raised].mean()) if not raised.all() else 0.0)
    if raised.any():
        levels[raised] = float(typical[raised].mean())
    return float(((typical - line) ** 2).sum()) < float(((typical - levels) ** 2).sum())


def _third(held: FloatArray, part: int) -> float:
    """Loading per step of nearly all ranks in a third of the columns, ms."""
    third = max(held.shape[1] // 3, 1)
    begin = (0, (held.shape[1] - third) // 2, held.shape[1] - third)[part]
    return nearly_all(held[:, begin : begin + third].mean(axis=1))


def _stretch(raised: BoolArray) -> tuple[int, int, Pattern]:
    """First and last of the columns that stand out, and whether they are one stretch."""
    at = np.flatnonzero(raised)
    first, last = int(at[0]), int(at[-1])
    if len(at) < STEADY * (last + 1 - first):
        return first, last, Pattern.INTERMITTENT
    return first, last, Pattern.CHRONIC if last + 1 >= 0.95 * len(raised) else Pattern.ONE_OFF
