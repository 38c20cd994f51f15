"""Stretches of windows looked at from inside: short delays that fill few of them, and those that come and go."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .cells import SegmentCells
from .compare import Comparison
from .detect import Raised
from .peers import FloatArray, IntArray, has_values, peer_counts
from .thresholds import Thresholds
from .verdict import Pattern
from .window_shape import Shape, WindowShapes

TOUCHED = 0.05
"""Share of a window that is slow, from which on the window belongs to a stretch."""

LEAST_BURST_STEPS = 6.0
"""Slow steps of a stretch that comes and goes: coming back is what a passing delay does not do."""

MIN_STALLS = 2.5
"""Stalls in a stretch that make it one that comes back; the estimate of a whole number is not whole."""

BRIEF_STEPS, BRIEF_RATIO = 3.5, 1.3
"""Slow steps of a short burst, estimated, and the slow part of its windows over the peers'."""

LONGEST_SHARE = 0.6
"""Share of those that remain if each was as slow as the slowest span: of a stall there is hardly any."""

STALL_RATIO = 2.0
"""Mean of a window with stalls over the peers'."""

RARE = 0.15
"""Share of a rank's peers that may have such windows too."""


def look_inside(
    comparison: Comparison, cells: SegmentCells, roles: IntArray, shapes: WindowShapes, thresholds: Thresholds
) -> Comparison:
    """The comparison with what the histograms of its windows tell, of ranks with many peers.

    Stretches that were too short to accuse anyone are raised where the slow parts of their windows make up enough
    steps, or where stalls come again and again; raised ones of which windows are slow in part come and go.
    """
    counts = peer_counts(roles, has_values(comparison.logs))
    every = (*comparison.raised, *comparison.hiding, *comparison.brief)
    chosen = [one for one in every if counts[one.row] >= thresholds.many_peers]
    if cells.step_width == 1 or not chosen:
        return replace(comparison, brief=()) if cells.step_width > 1 else comparison
    found = shapes.of(cells, roles, sorted({one.row for one in chosen}), comparison.excluded)
    raised = [_with_pattern(one, comparison, found.get(one.row)) for one in comparison.raised]
    hiding = []
    for one in comparison.hiding:
        promoted = _promoted(one, comparison, roles, found.get(one.row), cells.step_width, thresholds)
        if promoted is None:
            hiding.append(one)
        else:
            raised.append(promoted)
    rows = {one.row for one in raised}
    brief = [
        with_shape
        for one in comparison.brief
        if one.row not in rows and (with_shape := _brief(one, comparison, found.get(one.row), cells)) is not None
    ]
    return replace(comparison, raised=tuple(raised), hiding=tuple(hiding), brief=tuple(brief))


def _brief(one: Raised, comparison: Comparison, shape: Shape | None, cells: SegmentCells) -> Raised | None:
    """A stretch of few windows as a short burst of single steps; None where less than that is in it."""
    if shape is None:
        return None
    logs, width = comparison.logs[one.row], cells.step_width
    shares = shape.slow_share(logs)
    first, last = _extent(one, shares)
    inside = slice(first, last + 1)
    spans = cells.count.sum(axis=0)[one.row, inside]
    peers = np.divide(comparison.peers[one.row, inside], spans, out=np.full(len(spans), np.nan), where=spans > 0)
    excess, longest = np.expm1(logs[inside]) * peers, shape.top_ms[inside] - peers
    of_longest = np.divide(excess, longest, out=np.zeros(len(spans)), where=np.isfinite(excess) & (longest > 0))
    steps = width * float(shares[inside].sum())
    is_lasting = width * float(np.clip(of_longest, 0.0, 1.0).sum()) >= LONGEST_SHARE * BRIEF_STEPS
    if steps < BRIEF_STEPS or not is_lasting or not np.nanmax(shape.high[inside]) >= math.log(BRIEF_RATIO):
        return None
    to_the_end = one.to_the_end or last == len(logs) - 1
    return replace(one, first=first, last=last, to_the_end=to_the_end, pattern=Pattern.ONE_OFF)


def _with_pattern(one: Raised, comparison: Comparison, shape: Shape | None) -> Raised:
    """A raised stretch, intermittent where most windows inside it are slow in a part only."""
    if shape is None or one.pattern == Pattern.INTERMITTENT:
        return one
    shares = shape.slow_share(comparison.logs[one.row])
    first, last = _extent(one, shares)
    inside = slice(first + 1, last)  # at either end a window is slow in part because the delay begins or ends in it
    mixed = shape.is_mixed()[inside]
    if not len(mixed) or 2 * mixed.sum() < len(mixed):
        return one
    return replace(one, first=first, last=last, pattern=Pattern.INTERMITTENT, burst_steps=float(shares[inside].mean()))


def _promoted(
    one: Raised,
    comparison: Comparison,
    roles: IntArray,
    shape: Shape | None,
    width: int,
    thresholds: Thresholds,
) -> Raised | None:
    """A stretch of few windows as a raised one; None where it is not long enough from inside either."""
    if shape is None:
        return None
    logs = comparison.logs[one.row]
    shares = shape.slow_share(logs)
    first, last = _extent(one, shares)
    wide = replace(one, first=first, last=last, to_the_end=one.to_the_end or last == len(logs) - 1)
    slow_steps = width * float(shares[first : last + 1].sum())
    pattern = Pattern.CHRONIC if wide.to_the_end else Pattern.ONE_OFF
    found = _with_pattern(replace(wide, pattern=pattern), comparison, shape)
    least = LEAST_BURST_STEPS if found.pattern == Pattern.INTERMITTENT else thresholds.many_length
    if slow_steps >= least:
        return found
    stalls = _stalls(wide, comparison, shape, width)
    if stalls < MIN_STALLS or not _is_rare(wide, comparison.logs, roles):
        return None
    return replace(wide, pattern=Pattern.INTERMITTENT, burst_steps=1 / width)


def _extent(one: Raised, shares: FloatArray) -> tuple[int, int]:
    """First and last window of a stretch, with those beside it that are slow in part."""
    first, last = one.first, one.last
    if first > 0 and shares[first - 1] >= TOUCHED:
        first -= 1
    if last + 1 < len(shares) and shares[last + 1] >= TOUCHED:
        last += 1
    return first, last


def _stalls(one: Raised, comparison: Comparison, shape: Shape, width: int) -> float:
    """How many spans as long as the longest make up the excess of the stretch's windows."""
    inside = slice(one.first, one.last + 1)
    excess = (comparison.own - comparison.peers)[one.row, inside] * width
    longest = shape.top_ms[inside] - comparison.peers[one.row, inside]
    usable = np.isfinite(excess) & (longest > 0) & (comparison.logs[one.row, inside] >= math.log(STALL_RATIO))
    return float((excess[usable] / longest[usable]).sum())


def _is_rare(one: Raised, logs: FloatArray, roles: IntArray) -> bool:
    """Whether few of a rank's peers have windows that are raised half as much, in any steps."""
    peers = np.flatnonzero((roles == roles[one.row]) & has_values(logs))
    high = np.nanmax(logs[peers], axis=1) >= one.effect / 2
    return float(high.mean()) <= RARE
