"""Runs a program with a clock: when every operation ends, for many scenarios, ranks, replicas and steps at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..peers import FloatArray
from .program import Meeting, Program

Durations = Callable[[int], FloatArray]
"""Of a node, broadcast to [K, M, D, S]: scenarios, members of the inner group, replicas, steps."""


def step_times(program: Program, durations: Durations, shared: Durations | None = None) -> FloatArray:
    """Length of every step from its first operation to its last end, [K, S], in the unit of the durations.

    An operation begins at the latest end of what it waits for; who meets begins at the latest beginning. A transfer
    ends its own duration after that. Work on which the members of a group meet ends when its slowest member is done and
    ``shared`` is over (what the group spends together, [K, 1, D, S]); launch delays are left out.
    """
    ends: list[FloatArray | None] = [None] * len(program.nodes)
    longest = np.zeros((1, 1))
    for place, meeting in enumerate(program.meetings):
        begin = _begin(program, meeting, ends)
        for node in meeting.nodes:
            took = durations(node)
            if meeting.members and not program.nodes[node].is_transfer:
                took = took.max(axis=1, keepdims=True)
                took = took if shared is None else took + shared(node)
            end = begin + took
            if program.last_use[node] < 0:
                longest = np.maximum(longest, end.max(axis=(1, 2)))
            else:
                ends[node] = end
        for node in meeting.nodes:
            for earlier in program.after[node]:
                if program.last_use[earlier] == place:
                    ends[earlier] = None
    return longest


def _begin(program: Program, meeting: Meeting, ends: list[FloatArray | None]) -> FloatArray:
    """When the operations of a meeting begin, broadcast to [K, M, D, S]."""
    begin: FloatArray = np.zeros((1, 1, 1, 1))
    for node in meeting.nodes:
        for earlier in program.after[node]:
            end = ends[earlier]
            assert end is not None
            begin = end if begin.size == 1 and not begin.any() else np.maximum(begin, end)
    return together(begin, meeting)


def together(moments: FloatArray, meeting: Meeting) -> FloatArray:
    """The latest moment of all who meet, [..., M, D, S]; axes over which they meet may become 1 long."""
    return gathered(moments, meeting, np.maximum)


def gathered(values: FloatArray, meeting: Meeting, pick: np.ufunc) -> FloatArray:
    """Reduce values [..., M, D, S] of a meeting over its members and groups of replicas with ``pick``."""
    if meeting.members and values.shape[-3] > 1:
        values = pick.reduce(values, axis=-3, keepdims=True)
    width = values.shape[-2]
    if not meeting.replicas or width == 1:
        return values
    if len(meeting.replicas) == 1 or width < sum(len(group) for group in meeting.replicas):
        reduced: FloatArray = pick.reduce(values, axis=-2, keepdims=True)
        return reduced
    result = np.empty_like(values)
    for group in meeting.replicas:
        index = list(group)
        result[..., index, :] = pick.reduce(values[..., index, :], axis=-2, keepdims=True)
    return result
