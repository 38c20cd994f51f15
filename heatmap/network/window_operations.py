"""Transfers from rollups: the least time that any member of a channel took in a window of steps.

In each operation the shortest duration among the members is the transfer (see `operations`). The least of a window over
all members is therefore the least transfer of the window, exactly: no clock and no single span is needed. Where a link
is slow all the time, that least is raised; where ranks only wait for each other, it is not. A link that is slow in a
part of a window shows in the least of the members' means alone, which bounds the mean transfer from above.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import PIPELINE_AXES, SegmentKind
from ..cells import NS_PER_MS
from ..peers import FloatArray, IntArray, Placement
from .channels import Channels, crosses_hosts, host_numbers, none_of

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class _Part:
    """Channels of one segment over all of its groups, before they are put together."""

    name: str
    sender: IntArray
    channel_of: IntArray
    rank_of: IntArray
    transfer_ms: FloatArray
    mean_ms: FloatArray
    per_step: FloatArray


@dataclass(frozen=True, slots=True)
class _Times:
    """Of one segment, least and mean durations in ms, [R, W], NaN for none; and spans a step of each rank, [R]."""

    least_ms: FloatArray
    mean_ms: FloatArray
    per_step: FloatArray


def load_window_channels(
    store: Store, attempt: Attempt, placement: Placement, ranks: IntArray, first_steps: IntArray, width: int
) -> Channels:
    """Channels between hosts, all of whose members are among ``ranks``, by windows: the least transfer of each."""
    if not len(first_steps) or not len(ranks):
        return none_of(first_steps, width)
    known = store.query(
        "SELECT segment, name, kind, axis FROM segments WHERE kind IN ('collective', 'p2p') AND axis IS NOT NULL",
        attempt=attempt,
    ).to_pylist()
    reader = _Windows(store, attempt, ranks, first_steps, width)
    parts = _pairs(known, placement, reader) + _groups(known, placement, reader)
    return _joined(parts, first_steps, width) if parts else none_of(first_steps, width)


class _Windows:
    """Reads the durations of one segment over ranks and windows."""

    def __init__(self, store: Store, attempt: Attempt, ranks: IntArray, first_steps: IntArray, width: int) -> None:
        self._store, self._attempt, self._width = store, attempt, width
        self.ranks, self.first_steps = ranks, first_steps

    def size_of(self, placement: Placement, axis: str) -> int:
        """Number of places on an axis, of all ranks of the job and not only of those that are looked at."""
        known = int(placement.coordinates[axis].max(initial=-1)) + 1
        return max(known, int(self._attempt.layout.get(axis, 0)))

    def times(self, segment: int) -> _Times:
        """The times of one segment."""
        rows = self._store.query(
            f"""SELECT rank, first_step, duration_min_ns AS least, duration_sum_ns AS total,
                    duration_count AS spans FROM rank_windows
                WHERE window_steps = {self._width} AND segment = {int(segment)}
                    AND first_step BETWEEN {int(self.first_steps[0])} AND {int(self.first_steps[-1])}
                    AND duration_count > 0""",
            attempt=self._attempt,
        )
        shape = (len(self.ranks), len(self.first_steps))
        row, column, keep = self._places(rows)
        least = np.full(shape, np.inf)
        cell = row * shape[1] + column
        values = rows["least"].to_numpy()[keep] / NS_PER_MS
        total, spans = (
            np.bincount(cell, rows[name].to_numpy()[keep], least.size).reshape(shape) for name in ("total", "spans")
        )
        if not len(cell) or np.bincount(cell).max() == 1:
            least.reshape(-1)[cell] = values
        else:
            np.minimum.at(least.reshape(-1), cell, values)
        mean = np.divide(total, spans * NS_PER_MS, out=np.full(shape, np.nan), where=spans > 0)
        return _Times(np.where(np.isfinite(least), least, np.nan), mean, np.median(spans, axis=1) / self._width)

    def _places(self, rows: pa.Table) -> tuple[IntArray, IntArray, IntArray]:
        rank, step = rows["rank"].to_numpy(), rows["first_step"].to_numpy()
        row = np.minimum(np.searchsorted(self.ranks, rank), len(self.ranks) - 1)
        column = np.minimum(np.searchsorted(self.first_steps, step), len(self.first_steps) - 1)
        keep = np.flatnonzero((self.ranks[row] == rank) & (self.first_steps[column] == step))
        return row[keep], column[keep], keep


def _pairs(known: list[dict[str, object]], placement: Placement, reader: _Windows) -> list[_Part]:
    """Channels of the pipeline: what a rank sends, and its neighbour receives.

    A rank has one neighbour a direction: the next stage, cyclically, at the same place on all other axes.
    """
    names = {str(row["name"]): row for row in known if row["kind"] == SegmentKind.P2P and row["axis"] in PIPELINE_AXES}
    parts = []
    for direction in DIRECTIONS:
        sends = next((name for name in names if "send" in name and direction in name), None)
        receives = next((name for name in names if "rec" in name and direction in name), None)
        neighbour = _neighbours(placement, reader, 1 if direction == "forward" else -1)
        if sends is None or receives is None or neighbour is None:
            continue
        hosts = host_numbers(placement, reader.ranks)
        place = np.maximum(neighbour, 0)
        row = np.flatnonzero((neighbour >= 0) & (hosts != hosts[place]) & (hosts >= 0) & (hosts[place] >= 0))
        if not len(row):
            continue
        sent, received = (reader.times(int(str(names[name]["segment"]))) for name in (sends, receives))
        transfer = np.minimum(sent.least_ms[row], received.least_ms[place[row]])  # NaN unless both have it
        mean = np.minimum(sent.mean_ms[row], received.mean_ms[place[row]])
        used = np.isfinite(transfer).any(axis=1)
        row, count = row[used], int(used.sum())
        both = np.stack([reader.ranks[row], reader.ranks[place[row]]], axis=1).reshape(-1)
        channel_of = np.repeat(np.arange(count), 2)
        parts.append(_Part(sends, reader.ranks[row], channel_of, both, transfer[used], mean[used], sent.per_step[row]))
    return parts


def _neighbours(placement: Placement, reader: _Windows, step: int) -> IntArray | None:
    """Place among the reader's ranks of each one's neighbour ``step`` stages on, cyclically, [R]; -1 for none."""
    ranks, pipeline = reader.ranks, placement.stage_axis
    if pipeline is None or not len(ranks):
        return None
    axes = sorted(placement.coordinates)
    index = np.stack([placement.coordinate(axis, ranks) for axis in axes])
    sizes = np.array([reader.size_of(placement, axis) for axis in axes])
    if (index < 0).any() or sizes[axes.index(pipeline)] < 2:
        return None
    cell = np.ravel_multi_index(tuple(index), tuple(sizes))
    moved = index.copy()
    stage = axes.index(pipeline)
    moved[stage] = (index[stage] + step) % sizes[stage]
    table = np.full(int(np.prod(sizes)), -1, np.int64)
    table[cell] = np.arange(len(ranks))
    neighbours: IntArray = table[np.ravel_multi_index(tuple(moved), tuple(sizes))]
    return neighbours


def _groups(known: list[dict[str, object]], placement: Placement, reader: _Windows) -> list[_Part]:
    """Channels of collectives: the ranks that differ on the segment's axis alone, where they are on several hosts."""
    parts = []
    hosts = host_numbers(placement, reader.ranks)
    for row in known:
        axis = str(row["axis"])
        if row["kind"] != SegmentKind.COLLECTIVE or axis not in placement.coordinates:
            continue
        group = _lines(placement, reader.ranks, axis)
        count = int(group.max()) + 1
        members = np.bincount(group, minlength=count)
        whole = crosses_hosts(group, hosts, count) & (members > 1) & (members == reader.size_of(placement, axis))
        if not whole.any():
            continue
        times = reader.times(int(str(row["segment"])))
        order = np.argsort(group, kind="stable")
        begins = np.searchsorted(group[order], np.arange(count))
        transfer, mean = (  # NaN unless all members have it
            np.minimum.reduceat(values[order], begins, axis=0) for values in (times.least_ms, times.mean_ms)
        )
        used = whole & np.isfinite(transfer).any(axis=1)
        if not used.any():
            continue
        kept = used[group[order]]
        channel_of = (np.cumsum(used) - 1)[group[order][kept]]
        members, nobody = reader.ranks[order][kept], np.full(int(used.sum()), -1, np.int64)
        spans = times.per_step[order][begins][used]
        parts.append(_Part(str(row["name"]), nobody, channel_of, members, transfer[used], mean[used], spans))
    return parts


def _lines(placement: Placement, ranks: IntArray, axis: str) -> IntArray:
    """Number of the line along an axis that each rank lies on, [R]."""
    others = [placement.coordinate(name, ranks) for name in sorted(placement.coordinates) if name != axis]
    if not others:
        return np.zeros(len(ranks), np.int64)
    sizes = tuple(int(one.max()) + 2 for one in others)
    cell = np.ravel_multi_index(tuple(one + 1 for one in others), sizes)
    _, lines = np.unique(cell, return_inverse=True)
    return lines.reshape(-1)


def _joined(parts: list[_Part], first_steps: IntArray, width: int) -> Channels:
    """All parts as one; what a channel carries in its kind is its segment, with as many members."""
    counts = np.array([len(part.sender) for part in parts])
    base = np.cumsum(counts) - counts
    segment = np.repeat(np.arange(len(parts)), counts)
    channel_of = np.concatenate([part.channel_of + at for part, at in zip(parts, base, strict=True)])
    size = np.bincount(channel_of, minlength=int(counts.sum()))
    _, kind = np.unique(np.stack([segment, size]), axis=1, return_inverse=True)
    return Channels(
        tuple(part.name for part in parts), segment, np.full(len(segment), -1, np.int64),
        np.concatenate([part.sender for part in parts]), kind.reshape(-1),
        np.concatenate([part.per_step for part in parts]), channel_of,
        np.concatenate([part.rank_of for part in parts]), first_steps, width,
        np.concatenate([part.transfer_ms for part in parts]), False, np.concatenate([part.mean_ms for part in parts]),
    )  # fmt: skip
