"""Channels: what carries transfers (a pair of ranks one way, or a group), and how slow each is beside its like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..peers import FloatArray, IntArray, Placement

BoolArray = npt.NDArray[np.bool_]

TRIM_RATIO = 1.5
"""Channels up to this ratio to the lower quartile make the yardstick: that holds where most of a class are slow."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Channels [C] and the typical transfer time of each by step or window, ``transfer_ms`` [C, S], NaN for none.

    ``segment`` [C] is the place of the channel's segment in ``names``; ``group`` [C] is its group's identity, or -1;
    ``sender`` [C] the sending rank of p2p, -1 for a collective. Channels of one ``kind`` [C] carry the same (segment,
    payload, number of members), so that they are compared. Members are pairs (``channel_of``, ``rank_of``) [M], sorted
    by channel. ``exact``: each is the median of single operations; else of a window: the least transfer, or with
    ``by_mean`` a bound of the mean transfer. ``mean_ms`` [C, S] holds those bounds, None where spans were read.
    ``per_step`` [C] is the number of operations in a step; ``inside``: they join ranks of one host, else several hosts.
    """

    names: tuple[str, ...]
    segment: IntArray
    group: IntArray
    sender: IntArray
    kind: IntArray
    per_step: FloatArray
    channel_of: IntArray
    rank_of: IntArray
    steps: IntArray
    step_width: int
    transfer_ms: FloatArray
    exact: bool = True
    mean_ms: FloatArray | None = None
    by_mean: bool = False
    inside: bool = False

    def __len__(self) -> int:
        return len(self.segment)

    def members(self, channel: int) -> IntArray:
        """Ranks of a channel."""
        low, high = np.searchsorted(self.channel_of, [channel, channel + 1])
        return self.rank_of[low:high]

    def chosen(self, keep: BoolArray) -> Channels:
        """Some of the channels, numbered anew."""
        numbers = np.cumsum(keep) - 1
        of_kept = keep[self.channel_of]
        return Channels(
            self.names, self.segment[keep], self.group[keep], self.sender[keep], self.kind[keep], self.per_step[keep],
            numbers[self.channel_of[of_kept]], self.rank_of[of_kept], self.steps, self.step_width,
            self.transfer_ms[keep], self.exact, None if self.mean_ms is None else self.mean_ms[keep], self.by_mean,
            self.inside,
        )  # fmt: skip

    def means(self) -> Channels | None:
        """The same with the bounds of the mean transfers; None where there are none."""
        return None if self.mean_ms is None else replace(self, transfer_ms=self.mean_ms, by_mean=True)


def none_of(steps: IntArray, width: int) -> Channels:
    """No channels at all."""
    empty = np.zeros(0, np.int64)
    nothing = np.zeros((0, len(steps)))
    return Channels((), empty, empty, empty, empty, np.zeros(0), empty, empty, steps, width, nothing)


def host_numbers(placement: Placement, ranks: IntArray) -> IntArray:
    """Number of the host of each rank, [N]; -1 where the host is not known."""
    _, numbers = np.unique(np.asarray(placement.hosts, dtype=object).astype(str), return_inverse=True)
    at = placement.at(ranks)
    return np.where(at >= 0, numbers.reshape(-1)[at], -1) if len(numbers) else np.full(len(ranks), -1, np.int64)


def crosses_hosts(groups: IntArray, hosts: IntArray, count: int) -> BoolArray:
    """Which of ``count`` groups have members on several hosts: (group, host number) pairs [M] -> [count].

    A member whose host is not known makes its group one that does not: nothing can be said of it.
    """
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(lowest, groups, hosts)
    np.maximum.at(highest, groups, hosts)
    crosses: BoolArray = (highest > lowest) & (lowest >= 0)
    return crosses


def stays_inside(groups: IntArray, hosts: IntArray, count: int) -> BoolArray:
    """Which of ``count`` groups have all their members on one host that is known: pairs [M] -> [count]."""
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(lowest, groups, hosts)
    np.maximum.at(highest, groups, hosts)
    stays: BoolArray = (highest == lowest) & (lowest >= 0)
    return stays


def usual_ms(channels: Channels) -> FloatArray:
    """What a channel of its kind usually takes, [C, S]: the median of those near the lower quartile of the kind.

    NaN for a kind of a single channel: it has no like to be compared with.
    """
    result = np.full_like(channels.transfer_ms, np.nan)
    order = np.argsort(channels.kind, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(channels.kind[order]) != 0]) if len(order) else np.zeros(0, np.int64)
    for rows in np.split(order, begins[1:]):
        if len(rows) >= 2:
            result[rows] = _usual(channels.transfer_ms[rows])
    return result


def _usual(values: FloatArray) -> FloatArray:
    """The yardstick of one kind, [C, S] -> [S]."""
    ordered = np.sort(values, axis=0)  # NaN goes last
    known = np.isfinite(ordered).sum(axis=0)
    columns = np.arange(values.shape[1])
    quartile = ordered[np.maximum((known - 1) // 4, 0), columns]
    near = (ordered <= TRIM_RATIO * quartile).sum(axis=0)
    low, high = np.maximum((near - 1) // 2, 0), np.minimum(near // 2, len(values) - 1)
    middle: FloatArray = np.where(known >= 2, 0.5 * (ordered[low, columns] + ordered[high, columns]), np.nan)
    return middle


def hosts_without_like(channels: Channels, placement: Placement) -> tuple[str, ...]:
    """Hosts that touch so many channels of every kind that what is usual cannot be told without them."""
    hosts = host_numbers(placement, channels.rank_of)
    pairs = np.unique(np.stack([channels.channel_of, hosts]), axis=1)
    count = int(hosts.max(initial=-1)) + 1
    kinds = int(channels.kind.max(initial=-1)) + 1
    touched = np.zeros((kinds, count), np.int64)
    np.add.at(touched, (channels.kind[pairs[0]], pairs[1]), 1)
    total = np.bincount(channels.kind, minlength=kinds)[:, None]
    has_like = ((touched > 0) & (total - touched > (total - 1) // 4)).any(axis=0)
    names = np.unique(np.asarray(placement.hosts, dtype=object).astype(str))
    return tuple(str(names[at]) for at in np.flatnonzero((touched > 0).any(axis=0) & ~has_like))


def log_ratios(channels: Channels) -> FloatArray:
    """log(transfer / what its kind usually takes), [C, S]; NaN where either is missing."""
    usual = usual_ms(channels)
    ratio = np.divide(
        channels.transfer_ms,
        usual,
        out=np.full_like(usual, np.nan),
        where=(usual > 0) & (channels.transfer_ms > 0),
    )
    logs: FloatArray = np.log(ratio)
    return logs
