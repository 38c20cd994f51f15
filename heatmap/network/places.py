"""From ranks all of whose routes are slow to where the fault lies: a rank's NIC, a host, a link, or a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..detect import Raised
from ..peers import Placement
from ..verdict import CulpritKind
from .levels import Routes

HOST_SHARE = 0.75
"""Share of a host's ranks whose NICs are slow at once, from which on the host is: chance does not pick one machine."""

MIN_BESIDE = 3
"""Pairs or groups of the same stages, without which one of them is not accused as a whole."""

MOST_HOSTS = 0.25
"""Share of the hosts that may have slow links at the same time: beyond, their like is not what they are compared to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault lies: the ranks and hosts that are accused, the stretch in which, and the slow routes."""

    kind: CulpritKind
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    stretch: Raised
    routes: tuple[int, ...]


def locate(
    routes: Routes, suspects: Mapping[int, Raised], slow: Mapping[int, Raised], placement: Placement
) -> list[Place]:
    """Places that explain all slow routes. ``suspects``: ranks whose routes are all slow; ``slow``: routes.

    A suspect is accused if one of its routes has no suspect on another host: nobody else can be the cause. Who shares
    each slow route with an accused rank is a victim. What is left has several explanations, of which none is chosen:
    then the pair, or the group, is named as a whole.
    """
    rows: dict[int, list[int]] = {rank: [] for rank in suspects}
    for route, rank in zip(routes.route_of.tolist(), routes.rank_of.tolist(), strict=True):
        if rank in rows and np.isfinite(routes.levels.logs[route]).any():
            rows[rank].append(route)
    hosts = {rank: placement.host_of(rank) or "" for rank in suspects}
    suspected: dict[int, set[str]] = defaultdict(set)
    for rank in suspects:
        for route in rows[rank]:
            suspected[route].add(hosts[rank])
    accused = {rank for rank in suspects if any(len(suspected[route]) == 1 for route in rows[rank])}
    places = _by_host(accused, rows, suspects, routes, placement)
    blamed = {rank for place in places for rank in place.ranks}
    left = [route for route in slow if blamed.isdisjoint(routes.members(route).tolist())]
    return places + _wholes(left, routes, slow, placement)


def _by_host(
    accused: set[int],
    rows: Mapping[int, Sequence[int]],
    suspects: Mapping[int, Raised],
    routes: Routes,
    placement: Placement,
) -> list[Place]:
    """A host where most of its ranks that reach other hosts are suspects, and there are several; else each rank."""
    known = np.unique(routes.rank_of)
    host_of = np.asarray(placement.hosts, dtype=object)[placement.at(known)]
    places = []
    for host in sorted({placement.host_of(rank) or "" for rank in accused}):
        connected = known[host_of == host].tolist()
        own = [rank for rank in connected if rank in suspects]
        if host and len(own) >= max(2.0, HOST_SHARE * len(connected)):
            touched = tuple(sorted({route for rank in own for route in rows[rank]}))
            surest = max((suspects[rank] for rank in own if rank in accused), key=lambda one: one.z)
            places.append(Place(CulpritKind.HOST, tuple(connected), (host,), surest, touched))
            continue
        for rank in own:
            if rank in accused:
                where = (host,) if host else ()
                places.append(Place(CulpritKind.RANK, (rank,), where, suspects[rank], tuple(rows[rank])))
    return places


def _wholes(left: Sequence[int], routes: Routes, slow: Mapping[int, Raised], placement: Placement) -> list[Place]:
    """Slow routes that no rank explains: the pair or group itself.

    It must stand out among those of the same stages: where most of them are slow, the stage has more to send.
    """
    places = []
    like = alike(routes, placement) if left else {}
    for route in left:
        beside = like[route]
        if len(beside) <= MIN_BESIDE or 2 * sum(other in slow for other in beside) > len(beside):
            continue
        ranks = tuple(sorted(routes.members(route).tolist()))
        hosts = tuple(dict.fromkeys(host for rank in ranks if (host := placement.host_of(rank)) is not None))
        kind = CulpritKind.LINK if len(ranks) == 2 else CulpritKind.GROUP
        places.append(Place(kind, ranks, hosts, slow[route], (route,)))
    return places


def alike(routes: Routes, placement: Placement) -> dict[int, list[int]]:
    """For every route, those of as many members that join the same stages, itself among them."""
    begins = np.searchsorted(routes.route_of, np.arange(len(routes.levels.ids)))
    roles = placement.roles(routes.rank_of)
    lowest, highest = np.minimum.reduceat(roles, begins), np.maximum.reduceat(roles, begins)
    size = np.bincount(routes.route_of)
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    keys = list(zip(lowest.tolist(), highest.tolist(), size.tolist(), strict=True))
    for route, key in enumerate(keys):
        found[key].append(route)
    return {route: found[key] for route, key in enumerate(keys)}


def unexplained(places: Sequence[Place], slow: Mapping[int, Raised], routes: Routes) -> list[int]:
    """Slow routes that belong to no place, and join no rank that is accused."""
    blamed = {rank for place in places for rank in place.ranks}
    named = {route for place in places for route in place.routes}
    return [one for one in slow if one not in named and blamed.isdisjoint(routes.members(one).tolist())]


def of_whole_stages(places: Sequence[Place], placement: Placement) -> dict[int, int]:
    """Stages of which more than half of the hosts are accused, two at least, and how many hosts: they have more to
    send, or are placed otherwise; none of their hosts is bad."""
    hosts: dict[int, set[str]] = defaultdict(set)
    for role, host in zip(placement.roles(placement.ranks).tolist(), placement.hosts, strict=True):
        hosts[role].add(host)
    accused: dict[int, set[str]] = defaultdict(set)
    for place in places:
        if place.kind in (CulpritKind.RANK, CulpritKind.HOST):
            for role in np.unique(placement.roles(np.array(place.ranks, np.int64))).tolist():
                accused[role].update(place.hosts)
    return {
        role: len(found)
        for role, found in sorted(accused.items())
        if len(found) >= 2 and 2 * len(found) > len(hosts[role])
    }


def too_many(places: Sequence[Place], placement: Placement) -> bool:
    """Whether so many hosts are accused that those they are compared with are hardly the usual case."""
    hosts = {host for place in places if place.kind in (CulpritKind.RANK, CulpritKind.HOST) for host in place.hosts}
    return len(hosts) > max(1.0, MOST_HOSTS * len(set(placement.hosts)))
