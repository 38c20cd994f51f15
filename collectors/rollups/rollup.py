"""Rows of ``rank_windows``: from spans in memory to a table, and the sums of windows that are not complete yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .windows import (
    METRICS,
    NO_LARGEST,
    NO_LEAST,
    UNKNOWN,
    WINDOW_STEPS,
    Summary,
    Windows,
    add_up,
    coarser,
    concatenate,
    select,
    windows_of_spans,
)


def window_rows(
    rank: npt.NDArray[Any] | int,
    segment: npt.NDArray[Any],
    step: npt.NDArray[Any],
    duration_ns: npt.NDArray[Any],
    self_ns: npt.NDArray[Any],
    exposed_ns: npt.NDArray[Any] | None = None,
) -> pa.Table:
    """Rows of ``rank_windows`` (without run and attempt) of spans, in windows of 10, 100 and 1000 steps.

    All arrays are [N] integers, times in ns, a negative number is a missing value; ``rank`` may be one number for all.
    Give only spans of status ok: the times of others are not to be trusted. A span without a step belongs to no window
    and is left out; one without a self time counts in duration_count and not in self_count. Rows of one key in several
    tables add up, so that spans may come in any pieces: a piece best holds whole windows.
    """
    return to_arrow(all_lengths(windows_of_spans(rank, segment, step, duration_ns, self_ns, exposed_ns)))


def all_lengths(shortest: Windows) -> Windows:
    """Windows of the shortest length, and the longer ones made of them."""
    levels = [shortest]
    for length in WINDOW_STEPS[1:]:
        levels.append(coarser(levels[-1], length))
    return concatenate(levels)


def to_arrow(windows: Windows) -> pa.Table:
    """Windows as rows of ``rank_windows``, without run and attempt.

    Least and largest of nothing are NULL, and so is everything that is not known.
    """
    columns = {
        "rank": pa.array(windows.rank.astype(np.int32)),
        "segment": pa.array(windows.segment),
        "window_steps": pa.array(windows.window_steps.astype(np.int32)),
        "first_step": pa.array(windows.first_step),
    }
    for metric, one in windows.summaries.items():
        columns |= {
            f"{metric}_count": _known(one.count),
            f"{metric}_sum_ns": _known(one.sum_ns),
            f"{metric}_min_ns": _known(one.min_ns, NO_LEAST),
            f"{metric}_max_ns": _known(one.max_ns, NO_LARGEST),
        }
    columns |= {"exposed_count": _known(windows.exposed_count), "exposed_sum_ns": _known(windows.exposed_sum_ns)}
    for metric, one in windows.summaries.items():
        offsets = pa.array(one.offsets.astype(np.int32))
        # Spans without any entry have a histogram that nobody told; no spans have an empty one.
        mask = pa.array((one.count != 0) & (np.diff(one.offsets) == 0))
        for part, values in (("bins", one.bins), ("bin_counts", one.bin_counts.astype(np.int32))):
            columns[f"{metric}_{part}"] = pa.ListArray.from_arrays(offsets, pa.array(values), mask=mask)
    return pa.table(columns)


def _known(values: npt.NDArray[np.int64], unknown: int = UNKNOWN) -> pa.Array:
    return pa.array(values, mask=values == unknown)


def from_arrow(rows: pa.Table) -> Windows:
    """The inverse of `to_arrow`; ``rows`` may have more columns, such as run and attempt."""
    table = rows.combine_chunks()
    names = ("rank", "segment", "window_steps", "first_step", "exposed_count", "exposed_sum_ns")
    columns = {name: _integers(table, name) for name in names}
    return Windows(summaries={metric: _summary(table, metric) for metric in METRICS}, **columns)


def _summary(table: pa.Table, metric: str) -> Summary:
    missing = {"count": UNKNOWN, "sum_ns": UNKNOWN, "min_ns": NO_LEAST, "max_ns": NO_LARGEST}
    scalars = {name: _integers(table, f"{metric}_{name}", value) for name, value in missing.items()}
    bins, counts = (_list(table, f"{metric}_{name}") for name in ("bins", "bin_counts"))
    lengths = bins.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    values = counts.flatten().to_numpy().astype(np.int64)
    return Summary(offsets=offsets, bins=bins.flatten().to_numpy().astype(np.int32), bin_counts=values, **scalars)


def _integers(table: pa.Table, name: str, missing: int = UNKNOWN) -> npt.NDArray[np.int64]:
    column = table[name]
    return np.asarray((column.fill_null(missing) if column.null_count else column).to_numpy(), np.int64)


def _list(table: pa.Table, name: str) -> pa.ListArray:
    column = table[name]
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def with_spans(windows: Windows, shortest: Windows) -> Windows:
    """Windows of all lengths, and more spans as windows of the shortest length, added up."""
    return add_up(concatenate([windows, all_lengths(shortest)]))


def split(windows: Windows, keep: npt.NDArray[np.bool_]) -> tuple[Windows, Windows]:
    """Windows that are kept, [R] bool, and the others."""
    return select(windows, keep), select(windows, ~keep)


def added_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted rows of one attempt in pieces: neighbours of one key become one, also across pieces; memory for one piece.

    The columns run and attempt are left out.
    """
    schema = to_arrow(concatenate([])).schema
    held: pa.Table | None = None
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
        rows = rows if held is None else pa.concat_tables([held, rows])
        if _has_neighbours_of_one_key(rows):
            rows = to_arrow(add_up(from_arrow(rows)))
        last = max(rows.num_rows - 1, 0)
        held = rows.slice(last)  # its key may go on in the next piece
        yield from rows.slice(0, last).combine_chunks().to_batches()
    if held is not None:
        yield from held.combine_chunks().to_batches()


def _has_neighbours_of_one_key(rows: pa.Table) -> bool:
    same = np.ones(max(rows.num_rows - 1, 0), bool)
    for name in ("rank", "first_step", "segment", "window_steps"):
        values = rows[name].to_numpy()
        same &= values[1:] == values[:-1]
    return bool(same.any())
