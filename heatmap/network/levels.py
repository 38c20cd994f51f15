"""Which ranks' links are slow: those all of whose routes to other hosts are raised at once, and since when.

A NIC that gives a part of its bandwidth slows each route that it carries. So a rank's level is the least of its
routes': whoever has one that is as fast as others only shares a slow one with its cause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..detect import Noise, Raised, find_raised, measure_noise, peak_levels, search_windows
from ..peers import FloatArray, IntArray
from .channels import Channels

MIN_RATIO = 1.4
"""Transfers that take so much longer than those of their kind: 70 % of the bandwidth is left."""

FASTER = 0.1
"""As a log-ratio: a transfer that is faster than the others' by more tells no more."""

MIN_Z = 8.0
"""Effect over its standard error: of tens of thousands of ranks, none comes near it by chance."""

MIN_BETWEEN = 4.0
"""Effect over the spread between the other ranks."""

MIN_STEPS = 10
"""Steps of a stretch: a whole window, or as many single steps."""

ONE_WINDOW_RATIO = 1.8
"""Instead of ``MIN_RATIO`` where a stretch is a single window: of its few least transfers one may be odd."""

MIN_SHARE_BEYOND = 0.7
"""Share of the stretch's steps that lie beyond half the effect."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Log-ratios of rows by step, [N, S], NaN where none can be compared. ``ids`` [N] are what the rows stand for:
    ranks, or routes. ``noise`` is None where there is too little to tell."""

    ids: IntArray
    logs: FloatArray
    noise: Noise | None


@dataclass(frozen=True, slots=True)
class Routes:
    """Channels that join the same ranks, in whatever segment and direction: ``of_channel`` [C] is each one's route.

    Members are pairs (``route_of``, ``rank_of``) [M], sorted by route; ``levels`` has a row for every route.
    """

    of_channel: IntArray
    route_of: IntArray
    rank_of: IntArray
    levels: Levels

    def members(self, route: int) -> IntArray:
        """Ranks that a route joins."""
        low, high = np.searchsorted(self.route_of, [route, route + 1])
        return self.rank_of[low:high]

    def channels(self, route: int) -> IntArray:
        """Channels of a route."""
        return np.flatnonzero(self.of_channel == route)


def find_routes(channels: Channels, logs: FloatArray) -> Routes:
    """Routes of all channels. The level of a route is the mean log-ratio of its channels: of both directions of a pair,
    of all operations of a group. One odd channel, or the one quick transfer of a window, does not make it.
    """
    begins = np.searchsorted(channels.channel_of, np.arange(len(channels)))
    lowest = np.minimum.reduceat(channels.rank_of, begins)
    highest = np.maximum.reduceat(channels.rank_of, begins)
    size = np.bincount(channels.channel_of, minlength=len(channels))
    _, example, of_channel = np.unique(
        np.stack([lowest, highest, size]), axis=1, return_index=True, return_inverse=True
    )
    of_channel = of_channel.reshape(-1)
    order = np.argsort(of_channel, kind="stable")
    begins = np.searchsorted(of_channel[order], np.arange(len(example)))
    known = np.add.reduceat(np.isfinite(logs[order]), begins, axis=0, dtype=np.int64)
    summed = np.add.reduceat(np.nan_to_num(logs[order]), begins, axis=0)
    levels = np.divide(summed, known, out=np.full_like(summed, np.nan), where=known > 0)
    is_example = np.isin(channels.channel_of, example)
    route_of, rank_of = of_channel[channels.channel_of[is_example]], channels.rank_of[is_example]
    by_route = np.argsort(route_of, kind="stable")
    return Routes(of_channel, route_of[by_route], rank_of[by_route], of_rows(np.arange(len(example)), levels))


def rank_levels(routes: Routes) -> Levels:
    """Levels of all ranks, [R, S]: the least of the levels of the routes that each is on."""
    order = np.argsort(routes.rank_of, kind="stable")
    ranks, begins = np.unique(routes.rank_of[order], return_index=True)
    return of_rows(ranks, np.fmin.reduceat(routes.levels.logs[routes.route_of[order]], begins, axis=0))


def of_rows(ids: IntArray, logs: FloatArray) -> Levels:
    """Levels of rows [N, S]. What is faster than usual is cut off: it is no noise of a link that may be slow."""
    cut = np.where(np.isfinite(logs), np.maximum(logs, -FASTER), np.nan)
    return Levels(ids, cut, measure_noise(cut))


def raised_rows(levels: Levels, step_width: int) -> list[Raised]:
    """The stretch of every row in which it is surely raised; rows are places in ``levels.ids``."""
    if levels.noise is None or not len(levels.ids):
        return []
    shortest = -(-MIN_STEPS // step_width)
    best: dict[int, Raised] = {}
    for window in search_windows(levels.logs.shape[1], min(shortest, levels.logs.shape[1])):
        peaks = peak_levels(levels.logs, window, math.log(MIN_RATIO))
        for at in np.flatnonzero(np.isfinite(peaks)).tolist():
            found = find_raised(at, levels.logs[at], levels.noise, float(peaks[at]), MIN_Z, end_slack=0)
            if found is not None and (at not in best or found.z > best[at].z):
                best[at] = found
    spread = _spread_between(levels, set(best))
    return [
        one
        for _, one in sorted(best.items())
        if one.effect >= max(math.log(MIN_RATIO if one.last > one.first else ONE_WINDOW_RATIO), MIN_BETWEEN * spread)
        and one.last - one.first + 1 >= shortest
        and one.share_beyond >= MIN_SHARE_BEYOND
    ]


def _spread_between(levels: Levels, without: set[int]) -> float:
    """Robust spread of the typical levels of all rows but those that stand out."""
    others = np.delete(levels.logs, sorted(without), axis=0)
    known = others[np.isfinite(others).any(axis=1)]
    if not len(known):
        return 0.0
    typical = np.nanmedian(known, axis=1)
    return 1.4826 * float(np.median(np.abs(typical - np.median(typical))))


def visible_ratio(levels: Levels) -> float | None:
    """Ratio from which on a slow link over all steps would have been named; None where nothing could be compared."""
    if levels.noise is None or not np.isfinite(levels.logs).any():
        return None
    steps = levels.logs.shape[1]
    effect = max(
        math.log(MIN_RATIO), MIN_BETWEEN * _spread_between(levels, set()), MIN_Z * levels.noise.standard_error(steps)
    )
    return math.exp(min(effect, 50.0))
