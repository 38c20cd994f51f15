"""Recordings of different steps of one job as one."""

from __future__ import annotations

import numpy as np

from ..peers import FloatArray, IntArray
from .recording import Recording, check_cells


def joined(first: Recording, second: Recording) -> Recording:
    """The steps of both; an operation that only one of them has is missing in the other's steps.

    Raises ValueError where the ranks differ, or a step is in both, and CannotReplayError where both together have more
    cells than a recording may have.
    """
    if not np.array_equal(first.places.ranks, second.places.ranks) or np.isin(second.steps, first.steps).any():
        raise ValueError("the steps are of other ranks, or were added before")
    known = {node: number for number, node in enumerate(first.nodes)}
    added = [number for number, node in enumerate(second.nodes) if node not in known]
    nodes = (*first.nodes, *(second.nodes[number] for number in added))
    check_cells((len(nodes), *first.start.shape[1:-1], len(first.steps) + len(second.steps)))
    known |= {node: number for number, node in enumerate(nodes)}
    place = np.array([known[node] for node in second.nodes], np.int64)

    def both(one: FloatArray, other: FloatArray, fill: float) -> FloatArray:
        result = np.full((len(nodes), *one.shape[1:-1], one.shape[-1] + other.shape[-1]), fill)
        result[: len(one), ..., : one.shape[-1]] = one
        result[place, ..., one.shape[-1] :] = other
        return result

    shift = float(second.base_ns - first.base_ns)
    groups: dict[int, IntArray] = {int(place[number]): values for number, values in second.groups.items()}
    return Recording(
        nodes,
        (*first.axes, *(second.axes[number] for number in added)),
        both(first.start, second.start + shift, np.nan),
        both(first.end, second.end + shift, np.nan),
        both(first.last_end, second.last_end + shift, np.nan),
        both(first.own, second.own, 0.0),
        first.places,
        np.concatenate([first.steps, second.steps]),
        first.base_ns,
        groups | first.groups,
        second.group_ranks | first.group_ranks,
    )
