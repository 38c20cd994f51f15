"""A rank that is slow several times: further stretches of one row, and what they come to together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from .detect import Raised
from .peers import FloatArray
from .verdict import Pattern

MOST_STRETCHES = 8
LEAST_GAP = 3
"""Columns of single steps that part two stretches; of averages one is enough."""


def further_stretches(one: Raised, logs: FloatArray, search: Callable[[FloatArray], Raised | None]) -> list[Raised]:
    """Stretches of one row [S] beside ``one``, the surest first.

    What is known of already is set to the peers' level, and ``search`` asked for the surest of the rest, until it finds
    none. A rise has a lower part beside its surest: that touches it, and is no stretch of its own.
    """
    left, found = logs.copy(), [one]
    while len(found) < MOST_STRETCHES:
        left[found[-1].first : found[-1].last + 1] = 0.0
        more = search(left)
        if more is None:
            break
        found.append(more)
    return found[1:]


def together(stretches: list[Raised], logs: FloatArray, width: int) -> Raised | None:
    """Several stretches of one row as one that comes and goes; None where quiet does not lie between them.

    ``width`` is how many steps a column stands for.
    """
    ordered = sorted(stretches, key=lambda one: one.first)
    gap = LEAST_GAP if width == 1 else 1
    for before, after in pairwise(ordered):
        between = logs[before.last + 1 : after.first]
        known = between[np.isfinite(between)]
        if len(known) < gap or float(np.median(known)) > 0.5 * min(before.effect, after.effect):
            return None
    inside = np.concatenate([logs[one.first : one.last + 1] for one in ordered])
    first, last = ordered[0].first, ordered[-1].last
    return Raised(
        row=ordered[0].row,
        first=first,
        last=last,
        effect=float(np.nanmedian(inside)),
        z=max(one.z for one in ordered),
        share_beyond=len(inside) / (last - first + 1),
        pattern=Pattern.INTERMITTENT,
        burst_steps=len(inside) / len(ordered),
    )
