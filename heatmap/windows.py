"""Rollups to numbers: rank by window of one segment, rank by segment over all steps; no raw span is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..collectors.reading.store import Attempt, Store
from ..collectors.rollups.histogram import cell_percentiles, row_percentiles
from ..collectors.rollups.windows import METRICS, WINDOW_STEPS
from ..profiler.errors import UsageError
from .cells import NS_PER_MS
from .peers import FloatArray, IntArray

FINEST = WINDOW_STEPS[0]
COARSEST = WINDOW_STEPS[-1]


@dataclass(frozen=True, slots=True)
class RankSegments:
    """Segments over all steps: names and kinds [K], ``values`` [R, K] in milliseconds, NaN where there is nothing."""

    ranks: IntArray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: FloatArray


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """One segment over ranks [R] and windows [W] of ``window_steps`` steps: count and sum in ns, [R, W] float64."""

    ranks: IntArray
    first_steps: IntArray
    window_steps: int
    count: FloatArray
    sum_ns: FloatArray


def segment_ids(store: Store, attempt: Attempt, names: Collection[str] = (), kinds: Collection[str] = ()) -> pa.Table:
    """Segments by name and kind: columns segment, name, kind; all where none are named."""
    table = store.query("SELECT segment, name, kind FROM segments ORDER BY name, kind", attempt=attempt)
    keep = [(not names or row["name"] in names) and (not kinds or row["kind"] in kinds) for row in table.to_pylist()]
    return table.filter(pa.array(keep, pa.bool_()))


def window_range(store: Store, attempt: Attempt, window_steps: int = FINEST) -> tuple[int, int] | None:
    """First step of the first and the last window of a length, of the segment that ran most often; None without any."""
    most = store.query(
        f"""SELECT segment FROM rank_windows WHERE window_steps = {COARSEST}
            GROUP BY segment ORDER BY sum(duration_count) DESC, segment LIMIT 1""",
        attempt=attempt,
    )["segment"].to_pylist()
    if not most:
        return None
    row = store.query(
        f"""SELECT min(first_step) AS low, max(first_step) AS high FROM rank_windows
            WHERE window_steps = {window_steps} AND segment = {most[0]}""",
        attempt=attempt,
    ).to_pylist()[0]
    return None if row["low"] is None else (int(row["low"]), int(row["high"]))


def load_grid(
    store: Store,
    attempt: Attempt,
    segments: Sequence[int],
    ranks: IntArray,
    first_steps: IntArray,
    *,
    metric: str = "self",
    window_steps: int = FINEST,
) -> WindowGrid:
    """Counts and sums of segments (added up) over the given ranks and windows; those of others are left out.

    ``metric`` is self, duration or exposed; ``ranks`` and ``first_steps`` ascend.
    """
    rows = _rows(store, attempt, segments, first_steps, window_steps, (f"{metric}_count", f"{metric}_sum_ns"))
    cell, keep = _cells(rows, ranks, first_steps, window_steps)
    shape = (len(ranks), len(first_steps))

    def summed(name: str) -> FloatArray:
        values = rows[name].to_numpy()[keep] if keep is not None else rows[name].to_numpy()
        return np.bincount(cell, values, shape[0] * shape[1]).astype(np.float64, copy=False).reshape(shape)

    return WindowGrid(ranks, first_steps, window_steps, summed(f"{metric}_count"), summed(f"{metric}_sum_ns"))


def grid_percentile(
    store: Store,
    attempt: Attempt,
    segments: Sequence[int],
    ranks: IntArray,
    first_steps: IntArray,
    q: float,
    *,
    metric: str = "self",
    window_steps: int = FINEST,
) -> FloatArray:
    """Percentile ``q`` (0 to 100) of segments over ranks and windows in milliseconds, [R, W], within 1 %."""
    rows = _rows(store, attempt, segments, first_steps, window_steps, (f"{metric}_bins", f"{metric}_bin_counts"))
    cell, keep = _cells(rows, ranks, first_steps, window_steps)
    if keep is not None:
        rows = rows.filter(pa.array(keep))
    size = len(ranks) * len(first_steps)
    found = histogram_percentiles(rows, cell, metric, q, size) / NS_PER_MS
    return found.reshape(len(ranks), len(first_steps))


def _rows(
    store: Store,
    attempt: Attempt,
    segments: Sequence[int],
    first_steps: IntArray,
    window_steps: int,
    columns: Sequence[str],
) -> pa.Table:
    if not len(segments) or not len(first_steps):
        segments, first_steps = [0], np.array([-1])  # a query without rows, but with the right columns
    wanted = ", ".join(str(int(segment)) for segment in segments)
    return store.query(
        f"""SELECT rank, first_step, {", ".join(columns)} FROM rank_windows
            WHERE window_steps = {window_steps} AND segment IN ({wanted})
                AND first_step BETWEEN {int(first_steps[0])} AND {int(first_steps[-1])}""",
        attempt=attempt,
    )


def _cells(
    rows: pa.Table, ranks: IntArray, first_steps: IntArray, window_steps: int
) -> tuple[IntArray, npt.NDArray[np.bool_] | None]:
    """Cell of every row in a matrix of ranks and windows, and which rows have one (None: all)."""
    rank, step = rows["rank"].to_numpy(), rows["first_step"].to_numpy()
    row, column = _places(rank, ranks, 1), _places(step, first_steps, window_steps)
    keep = (row >= 0) & (column >= 0)
    if keep.all():
        return row * len(first_steps) + column, None
    return (row * len(first_steps) + column)[keep], keep


def _places(values: npt.NDArray[Any], known: IntArray, width: int) -> IntArray:
    """Position of each value in ``known``, ascending multiples of ``width``; -1 where it is not there."""
    if not len(known) or not len(values):
        return np.full(len(values), -1, np.int64)
    low, size = int(known[0]) // width, (int(known[-1]) - int(known[0])) // width + 1
    table = np.full(size + 1, -1, np.int64)  # the last place stands for all that is not known
    table[known // width - low] = np.arange(len(known))
    places = (values if width == 1 else values // width) - low
    return table[np.minimum(places.astype(np.uint64), size)]  # what is below has become very large


def histogram_percentiles(rows: pa.Table, cell: IntArray, metric: str, q: float, size: int) -> FloatArray:
    """Percentile of the histograms of all rows of each cell, [size], in ns; NaN where a cell has no row.

    ``rows`` have the columns bins and bin_counts of a metric, ``cell`` says to which cell each row belongs.
    """
    result = np.full(size, np.nan)
    if not rows.num_rows:
        return result
    table = rows.combine_chunks()
    bins, counts = (table[f"{metric}_{part}"].chunk(0) for part in ("bins", "bin_counts"))
    lengths = bins.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values, weights = bins.flatten().to_numpy(), counts.flatten().to_numpy()
    if np.bincount(cell).max() > 1:
        return cell_percentiles(np.repeat(cell, lengths), values, weights, q, size)
    # A row a cell, as nearly always: no entry has to be moved.
    result[cell] = row_percentiles(np.concatenate([[0], np.cumsum(lengths)]), values, weights, q)
    return result


def rank_segments(
    store: Store, attempt: Attempt, ranks: IntArray, *, metric: str = "self", percentile: float | None = None
) -> RankSegments:
    """Every rank at every segment over all steps, from the coarsest windows: mean time per span, or a percentile.

    ``metric`` is self, duration or, for the mean only, exposed; ``ranks`` ascend. Raises UsageError for a percentile of
    exposed time, of which no histogram is kept.
    """
    if percentile is not None and metric not in METRICS:
        raise UsageError(f"Rollups have no percentiles of {metric} time: choose one of {', '.join(METRICS)}.")
    wanted = ("count", "sum_ns") if percentile is None else ("bins", "bin_counts")
    columns = ", ".join(f"{metric}_{part}" for part in wanted)
    sql = f"SELECT rank, segment, {columns} FROM rank_windows WHERE window_steps = {COARSEST}"
    rows = store.query(sql, attempt=attempt)
    keys, column = _segment_columns(segment_ids(store, attempt), rows["segment"].to_numpy())
    row = _places(rows["rank"].to_numpy(), ranks, 1)
    keep = (row >= 0) & (column >= 0)
    cell = (row * len(keys) + column)[keep]
    rows = rows if keep.all() else rows.filter(pa.array(keep))
    size = len(ranks) * len(keys)
    if percentile is None:
        count, total = (np.bincount(cell, rows[f"{metric}_{part}"].to_numpy(), size) for part in wanted)
        values = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    else:
        values = histogram_percentiles(rows, cell, metric, percentile, size)
    names, kinds = tuple(name for name, _ in keys), tuple(kind for _, kind in keys)
    return RankSegments(ranks, names, kinds, values.reshape(len(ranks), len(keys)) / NS_PER_MS)


def windows_of_segments(
    store: Store,
    attempt: Attempt,
    ranks: IntArray,
    first_steps: IntArray,
    kinds: Collection[str],
    *,
    metric: str = "self",
    window_steps: int = FINEST,
) -> tuple[list[str], FloatArray]:
    """Names of the segments of the given kinds [K], and mean time per span in milliseconds, [R, K, W]; NaN: no span."""
    known = segment_ids(store, attempt, kinds=kinds)
    columns = ("segment", f"{metric}_count", f"{metric}_sum_ns")
    rows = _rows(store, attempt, known["segment"].to_pylist(), first_steps, window_steps, columns)
    keys, column = _segment_columns(known, rows["segment"].to_numpy())
    row = _places(rows["rank"].to_numpy(), ranks, 1)
    window = _places(rows["first_step"].to_numpy(), first_steps, window_steps)
    keep = (row >= 0) & (column >= 0) & (window >= 0)
    shape = (len(ranks), len(keys), len(first_steps))
    cell = ((row * shape[1] + column) * shape[2] + window)[keep]
    count, total = (np.bincount(cell, rows[name].to_numpy()[keep], int(np.prod(shape))) for name in columns[1:])
    means = np.divide(total, count * NS_PER_MS, out=np.full(len(total), np.nan), where=count > 0)
    return [name for name, _ in keys], means.reshape(shape)


def _segment_columns(known: pa.Table, segments: npt.NDArray[Any]) -> tuple[list[tuple[str, str]], IntArray]:
    """Names and kinds of segments in order, and the place among them of each given identity; -1 for an unknown one."""
    pairs = list(zip(known["name"].to_pylist(), known["kind"].to_pylist(), strict=True))
    keys = sorted(set(pairs), key=str)
    identities = known["segment"].to_numpy()
    order = np.argsort(identities)
    if not len(order):
        return keys, np.full(len(segments), -1, np.int64)
    columns = np.array([keys.index(pair) for pair in pairs], np.int64)[order]
    found = np.minimum(np.searchsorted(identities[order], segments), len(order) - 1)
    return keys, np.where(identities[order][found] == segments, columns[found], -1)
