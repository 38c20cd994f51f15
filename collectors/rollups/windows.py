"""Rollup rows as numpy arrays: made of spans, made coarser, added up, turned into Arrow and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .histogram import bins_of

WINDOW_STEPS = (10, 100, 1000)
"""Lengths of the windows, each a multiple of the one before."""

METRICS = ("duration", "self")

UNKNOWN = -1
NO_LEAST, NO_LARGEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_DENSE_PER_ROW = 64
"""A table of all possible keys is made where it has at most so many places for each value; else keys are sorted."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Summary:
    """Count, sum, least and largest value [R] of a time in ns, and its log-histograms: those of row r are
    ``bins[offsets[r]:offsets[r + 1]]``, ascending, with their counts.

    A count or sum that is not known is `UNKNOWN`. Least and largest of nothing, or not known, are `NO_LEAST` and
    `NO_LARGEST`, which add up with others as nothing would.
    """

    count: IntArray
    sum_ns: IntArray
    min_ns: IntArray
    max_ns: IntArray
    offsets: IntArray
    bins: npt.NDArray[np.int32]
    bin_counts: IntArray

    def entry_rows(self) -> IntArray:
        """Row of every entry (bin, count) of the histograms, [E]."""
        return np.repeat(np.arange(len(self.count)), np.diff(self.offsets))


@dataclass(frozen=True, slots=True)
class Windows:
    """Rows of ``rank_windows``: keys [R], a `Summary` for each of `METRICS`, count and sum of exposed time [R]
    (`UNKNOWN` where they are not known)."""

    rank: IntArray
    segment: IntArray
    window_steps: IntArray
    first_step: IntArray
    summaries: dict[str, Summary]
    exposed_count: IntArray
    exposed_sum_ns: IntArray

    def __len__(self) -> int:
        return len(self.rank)


def sum_by(place: IntArray, values: npt.NDArray[Any], count: int) -> IntArray:
    """Exact sums of integers that belong to ``count`` places."""
    result = np.zeros(count, np.int64)
    np.add.at(result, place, values)
    return result


def _sum_known(place: IntArray, values: IntArray, count: int) -> IntArray:
    """Sums of the values that are known; `UNKNOWN` where none is, as in SQL."""
    known = values != UNKNOWN
    if known.all():
        return sum_by(place, values, count)
    result = sum_by(place[known], values[known], count)
    result[np.bincount(place[known], minlength=count) == 0] = UNKNOWN
    return result


def numbered(key: IntArray, space: int) -> tuple[IntArray, IntArray]:
    """Distinct keys, ascending, and the number of each entry's key among them; keys are 0 to ``space`` - 1."""
    if space > _DENSE_PER_ROW * len(key) + 65536:
        distinct, place = np.unique(key, return_inverse=True)
        return distinct, place
    numbers = np.zeros(space, np.int64)
    numbers[key] = 1
    distinct = np.flatnonzero(numbers)
    numbers[distinct] = np.arange(len(distinct))
    return distinct, numbers[key]


def _ragged(place: IntArray, bins: npt.NDArray[np.int32], weights: IntArray | None, rows: int) -> tuple[Any, Any, Any]:
    """Histograms of ``rows`` places from (place, bin) entries: offsets, bins, counts. A weight None counts as 1."""
    if not len(bins):
        return np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
    low = int(bins.min())
    width = int(bins.max()) - low + 1
    key, space = place * width + (bins - low), rows * width
    if space <= _DENSE_PER_ROW * len(key) + 65536:
        dense = np.bincount(key, minlength=space) if weights is None else sum_by(key, weights, space)
        found = np.flatnonzero(dense)
        counts = dense[found]
    else:
        found, inverse = np.unique(key, return_inverse=True)
        counts = np.bincount(inverse) if weights is None else sum_by(inverse, weights, len(found))
    offsets = np.searchsorted(found, np.arange(rows + 1) * width)
    return offsets, (found % width + low).astype(np.int32), counts


def summarize(place: IntArray, values: IntArray, bins: npt.NDArray[np.int32], rows: int) -> Summary:
    """Summary of times (all there, ns) that belong to ``rows`` places."""
    least, largest = np.full(rows, NO_LEAST), np.full(rows, NO_LARGEST)
    np.minimum.at(least, place, values)
    np.maximum.at(largest, place, values)
    count = np.bincount(place, minlength=rows)
    return Summary(count, sum_by(place, values, rows), least, largest, *_ragged(place, bins, None, rows))


def windows_of_spans(
    rank: npt.NDArray[Any] | int,
    segment: npt.NDArray[Any],
    step: npt.NDArray[Any],
    duration_ns: npt.NDArray[Any],
    self_ns: npt.NDArray[Any],
    exposed_ns: npt.NDArray[Any] | None = None,
    window_steps: int = WINDOW_STEPS[0],
) -> Windows:
    """Windows of spans; all arrays [N], a negative number is a missing value.

    A span without a step is left out; one whose time is missing counts only in the sums that it has.
    """
    step = np.asarray(step, np.int64)
    if len(step) and step.min() < 0:
        keep = step >= 0
        rank = rank if isinstance(rank, (int, np.integer)) else rank[keep]
        segment, step, duration_ns, self_ns = segment[keep], step[keep], duration_ns[keep], self_ns[keep]
        exposed_ns = None if exposed_ns is None else exposed_ns[keep]
    keys, place = _span_keys(rank, segment, step, window_steps)
    rows = len(keys[0])
    own_bins = bins_of(duration_ns)
    other = np.flatnonzero(self_ns != duration_ns)
    self_bins = own_bins.copy() if len(other) else own_bins
    self_bins[other] = bins_of(self_ns[other])  # most spans have no children: their logarithm is known
    summaries = {
        metric: _summary_of_known(place, np.asarray(values, np.int64), bins, rows)
        for metric, values, bins in (("duration", duration_ns, own_bins), ("self", self_ns, self_bins))
    }
    if exposed_ns is None:
        none = np.zeros(rows, np.int64)
        return Windows(*keys, summaries, none, none)
    waited = np.flatnonzero(exposed_ns >= 0)
    counts = np.bincount(place[waited], minlength=rows)
    return Windows(*keys, summaries, counts, sum_by(place[waited], exposed_ns[waited], rows))


def _summary_of_known(place: IntArray, values: IntArray, bins: npt.NDArray[np.int32], rows: int) -> Summary:
    if len(values) and values.min() < 0:
        known = values >= 0
        place, values, bins = place[known], values[known], bins[known]
    return summarize(place, values, bins, rows)


def _span_keys(
    rank: npt.NDArray[Any] | int, segment: npt.NDArray[Any], step: IntArray, window_steps: int
) -> tuple[tuple[IntArray, IntArray, IntArray, IntArray], IntArray]:
    """Key columns of the windows that occur, and each span's window."""
    encoded = pa.array(segment).dictionary_encode()
    segments, place = encoded.dictionary.to_numpy().astype(np.int64), encoded.indices.to_numpy()
    window = step // window_steps
    first, last = (int(window.min()), int(window.max())) if len(window) else (0, 0)
    count, key = last - first + 1, window - first
    if isinstance(rank, (int, np.integer)):
        low, ranks = int(rank), 1
    else:
        low = int(rank.min()) if len(rank) else 0
        ranks = int(rank.max()) - low + 1 if len(rank) else 1
        key = key * ranks + (rank - low)
    key = key + place * (count * ranks)
    distinct, place = numbered(key, len(segments) * count * ranks)
    rows = (
        distinct % ranks + low,
        segments[distinct // (count * ranks)],
        np.full(len(distinct), window_steps, np.int64),
        (distinct // ranks % count + first) * window_steps,
    )
    return rows, place


def coarser(windows: Windows, window_steps: int) -> Windows:
    """The same in longer windows, of which the given ones' lengths are factors."""
    first = windows.first_step // window_steps * window_steps
    length = np.full(len(windows), window_steps, np.int64)
    return add_up(
        Windows(
            windows.rank, windows.segment, length, first,
            windows.summaries, windows.exposed_count, windows.exposed_sum_ns,
        )
    )  # fmt: skip


def add_up(windows: Windows) -> Windows:
    """Rows of one key become one. The result is sorted by window_steps, segment, first_step and rank."""
    place = _numbers_of_keys((windows.window_steps, windows.segment, windows.first_step, windows.rank))
    rows = int(place.max()) + 1 if len(place) else 0
    at = np.zeros(rows, np.int64)
    at[place] = np.arange(len(place))
    return Windows(
        windows.rank[at], windows.segment[at], windows.window_steps[at], windows.first_step[at],
        {metric: _add_summaries(place, one, rows) for metric, one in windows.summaries.items()},
        _sum_known(place, windows.exposed_count, rows), _sum_known(place, windows.exposed_sum_ns, rows),
    )  # fmt: skip


def _numbers_of_keys(columns: Sequence[IntArray]) -> IntArray:
    """The number of every row's key among the distinct keys in order, the first column being the most significant."""
    key, space = np.zeros(len(columns[0]), np.int64), 1
    for values in columns if len(key) else ():
        low, size = int(values.min()), int(values.max()) - int(values.min()) + 1
        if size > 2**31:  # identities, which are spread over all of 64 bits
            distinct, column = np.unique(values, return_inverse=True)
            size = len(distinct)
        else:
            column = values - low
        if space * size > 2**62:
            distinct, key = np.unique(key, return_inverse=True)
            space = len(distinct)
        key, space = key * size + column, space * size
    return np.unique(key, return_inverse=True)[1]


def _add_summaries(place: IntArray, one: Summary, rows: int) -> Summary:
    least, largest = np.full(rows, NO_LEAST), np.full(rows, NO_LARGEST)
    np.minimum.at(least, place, one.min_ns)
    np.maximum.at(largest, place, one.max_ns)
    ragged = _ragged(place[one.entry_rows()], one.bins, one.bin_counts, rows)
    return Summary(_sum_known(place, one.count, rows), _sum_known(place, one.sum_ns, rows), least, largest, *ragged)


def concatenate(parts: Sequence[Windows]) -> Windows:
    """All rows of several, one behind the other; keys that occur in several are not added up."""
    if not parts:
        none = np.zeros(0, np.int64)
        return windows_of_spans(0, none, none, none, none)
    names = ("rank", "segment", "window_steps", "first_step", "exposed_count", "exposed_sum_ns")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    summaries = {metric: _join([part.summaries[metric] for part in parts]) for metric in METRICS}
    return Windows(summaries=summaries, **columns)


def _join(parts: Sequence[Summary]) -> Summary:
    names = ("count", "sum_ns", "min_ns", "max_ns", "bins", "bin_counts")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Summary(offsets=np.concatenate([[0], np.cumsum(lengths)]), **columns)


def select(windows: Windows, keep: npt.NDArray[np.bool_]) -> Windows:
    """The rows that are kept, [R] bool."""
    names = ("rank", "segment", "window_steps", "first_step", "exposed_count", "exposed_sum_ns")
    columns = {name: getattr(windows, name)[keep] for name in names}
    return Windows(summaries={metric: _pick(one, keep) for metric, one in windows.summaries.items()}, **columns)


def _pick(one: Summary, keep: npt.NDArray[np.bool_]) -> Summary:
    lengths = np.diff(one.offsets)
    entries = np.repeat(keep, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[keep])])
    return Summary(
        one.count[keep], one.sum_ns[keep], one.min_ns[keep], one.max_ns[keep],
        offsets, one.bins[entries], one.bin_counts[entries],
    )  # fmt: skip
