"""Peers as a condition in SQL: their place in the mesh, not a list of thousands of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..collectors.reading.store import Attempt
from ..collectors.reading.views import identifier, literal
from .peers import Placement

LISTED = 16
"""So few ranks are listed."""


def ranks_condition(column: str, ranks: Sequence[int], placement: Placement, attempt: Attempt) -> str:
    """A condition that holds of exactly these ranks: ``column`` is the one with the rank.

    Where that is shorter, they are told by the axes on which all of them have the same index, and the ranks of that
    place that are not among them.
    """
    listed = f"{column} IN ({', '.join(str(rank) for rank in ranks)})"
    chosen = np.asarray(ranks, np.int64)
    if len(ranks) <= LISTED or (placement.at(chosen) < 0).any():
        return listed
    place, conditions = np.ones(len(placement.ranks), bool), []
    for axis, index in placement.coordinates.items():
        own = np.unique(placement.coordinate(axis, chosen))
        if len(own) == 1 and own[0] >= 0:
            place &= index == own[0]
            conditions.append(f" AND {identifier(axis)} = {own[0]}")
    others = np.setdiff1d(placement.ranks[place], chosen).tolist()
    if 4 * len(others) > len(ranks):
        return listed
    of_attempt = f"run = {literal(attempt.run)} AND attempt = {attempt.attempt}"
    inside = f"{column} IN (SELECT rank FROM ranks WHERE {of_attempt}{''.join(conditions)})"
    return inside + (f" AND {column} NOT IN ({', '.join(str(rank) for rank in others)})" if others else "")
