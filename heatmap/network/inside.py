"""`find_inside`: slow links inside one host (NVLink, PCIe, shared memory), from spans.

Pairs and groups that join ranks of one host are compared as those between hosts are: by the shortest duration among an
operation's members, against the same segment, payload and size. It is a bound of end - max(start): who posts first
waits, whichever side that is, also where receives are posted ahead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.verdicts import Abstention
from ..detect import Raised
from ..observations import Observations
from ..peers import FloatArray, Placement
from ..source import Source
from ..verdict import CulpritKind, Findings
from .cases import GROUP_PEERS, GROUP_RATIO, Case, accuse, by_id, case_of
from .channels import Channels, log_ratios, usual_ms
from .levels import Routes, find_routes, rank_levels
from .operations import load_channels
from .places import Place, alike

SIGNAL = "links inside hosts"

MOST_SHARE = 0.25
"""Share of the routes inside hosts that may be slow at once: beyond, what they are compared with is not the usual."""

MIN_EXCESS_SHARE = 0.05
"""What the slow transfers of a step take longer, as a share of the step: copies in one host are uneven, up to 3 % in
healthy jobs on busy processors."""

MOST_SPANS = 1_000_000
"""Spans of communication that are looked at; of longer records the newest steps."""


def find_inside(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Links, or a rank's own, that are slow inside a host. None is claimed without several peers of its kind."""
    if seen.source.source == Source.ROLLUPS:
        return _abstain("from rollups only links between hosts are judged; spans would show those inside hosts")
    channels = load_channels(store, attempt, seen.placement, seen.ranks, seen.steps, inside=True)
    if not len(channels):
        return Findings()
    usual, logs = usual_ms(channels), log_ratios(channels)
    routes = find_routes(channels, logs)
    known = routes, channels, usual, seen.step_ms
    raised = by_id(routes.levels, channels)
    wholes = {route: _whole(route, one, routes, seen) for route, one in raised.items()}
    slow = {route: place for route, place in wholes.items() if _case(place, *known) is not None}
    if not slow:
        return Findings()
    if len(slow) > max(1.0, MOST_SHARE * len(routes.levels.ids)):
        return _abstain(f"{len(slow)} of {len(routes.levels.ids)} pairs and groups inside hosts are slower than others")
    places, left = _places(routes, by_id(rank_levels(routes), channels), slow, seen.placement)
    cases = [one for place in places if (one := _case(place, *known)) is not None]
    cases.sort(key=lambda one: (-one.lost_share, one.place.ranks))
    culprits, unproven = accuse(store, attempt, cases, routes, seen)
    return Findings(culprits, (*unproven, *_not_named(left)))


def _abstain(reason: str) -> Findings:
    return Findings(abstained=(Abstention(SIGNAL, reason),))


def _case(place: Place, routes: Routes, channels: Channels, usual: FloatArray, step_ms: FloatArray) -> Case | None:
    """A place, if it costs enough and stands out enough to be named."""
    case = case_of(place, routes, channels, usual, step_ms, MIN_EXCESS_SHARE)
    if case is None or case.found[0].ratio < GROUP_RATIO or case.found[0].peers < GROUP_PEERS:
        return None
    return case


def _whole(route: int, stretch: Raised, routes: Routes, seen: Observations) -> Place:
    """A pair or group as a place of its own."""
    ranks = tuple(sorted(routes.members(route).tolist()))
    kind = CulpritKind.LINK if len(ranks) == 2 else CulpritKind.GROUP
    return Place(kind, ranks, _hosts(ranks, seen.placement), stretch, (route,))


def _places(
    routes: Routes, suspects: Mapping[int, Raised], slow: Mapping[int, Place], placement: Placement
) -> tuple[list[Place], int]:
    """Places that explain slow routes, and how many routes have nothing to be told from.

    A rank is named where all of its routes are raised, two of them clearly, and one leads to ranks of which that holds
    for none; else the pair or the group, if most of those that join the same stages are not slow.
    """
    rows: dict[int, list[int]] = {}
    for route, rank in zip(routes.route_of.tolist(), routes.rank_of.tolist(), strict=True):
        if rank in suspects and np.isfinite(routes.levels.logs[route]).any():
            rows.setdefault(rank, []).append(route)
    several = {rank for rank, touched in rows.items() if sum(route in slow for route in touched) > 1}
    places = [
        Place(CulpritKind.RANK, (rank,), _hosts((rank,), placement), suspects[rank], tuple(rows[rank]))
        for rank in sorted(several)
        if any(set(routes.members(route).tolist()) & several == {rank} for route in rows[rank])
    ]
    blamed = {place.ranks[0] for place in places}
    beside, left = alike(routes, placement), 0
    for route, place in slow.items():
        if not blamed.isdisjoint(place.ranks):
            continue
        twins = [other for other in beside[route] if other != route]
        if not twins or 2 * (1 + sum(other in slow for other in twins)) > 1 + len(twins):
            left += 1
            continue
        places.append(place)
    return places, left


def _hosts(ranks: tuple[int, ...], placement: Placement) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for rank in ranks if (host := placement.host_of(rank)) is not None))


def _not_named(left: int) -> tuple[Abstention, ...]:
    if not left:
        return ()
    reason = (
        f"{left} pairs or groups are slower than others, but most that join the same stages are, or no other does: a "
        f"slow link cannot be told from what they send"
    )
    return (Abstention(SIGNAL, reason),)
