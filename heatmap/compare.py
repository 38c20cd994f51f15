"""Compare the ranks at one segment: log-ratios to the peers, and the rows that pass every threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from .cells import SegmentCells
from .detect import (
    Noise,
    Raised,
    find_bursts,
    find_raised,
    find_stalls,
    measure_noise,
    peak_levels,
    search_windows,
    spread_of_others,
    usable_rows,
)
from .peers import FloatArray, IntArray, has_values, peer_counts, row_median
from .recurring import find_brief, find_recurring, with_gaps
from .stretches import further_stretches, together
from .thresholds import Thresholds
from .verdict import Pattern

CANDIDATE_Z = 4.0
"""Rows that are raised this surely are taken out of the yardstick before anyone is accused."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Own and peers' time per step in milliseconds, [R, S]; log-ratios [R, S]; the rows that stand out; the rows that
    were taken out of the yardstick, [R]; and stretches of too few averaged columns, which may hide a slow rank."""

    own: FloatArray
    peers: FloatArray
    logs: FloatArray
    noise: Noise
    raised: tuple[Raised, ...]
    excluded: npt.NDArray[np.bool_]
    hiding: tuple[Raised, ...] = ()
    light: tuple[Raised, ...] = ()
    """Stretches that have ended and cost too little at this segment alone."""
    brief: tuple[Raised, ...] = ()
    """Short bursts, which accuse only a rank that has them in all its compute; of averaged columns, those that are too
    few until their histograms tell."""


def typical_excess(one: Raised, comparison: Comparison) -> float:
    """Excess over the peers in the stretch, milliseconds per step: the median; of bursts the mean."""
    inside = slice(one.first, one.last + 1)
    excess = (comparison.own - comparison.peers)[one.row, inside]
    usable = excess[np.isfinite(excess)]
    typical = np.mean if one.pattern == Pattern.INTERMITTENT else np.median
    return float(typical(usable)) if len(usable) else 0.0


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
    bar = _Bar(logs, roles, counts, thresholds)
    candidates = _candidates(logs, noise, thresholds)
    passed = [one for one in candidates if bar.is_passed_by(one)]
    raised = _raised(passed, logs, noise, bar, cells.step_width, thresholds)
    raised = [with_gaps(one, logs[one.row], noise, cells.step_width) for one in raised]
    rows = {one.row for one in raised}
    raised += [one for one in find_bursts(logs, noise, roles=roles) if one.row not in rows and counts[one.row] > 0]
    rows = {one.row for one in raised}
    if cells.step_width == 1:
        again = find_recurring(logs, own, peers, noise, step_ms)
        raised += [one for one in again if one.row not in rows and counts[one.row] >= thresholds.many_peers]
        rows = {one.row for one in raised}
    raised += [one for one in find_stalls(own, peers, step_ms, thresholds.stall_steps) if one.row not in rows]
    heavy = [one for one in raised if is_heavy(one, own - peers, step_ms, thresholds, int(counts[one.row]))]
    accused = {one.row for one in heavy}
    short = [one for one in passed if one.row not in accused and not bar.is_long(one)]
    hiding = [
        one
        for one in short
        if _may_hide(one, logs[one.row], cells.step_width, thresholds)
        and (
            is_heavy(one, own - peers, step_ms, thresholds, int(counts[one.row]))
            or is_heavy(_widened(one, logs), own - peers, step_ms, thresholds, int(counts[one.row]))
        )
    ]
    costs = [one for one in raised if one.row not in accused and _excess_share(one, own - peers, step_ms) > 0]
    light = [one for one in costs if _excess_share(one, own - peers, step_ms) >= thresholds.min_excess_share]
    rows = {one.row for one in passed} | accused
    hiding += [
        one
        for one in candidates
        if one.row not in rows
        and bar.is_passed_by(one, is_steady=False)
        and is_heavy(one, own - peers, step_ms, thresholds, int(counts[one.row]))
    ]
    brief = find_brief(logs, noise) if cells.step_width == 1 else short
    brief = [one for one in brief if one.row not in accused and counts[one.row] >= thresholds.many_peers]
    return Comparison(own, peers, logs, noise, tuple(heavy), excluded, tuple(hiding), tuple(light), tuple(brief))


def _log_ratio(own: FloatArray, peers: FloatArray) -> FloatArray:
    ratio = np.divide(own, peers, out=np.full_like(own, np.nan), where=(peers > 0) & (own > 0))
    logs: FloatArray = np.log(ratio)
    return logs


def _candidates(logs: FloatArray, noise: Noise, thresholds: Thresholds) -> list[Raised]:
    """The surest stretch of every row that has one; each length of window starts a search of its own."""
    usable, best = usable_rows(logs, thresholds.min_steps), dict[int, Raised]()
    for window in search_windows(logs.shape[1], thresholds.shortest):
        peaks = peak_levels(logs[usable], window, math.log(min(thresholds.min_ratio, thresholds.many_ratio)))
        for at in np.flatnonzero(np.isfinite(peaks)):
            row = int(usable[at])
            found = _stretch(row, logs[row], noise, float(peaks[at]), thresholds)
            if found is not None and (row not in best or _rank(found, thresholds) > _rank(best[row], thresholds)):
                best[row] = found
    return [best[row] for row in sorted(best)]


def _stretch(row: int, logs: FloatArray, noise: Noise, peak: float, thresholds: Thresholds) -> Raised | None:
    """The surest stretch of a row [S] from a running median of ``peak`` on; of one that comes and goes, a burst."""
    found = find_raised(row, logs, noise, peak, CANDIDATE_Z, thresholds.end_slack)
    if found is None or found.share_beyond >= thresholds.min_share_beyond:
        return found
    return find_raised(row, logs, noise, peak, CANDIDATE_Z, thresholds.end_slack, is_held=True) or found


def _rank(one: Raised, thresholds: Thresholds) -> tuple[bool, float]:
    """What stretches of one row are chosen by: a steady one before one that is not, then the surest."""
    return one.share_beyond >= thresholds.min_share_beyond, one.z


def _raised(
    passed: list[Raised], logs: FloatArray, noise: Noise, bar: _Bar, width: int, thresholds: Thresholds
) -> list[Raised]:
    """Of stretches that stand out, those that are long enough: by themselves, or with others of their row."""

    def search(row: int, left: FloatArray) -> Raised | None:
        found = _candidates(left[None, :], noise, thresholds)
        one = replace(found[0], row=row) if found else None
        return one if one is not None and bar.is_passed_by(one) else None

    result = []
    for one in passed:
        more = further_stretches(one, logs[one.row], partial(search, one.row))
        several = together([one, *more], logs[one.row], width) if more else None
        if several is not None and bar.is_long_together([one, *more]):
            result.append(several)
        elif bar.is_long(one):
            result.append(one)
    return result


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


def _may_hide(one: Raised, logs: FloatArray, width: int, thresholds: Thresholds) -> bool:
    """Whether so few averaged columns may stand for a delay that single steps would have shown.

    A delay of constant size that fills the highest column also raises those beside it by what it has in them: together
    they tell how many steps it may have lasted. A single step that stalls raises one column alone.
    """
    if width == 1 or thresholds.shortest_steps is None:
        return False
    inside = np.exp(logs[max(one.first - 1, 0) : one.last + 2]) - 1
    excess = np.maximum(inside[np.isfinite(inside)], 0.0)
    return bool(width * excess.sum() / excess.max() >= 0.9 * thresholds.shortest_steps)


def _widened(one: Raised, logs: FloatArray) -> Raised:
    """The stretch with the columns beside it, which a delay may have begun and ended in."""
    return replace(one, first=max(one.first - 1, 0), last=min(one.last + 1, logs.shape[1] - 1))


class _Bar:
    """The thresholds of size, surety, spread and persistence that a candidate has to pass."""

    def __init__(self, logs: FloatArray, roles: IntArray, counts: IntArray, thresholds: Thresholds) -> None:
        self._logs, self._roles, self._counts, self._thresholds = logs, roles, counts, thresholds
        self._usable = len(usable_rows(logs, thresholds.min_steps))
        self._levels: dict[tuple[int, int], FloatArray] = {}  # by stretch: candidates share theirs more often than not

    def is_long(self, one: Raised) -> bool:
        """Whether a candidate's stretch is long enough to be accused."""
        peers = int(self._counts[one.row])
        return one.last - one.first + 1 >= self._thresholds.needed_length(math.exp(one.effect), one.to_the_end, peers)

    def is_long_together(self, stretches: list[Raised]) -> bool:
        """Whether several stretches of a row are long enough together, as one that has ended has to be."""
        peers, ratio = int(self._counts[stretches[0].row]), math.exp(min(one.effect for one in stretches))
        length = sum(one.last - one.first + 1 for one in stretches)
        return length >= self._thresholds.needed_length(ratio, False, peers)

    def is_passed_by(self, one: Raised, *, is_steady: bool = True) -> bool:
        """Whether a candidate stands out, however short, and in how many of its steps; what costs least comes first."""
        limit, peers, length = self._thresholds, int(self._counts[one.row]), one.last - one.first + 1
        return bool(
            peers > 0
            and one.effect >= math.log(limit.least_ratio(peers))
            and one.z >= limit.needed_z(self._usable, self._logs.shape[1], length, one.to_the_end)
            and (one.share_beyond >= limit.min_share_beyond) == is_steady
            and one.effect / self._spread_around(one) >= limit.min_between
        )

    def _spread_around(self, one: Raised) -> float:
        stretch = one.first, one.last
        if stretch not in self._levels:
            self._levels[stretch] = row_median(self._logs[:, one.first : one.last + 1])
        return spread_of_others(self._levels[stretch], one.row, self._roles)


def is_heavy(one: Raised, excess: FloatArray, step_ms: FloatArray, thresholds: Thresholds, peers: int) -> bool:
    """Whether it matters: by its share of the steps it is in, and of all steps if it has ended."""
    share = _excess_share(one, excess, step_ms)
    if share < thresholds.min_excess_share:
        return False
    if one.to_the_end or one.first == one.last or one.pattern == Pattern.INTERMITTENT:
        return True
    inside = float(np.nansum(step_ms[one.first : one.last + 1]))
    return share * inside >= thresholds.least_ended_share(peers) * float(np.nansum(step_ms))


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
