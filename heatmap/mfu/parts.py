"""What a step's time is made of, column by column: own time of every segment, waiting by axis, and who was awaited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import WAITING_KINDS, SegmentKind
from ..cells import SegmentCells, load_cells, pivot
from ..matrix import load_placement
from ..peers import FloatArray, IntArray, column_median, peers_median
from ..source import Choice, Source
from ..window_cells import ranks_of, segment_cells

WORK = tuple(str(kind) for kind in SegmentKind if kind not in WAITING_KINDS)
WAITS = tuple(sorted(str(kind) for kind in WAITING_KINDS))

BoolArray = npt.NDArray[np.bool_]

PAUSES = frozenset({SegmentKind.GC, SegmentKind.DATA, SegmentKind.HOST})
"""Work that ranks do in steps of their own: averages over windows hide how long the longest of each step was."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """What steps are made of. A column is a step, or a window of ``width`` steps, from ``first`` [S] on.

    ``names`` and ``kinds`` [K] are the segments of work; times are milliseconds per step. ``own_ms`` [K, S]: the mean
    rank's. ``stage_ms`` [P, K, S]: the median rank's of each stage. ``awaited_ms`` [K, S]: by how much the rank that
    waits least takes longer than its stage's others, as far as they wait longer than it. ``waits_ms`` [A, S]: the mean
    rank's exposed time in communication by axis. NaN where a column has no data.
    """

    first: IntArray
    width: int
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    own_ms: FloatArray
    stage_ms: FloatArray
    awaited_ms: FloatArray
    waits_ms: FloatArray


def load_parts(
    store: Store, attempt: Attempt, choice: Choice, steps: tuple[int, int] | None = None
) -> StepParts | None:
    """Parts of an attempt's steps from what `choose_source` chose; None where no span of work was timed."""
    placement = load_placement(store, attempt)
    if choice.source == Source.ROLLUPS:
        ranks, windows = ranks_of(store, attempt, placement), choice.first_steps(steps)
        width = choice.step_width
        work = segment_cells(store, attempt, ranks, windows, kinds=WORK, width=width)
        waits = segment_cells(store, attempt, ranks, windows, metric="exposed", kinds=WAITS, width=width)
    else:
        tables = [
            load_cells(store, attempt, metric=metric, kinds=kinds, steps=steps)
            for metric, kinds in (("self", WORK), ("exposed", WAITS))
        ]
        work, waits = _on_one_grid(tables)
        ranks, width = work[0].ranks if work else np.zeros(0, np.int64), 1
    if not work:
        return None
    return _parts(work, waits, placement.roles(ranks), _axes_of(store, attempt), width)


def _on_one_grid(tables: Sequence[pa.Table]) -> tuple[list[SegmentCells], list[SegmentCells]]:
    """Cells of work and of waiting over the same ranks and steps."""
    both = pivot(pa.concat_tables(tables))
    waiting = set(WAITS)
    return [one for one in both if one.kind not in waiting], [one for one in both if one.kind in waiting]


def _axes_of(store: Store, attempt: Attempt) -> dict[tuple[str, str], str]:
    """Axis of each segment of communication, by name and kind; one without an axis stands for itself."""
    rows = store.query("SELECT name, kind, max(axis) AS axis FROM segments GROUP BY ALL", attempt=attempt).to_pylist()
    return {(row["name"], row["kind"]): row["axis"] or row["name"] for row in rows if row["kind"] in WAITS}


def _parts(
    work: list[SegmentCells],
    waits: list[SegmentCells],
    roles: IntArray,
    axis_of: dict[tuple[str, str], str],
    width: int,
) -> StepParts:
    has = np.logical_or.reduce([one.count.sum(axis=0) > 0 for one in work])
    own = np.stack([_filled(one, has) for one in work])
    axes = sorted({axis_of.get((one.name, one.kind), one.name) for one in waits})
    waited = np.zeros((len(axes), *has.shape))
    for one in waits:
        waited[axes.index(axis_of.get((one.name, one.kind), one.name))] += np.nan_to_num(_filled(one, has))
    waited = np.where(has, waited, np.nan)
    awaited = _awaited(own, waited.sum(axis=0), roles) if axes else np.zeros((len(work), has.shape[1]))
    if width == 1 and axes:
        awaited = _carried_on(awaited, own, waited.sum(axis=0), roles, work[0].steps)
    if width > 1:
        awaited = np.maximum(awaited, np.stack([_longest_pauses(one, has) for one in work]))
    stages = [stage for stage in np.unique(roles) if stage >= 0]
    stage_ms = np.stack([np.stack([column_median(one[roles == stage]) for one in own]) for stage in stages])
    names, kinds = tuple(one.name for one in work), tuple(one.kind for one in work)
    mean_own, mean_waits = _mean(own), _mean(waited)
    return StepParts(work[0].steps, width, names, kinds, tuple(axes), mean_own, stage_ms, awaited, mean_waits)


def _filled(one: SegmentCells, has: BoolArray) -> FloatArray:
    """Milliseconds per step, [R, S]: 0 where a rank did other work in the step, NaN where it has no data."""
    result: FloatArray = np.where(has, np.nansum(one.total_ms, axis=0), np.nan)
    return result


def _mean(values: FloatArray) -> FloatArray:
    """Mean over the ranks with data, [K, R, S] -> [K, S]."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    result: FloatArray = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return result


def _awaited(own: FloatArray, waited: FloatArray, roles: IntArray) -> FloatArray:
    """Excess of the awaited rank over its stage's others, [K, S], from own [K, R, S] and waited [R, S] times.

    Whom the others wait for waits least. What it takes longer than they do is what they wait for: no more of it than
    they wait longer. Needs no clocks that agree between hosts.
    """
    shorter = peers_median(waited, roles) - waited
    result = np.zeros((own.shape[0], own.shape[2]))
    usable = np.where(np.isfinite(shorter), shorter, -np.inf)
    for column in np.flatnonzero(usable.max(axis=0, initial=-np.inf) > 0):
        rank = int(np.argmax(usable[:, column]))
        others = np.flatnonzero((roles == roles[rank]) & np.isfinite(waited[:, column]))
        others = others[others != rank]
        excess = np.maximum(own[:, rank, column] - np.median(own[:, others, column], axis=1), 0.0)
        total = excess.sum()
        if total > 0:
            result[:, column] = excess * min(1.0, usable[rank, column] / total)
    return result


def _carried_on(
    awaited: FloatArray, own: FloatArray, waited: FloatArray, roles: IntArray, steps: IntArray
) -> FloatArray:
    """The same with what is awaited a step later: who is late at a step's end (a checkpoint) is awaited in the next.

    What the awaited rank of two steps together takes longer, beyond what each step shows by itself, is the second's.
    """
    if len(steps) < 2:
        return awaited
    both = _awaited(own[..., :-1] + own[..., 1:], waited[:, :-1] + waited[:, 1:], roles)
    more = np.maximum(both - awaited[:, :-1] - awaited[:, 1:], 0.0) * (np.diff(steps) == 1)
    result = awaited.copy()
    result[:, 1:] += more
    return result


def _longest_pauses(one: SegmentCells, has: BoolArray) -> FloatArray:
    """How much longer the longest pause of a step is than the mean rank's, [S], from averages over windows.

    With pauses in steps that ranks choose on their own, a step has one with probability 1 - prod(1 - pauses of a rank
    per step), and then waits for a usual one: an estimate, which takes no part of the waiting that did not grow.
    """
    if SegmentKind(one.kind) not in PAUSES:
        return np.zeros(has.shape[1])
    count, total = one.count.sum(axis=0), np.nansum(one.total_ms, axis=0)
    spans = count.sum(axis=0)
    usual = np.divide(total.sum(axis=0), spans, out=np.zeros(len(spans)), where=spans > 0)
    with np.errstate(divide="ignore"):
        hit = 1.0 - np.exp(np.log1p(-np.minimum(count, 1.0)).sum(axis=0))
    mean = total.sum(axis=0) / np.maximum(has.sum(axis=0), 1)
    result: FloatArray = np.maximum(hit * usual - mean, 0.0)
    return result
