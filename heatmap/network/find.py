"""`find_network`: from a store to slow links, NICs, hosts' networks and groups; or why they could not be judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.verdicts import Abstention
from ..observations import Observations
from ..source import Source
from ..verdict import Findings
from .cases import Case, accuse, by_id, case_of
from .channels import Channels, hosts_without_like, log_ratios, usual_ms
from .levels import find_routes, rank_levels, visible_ratio
from .notes import SIGNAL, general_notes, not_named, uncovered, unexplained_note, without_like
from .operations import load_channels
from .past import against_own_past
from .places import Place, locate, of_whole_stages, too_many, unexplained
from .window_operations import load_window_channels


def find_network(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Pairs and groups whose transfers are slow although all have arrived, and the host, NIC or link behind them.

    Only communication between hosts is judged, against channels of the same segment, payload and size. Ranks that wait
    for a slow link are never accused.
    """
    if len(set(seen.placement.hosts)) < 2:
        recorded, size = len(seen.ranks), attempt.world_size or 0
        if recorded < size:
            return _abstain(f"{recorded} of {size} ranks were recorded, all on one host: the network was not seen")
        return _abstain("all ranks run on one host: there are no links between hosts to compare")
    if seen.source.source == Source.ROLLUPS:
        channels = load_window_channels(
            store, attempt, seen.placement, seen.ranks, seen.steps, seen.source.step_width
        )  # fmt: skip
    else:
        channels = load_channels(store, attempt, seen.placement, seen.ranks, seen.steps)
    if not len(channels):
        return _abstain(
            "no communication between hosts was recorded of which all members, the group and the sequence are known, "
            "so a slow link is not looked for"
        )
    return judge_channels(store, attempt, channels, seen)


def judge_channels(store: Store, attempt: Attempt, channels: Channels, seen: Observations) -> Findings:
    """Findings from channels that are loaded; the store is asked for evidence alone."""
    usual, logs = usual_ms(channels), log_ratios(channels)
    routes = find_routes(channels, logs)
    levels = rank_levels(routes)
    visible = visible_ratio(levels)
    hosts = hosts_without_like(channels, seen.placement)
    past = against_own_past(store, attempt, channels, hosts, seen) if hosts else Findings()
    if not np.isfinite(logs).any():
        note = _abstain("no pair or group that communicates between hosts has others of its kind to be compared with")
        return replace(past, abstained=note.abstained)
    if visible is None:
        what = "steps" if channels.step_width == 1 else f"windows of {channels.step_width} steps"
        return _abstain(f"{len(channels.steps)} {what} are too few to tell a slow link from noise")
    slow = by_id(routes.levels, channels)
    places = locate(routes, by_id(levels, channels), slow, seen.placement)
    cases = [one for place in places if (one := case_of(place, routes, channels, usual, seen.step_ms)) is not None]
    left = unexplained(places, slow, routes)
    notes, blocking = not_named(places, cases, left), unexplained_note(left, slow, routes, channels, usual, seen)
    if not slow and not places:
        cases = _partial(channels, seen)
    if (reason := _unbelievable([one.place for one in cases], seen)) is not None:
        return _abstain(reason)
    cases.sort(key=lambda one: (-one.lost_share, one.place.ranks))
    culprits, unproven = accuse(store, attempt, cases, routes, seen)
    if not culprits:  # else what became longer has its cause
        culprits, blocking = past.culprits, (*blocking, *past.blocking)
    notes += [*unproven, *general_notes(channels, logs, visible, len(cases))]
    return Findings(culprits, (*notes, *without_like(hosts), *uncovered(levels, seen)), blocking)


def _partial(channels: Channels, seen: Observations) -> list[Case]:
    """The one place that shows in the means of windows alone, since its links are slow in parts of these.

    A bound of a mean contains waiting. So it is believed of a rank or a host only, all of whose routes are raised, and
    only if it is the only one: a slow link elsewhere, or uneven work, raises the means of many.
    """
    means = channels.means()
    if means is None:
        return []
    usual, routes = usual_ms(means), find_routes(means, log_ratios(means))
    places = locate(routes, by_id(rank_levels(routes), means), {}, seen.placement)
    if len(places) != 1:
        return []
    return [one for place in places if (one := case_of(place, routes, means, usual, seen.step_ms)) is not None]


def _unbelievable(places: list[Place], seen: Observations) -> str | None:
    """Why what was found is no fault of each place: there are too many of them, or most of a stage."""
    if too_many(places, seen.placement):
        return (
            f"transfers of {len(places)} of the job's ranks, pairs or hosts are slower than the others': too many for "
            f"the others to be the yardstick"
        )
    if stages := of_whole_stages(places, seen.placement):
        named = ", ".join(str(stage) for stage in stages)
        return (
            f"transfers of most hosts of stage {named} are slower than those of other stages: what a stage sends, or "
            f"how its hosts are connected, cannot be told from slow links"
        )
    return None


def _abstain(reason: str) -> Findings:
    """Not judged; that does not forbid the word healthy, which then speaks of the ranks' own work alone."""
    return Findings(abstained=(Abstention(SIGNAL, reason),))
