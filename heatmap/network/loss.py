"""What a slow link costs the job: how much longer the steps are, bounded by how much longer its transfers are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..peers import FloatArray, row_median
from .channels import Channels
from .levels import Routes
from .places import Place

MIN_SHOWN = 1.2
"""Ratio to the usual time from which on a channel of a slow route is counted as slow."""

MIN_OF_WORST = 0.25
"""Share of the worst channel's excess: a link that is slow one way does not count the other."""

MIN_OUTSIDE_STEPS = 10
"""Steps outside the stretch, from which on the usual length of a step is known."""


@dataclass(frozen=True, slots=True)
class Excess:
    """How much longer the transfers of one segment take in the stretch: ``own_ms`` and ``usual_ms`` an operation,
    ``per_step`` operations in a step, on the worst of the place's channels. ``channels`` are those of the segment, the
    worst first; ``peers`` counts the other channels of their kind."""

    segment: str
    own_ms: float
    usual_ms: float
    per_step: float
    channels: tuple[int, ...]
    peers: int

    @property
    def ratio(self) -> float:
        """Own over usual time."""
        return self.own_ms / self.usual_ms

    @property
    def a_step_ms(self) -> float:
        """Excess of all operations of a step."""
        return (self.own_ms - self.usual_ms) * self.per_step


def excesses(place: Place, routes: Routes, channels: Channels, usual: FloatArray) -> tuple[Excess, ...]:
    """Excess by segment of a place's slow channels, the costliest first; ``usual`` [C, S] is their `usual_ms`."""
    inside = slice(place.stretch.first, place.stretch.last + 1)
    touched, found = np.flatnonzero(np.isin(routes.of_channel, place.routes)), []
    for segment in np.unique(channels.segment[touched]).tolist():
        rows = touched[channels.segment[touched] == segment]
        own, like = (row_median(values[rows, inside]) for values in (channels.transfer_ms, usual))
        known = np.flatnonzero(np.isfinite(own) & (like > 0) & (own > MIN_SHOWN * like))
        if not len(known):
            continue
        excess = (own - like)[known]
        known = known[excess >= MIN_OF_WORST * excess.max()]
        order = known[np.argsort(-(own[known] / like[known]), kind="stable")]
        worst = rows[order[0]]
        peers = int((channels.kind == channels.kind[worst]).sum()) - len(order)
        found.append(
            Excess(
                channels.names[segment], float(np.median(own[known])), float(np.median(like[known])),
                float(channels.per_step[worst]), tuple(int(one) for one in rows[order]), peers,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.a_step_ms))


def lost_share(place: Place, found: tuple[Excess, ...], step_ms: FloatArray, step_width: int) -> float:
    """Share of the time of all steps that is lost to a place, 0 to 1.

    The steps of the stretch against those outside, where there are enough; at most what all slow transfers take longer.
    Without such steps: the excess of the collectives and, of p2p, of one operation each way, since a pipeline that is
    full hides the others.
    """
    inside = np.zeros(len(step_ms), bool)
    inside[place.stretch.first : place.stretch.last + 1] = True
    usable, total = np.isfinite(step_ms), float(np.nansum(step_ms))
    if not (inside & usable).any() or not total > 0:
        return 0.0
    length = float(np.median(step_ms[inside & usable]))
    most = sum(one.a_step_ms for one in found)
    if (usable & ~inside).sum() * step_width >= MIN_OUTSIDE_STEPS:
        excess = min(length - float(np.median(step_ms[usable & ~inside])), most)
    else:
        excess = sum((one.own_ms - one.usual_ms) * min(one.per_step, 1.0) for one in found)
    share = min(max(excess, 0.0), length) * int((inside & usable).sum()) / total
    return round(min(share, 1.0), 6)
