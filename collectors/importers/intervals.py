"""Arithmetic of intervals on a time axis: what is covered by others, and what encloses what."""

from __future__ import annotations

import numpy as np

from .columns import ABSENT, IntArray


def covered_between(begin: IntArray, end: IntArray, start: IntArray, stop: IntArray) -> IntArray:
    """How much of [start, stop) [N] is covered by the union of the intervals [begin, end) [M], in any order; ns."""
    if not len(begin):
        return np.zeros(len(start), np.int64)
    by = np.argsort(begin, kind="stable")
    begin, end = begin[by], np.maximum.accumulate(end[by])
    new = np.r_[True, begin[1:] > end[:-1]]
    first = begin[new]
    last = end[np.r_[np.flatnonzero(new)[1:] - 1, len(end) - 1]]
    done = np.r_[0, np.cumsum(last - first)]

    def before(moment: IntArray) -> IntArray:
        index = np.searchsorted(first, moment, side="right")
        at = np.maximum(index - 1, 0)
        inside = np.minimum(moment - first[at], last[at] - first[at])
        return np.asarray(done[at] + np.where(index > 0, inside, 0), np.int64)

    return before(stop) - before(start)


def enclosing(lane: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """The smallest interval of the same lane that holds each one, as its index; `ABSENT` for none. [N] -> [N].

    Of two equal ones the first given holds the second. Intervals that overlap without one holding the other have the
    same parent.
    """
    parent = np.full(len(lane), ABSENT, np.int64)
    order = np.lexsort((np.arange(len(lane)), -end, start, lane))
    stack: list[tuple[int, int]] = []
    lanes, ends = lane.tolist(), end.tolist()
    starts = start.tolist()
    current = None
    for index in order.tolist():
        if lanes[index] != current:
            stack, current = [], lanes[index]
        while stack and stack[-1][1] <= starts[index] and not (stack[-1][1] == starts[index] == ends[index]):
            stack.pop()
        for holder, until in reversed(stack):
            if until >= ends[index]:
                parent[index] = holder
                break
        stack.append((index, ends[index]))
    return parent
