"""Compare the ranks at one segment: log-ratios to the peers, and the rows that pass every threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .cells import SegmentCells
from .detect import (
    Noise,
    Raised,
    Thresholds,
    find_bursts,
    find_raised,
    find_stalls,
    measure_noise,
    peak_levels,
    spread_of_others,
    usable_rows,
)
from .peers import FloatArray, IntArray, has_values, peer_counts, row_median
from .verdict import Pattern

CANDIDATE_Z = 4.0
"""Rows that are raised this surely are taken out of the yardstick before anyone is accused."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Own and peers' time per step in milliseconds, [R, S]; log-ratios [R, S]; and the rows that stand out."""

    own: FloatArray
    peers: FloatArray
    logs: FloatArray
    noise: Noise
    raised: tuple[Raised, ...]


def typical_excess(one: Raised, comparison: Comparison) -> float:
    """Median excess over the peers in the stretch, milliseconds per step."""
    inside = slice(one.first, one.last + 1)
    excess = (comparison.own - comparison.peers)[one.row, inside]
    usable = excess[np.isfinite(excess)]
    return float(np.median(usable)) if len(usable) else 0.0


def compare(cells: SegmentCells, roles: IntArray, step_ms: FloatArray, thresholds: Thresholds) -> Comparison | None:
    """Compare once to find candidates, take them out of the yardstick, and compare again."""
    own, peers = cells.compared(roles)
    logs = _log_ratio(own, peers)
    noise = measure_noise(logs)
    if noise is None or not len(usable_rows(logs, thresholds.min_steps)):
        return None
    excluded = _excluded(_candidates(logs, noise, thresholds), logs, roles)
    if excluded.any():
        own, peers = cells.compared(roles, excluded)
        logs = _log_ratio(own, peers)
        noise = measure_noise(logs) or noise
    spans = np.where(cells.count.sum(axis=0) > 0, cells.count.sum(axis=0), np.nan)
    own, peers = own * spans, peers * spans  # per step from here on
    counts = peer_counts(roles, has_values(logs))
    raised = [one for one in _candidates(logs, noise, thresholds) if _accused(one, logs, roles, noise, thresholds)]
    rows = {one.row for one in raised}
    raised += [one for one in find_bursts(logs, noise) if one.row not in rows and counts[one.row] > 0]
    rows = {one.row for one in raised}
    raised += [one for one in find_stalls(own, peers, step_ms, thresholds.stall_steps) if one.row not in rows]
    heavy = [one for one in raised if _is_heavy(one, own - peers, step_ms, thresholds)]
    return Comparison(own, peers, logs, noise, tuple(heavy))


def _log_ratio(own: FloatArray, peers: FloatArray) -> FloatArray:
    ratio = np.divide(own, peers, out=np.full_like(own, np.nan), where=(peers > 0) & (own > 0))
    logs: FloatArray = np.log(ratio)
    return logs


def _candidates(logs: FloatArray, noise: Noise, thresholds: Thresholds) -> list[Raised]:
    peaks = peak_levels(logs)
    rows = [row for row in usable_rows(logs, thresholds.min_steps) if peaks[row] >= math.log(thresholds.min_ratio)]
    found = (find_raised(int(row), logs[row], noise, float(peaks[row]), CANDIDATE_Z) for row in rows)
    return [one for one in found if one is not None]


def _excluded(candidates: list[Raised], logs: FloatArray, roles: IntArray) -> npt.NDArray[np.bool_]:
    """Candidates to take out of the yardstick, the surest first: half of every peer group, and two, stay in."""
    excluded = np.zeros(len(roles), bool)
    present = has_values(logs)
    for one in sorted(candidates, key=lambda raised: -raised.effect * raised.z):
        group = (roles == roles[one.row]) & present
        out = int((group & excluded).sum()) + 1
        if out <= group.sum() // 2 and group.sum() - out >= 2:
            excluded[one.row] = True
    return excluded


def _accused(one: Raised, logs: FloatArray, roles: IntArray, noise: Noise, thresholds: Thresholds) -> bool:
    """Whether a candidate passes the thresholds of size, surety, spread and persistence."""
    counts = peer_counts(roles, has_values(logs))
    least = thresholds.pair_ratio if counts[one.row] == 1 else thresholds.min_ratio
    levels = row_median(logs[:, one.first : one.last + 1])
    between = one.effect / spread_of_others(levels, one.row, roles)
    length = one.last - one.first + 1
    needed_z = thresholds.needed_z(len(usable_rows(logs, thresholds.min_steps)), logs.shape[1], length, one.to_the_end)
    return bool(
        counts[one.row] > 0
        and one.effect >= math.log(least)
        and one.z >= needed_z
        and between >= thresholds.min_between
        and length >= (thresholds.min_length if one.to_the_end else thresholds.ended_length)
        and one.share_beyond >= thresholds.min_share_beyond
    )


def _is_heavy(one: Raised, excess: FloatArray, step_ms: FloatArray, thresholds: Thresholds) -> bool:
    """Whether it matters: by its share of the steps it is in, and of all steps if it has ended."""
    share = _excess_share(one, excess, step_ms)
    if share < thresholds.min_excess_share:
        return False
    if one.to_the_end or one.first == one.last or one.pattern == Pattern.INTERMITTENT:
        return True
    inside = float(np.nansum(step_ms[one.first : one.last + 1]))
    return share * inside >= thresholds.ended_excess_share * float(np.nansum(step_ms))


def _excess_share(one: Raised, excess: FloatArray, step_ms: FloatArray) -> float:
    """Excess over the peers as a share of the step's time, within the stretch."""
    inside = slice(one.first, one.last + 1)
    above, below = excess[one.row, inside], step_ms[inside]
    usable = np.isfinite(above) & np.isfinite(below)
    if not usable.any() or not below[usable].sum() > 0:
        return 0.0
    typical = float(np.median(above[usable]))
    if one.pattern == Pattern.INTERMITTENT:
        typical = float(np.mean(above[usable]))
    return typical * int(usable.sum()) / float(below[usable].sum())
