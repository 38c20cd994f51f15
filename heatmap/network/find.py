"""`find_network`: from a store to slow links, NICs, hosts' networks and groups; or why they could not be judged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...collectors.store import Attempt, Store
from ...collectors.verdicts import Abstention
from ..detect import Raised
from ..observations import Observations
from ..peers import FloatArray
from ..source import Source
from ..verdict import Cause, Culprit, CulpritKind, Findings, severity
from .channels import Channels, log_ratios, usual_ms
from .counters import counter_evidence
from .evidence import gather
from .levels import MIN_STEPS, Levels, Routes, find_routes, raised_rows, rank_levels, visible_ratio
from .loss import Excess, excesses, lost_share
from .operations import load_channels
from .own_work import own_work, own_work_evidence
from .places import Place, locate, of_whole_stages, too_many, unexplained
from .window_operations import load_window_channels

SIGNAL = "network"
MOST_CULPRITS = 20
MIN_EXCESS_SHARE = 0.005
"""What the slow transfers of a step take longer, as a share of the step: less is not worth an accusation."""

GROUP_RATIO = 2.0
GROUP_PEERS = 3
"""A group or a pair whose members cannot be told apart is accused from this ratio, and so many peers, on."""

_SHOWN_HOSTS = 4

WHOLE_MACHINE = 0.6
"""Factor on the confidence that it is the network, where the ranks' own work is slow too."""

MAX_VISIBLE_RATIO = 2.5
"""Where only links slower than this would show, transfers are not called even."""


@dataclass(frozen=True, slots=True)
class Case:
    """One place with what it costs, and the channels that show it."""

    place: Place
    found: tuple[Excess, ...]
    lost_share: float
    channels: Channels


def find_network(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Pairs and groups whose transfers are slow although all have arrived, and the host, NIC or link behind them.

    Only communication between hosts is judged, against channels of the same segment, payload and size. Ranks that wait
    for a slow link are never accused.
    """
    if len(set(seen.placement.hosts)) < 2:
        return _abstain("all ranks run on one host: nothing goes over a network")
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
    if not np.isfinite(logs).any():
        return _abstain("no pair or group that communicates between hosts has others of its kind to be compared with")
    if visible is None:
        what = "steps" if channels.step_width == 1 else f"windows of {channels.step_width} steps"
        return _abstain(f"{len(channels.steps)} {what} are too few to tell a slow link from noise")
    slow = by_id(routes.levels, channels)
    places = locate(routes, by_id(levels, channels), slow, seen.placement)
    cases = [one for place in places if (one := case_of(place, routes, channels, usual, seen.step_ms)) is not None]
    notes = _not_named(places, cases, unexplained(places, slow, routes))
    if not slow and not places:
        cases = _partial(channels, seen)
    if (reason := _unbelievable([one.place for one in cases], seen)) is not None:
        return _abstain(reason)
    cases.sort(key=lambda one: (-one.lost_share, one.place.ranks))
    culprits = tuple(culprit_of(store, attempt, one, routes, seen) for one in cases[:MOST_CULPRITS])
    notes += _notes(channels, logs, visible, len(cases))
    return Findings(culprits, (*notes, *_uncovered(levels, seen)))


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


def by_id(levels: Levels, channels: Channels) -> dict[int, Raised]:
    """Stretches in which rows are raised, by what the rows stand for."""
    return {int(levels.ids[one.row]): one for one in raised_rows(levels, channels.step_width)}


def case_of(
    place: Place,
    routes: Routes,
    channels: Channels,
    usual: FloatArray,
    step_ms: FloatArray,
    min_excess_share: float = MIN_EXCESS_SHARE,
) -> Case | None:
    """A place, if it is worth an accusation."""
    found = excesses(place, routes, channels, usual)
    if not found or not found[0].a_step_ms > 0:
        return None
    inside = step_ms[place.stretch.first : place.stretch.last + 1]
    length = float(np.nanmedian(inside)) if np.isfinite(inside).any() else math.nan
    if sum(one.a_step_ms for one in found) < min_excess_share * length:
        return None
    if place.kind in (CulpritKind.GROUP, CulpritKind.LINK) and (
        found[0].ratio < GROUP_RATIO or found[0].peers < GROUP_PEERS
    ):
        return None
    return Case(place, found, lost_share(place, found, step_ms, channels.step_width), channels)


def culprit_of(store: Store, attempt: Attempt, case: Case, routes: Routes, seen: Observations) -> Culprit:
    """The accusation of a place, with its evidence."""
    place, first, channels = case.place, case.found[0], case.channels
    steps = _steps(place.stretch, channels, seen)
    evidence = gather(store, attempt, place, routes, case.found, channels, steps)
    confidence, work = _confidence(case), own_work(place.ranks, place.stretch, seen)
    if work is not None and work.is_slow:
        confidence = round(WHOLE_MACHINE * confidence, 3)
        evidence += own_work_evidence(store, attempt, place.ranks, steps, work, channels.step_width)
    return Culprit(
        ranks=place.ranks,
        hosts=place.hosts,
        confidence=confidence,
        severity=severity(case.lost_share),
        kind=place.kind,
        cause=Cause.NETWORK,
        segment=first.segment,
        ratio=round(first.ratio, 4),
        steps=steps,
        pattern=place.stretch.pattern,
        lost_share=case.lost_share,
        evidence=evidence + counter_evidence(store, attempt, place, steps),
    )


def _steps(stretch: Raised, channels: Channels, seen: Observations) -> tuple[int, int]:
    last = int(channels.steps[stretch.last]) + channels.step_width - 1
    return int(channels.steps[stretch.first]), last if seen.last_step is None else min(last, seen.last_step)


def _confidence(case: Case) -> float:
    """0 to 1, an ordering aid: grows with z and the ratio; less for a place that is one of several explanations."""
    place, first = case.place, case.found[0]
    sure = 1 - 0.5 * math.exp(-max(place.stretch.z - 8.0, 0.0) / 8.0)
    apart = 1 - 0.5 * math.exp(-max(first.ratio - 1.4, 0.0) / 0.6)
    whole = 0.7 if place.kind in (CulpritKind.GROUP, CulpritKind.LINK) else 1.0
    few = 0.6 if max(one.peers for one in case.found) < GROUP_PEERS else 1.0
    return round(min(sure, apart, 0.99) * min(whole, few), 3)


def _uncovered(levels: Levels, seen: Observations) -> list[Abstention]:
    """Hosts none of whose transfers could be compared."""
    at = seen.placement.at(levels.ids[np.isfinite(levels.logs).any(axis=1)])
    hosts = np.asarray(seen.placement.hosts, dtype=object)
    chosen = seen.placement.at(seen.ranks)
    missing = sorted(set(hosts[chosen[chosen >= 0]].tolist()) - set(hosts[at[at >= 0]].tolist()))
    if not missing:
        return []
    shown = ", ".join(missing[:_SHOWN_HOSTS]) + (", ..." if len(missing) > _SHOWN_HOSTS else "")
    reason = f"no transfer of {len(missing)} hosts ({shown}) could be compared with others"
    return [Abstention(SIGNAL, reason)]


def _not_named(places: list[Place], cases: list[Case], left: list[int]) -> list[Abstention]:
    """Slow transfers that nobody is accused of."""
    notes = []
    if len(places) > len(cases):
        count = len(places) - len(cases)
        reason = f"{count} slow pairs, groups or NICs cost too little, or stand out too little, to be named"
        notes.append(Abstention("transfers", reason))
    if left:
        reason = (
            f"{len(left)} pairs or groups are slower than others, but most of their own stages are, or nothing else of "
            f"these stages is left to compare them with: whether a link or what they send makes the difference cannot "
            f"be told"
        )
        notes.append(Abstention(SIGNAL, reason))
    return notes


def _notes(channels: Channels, logs: FloatArray, visible: float, cases: int) -> list[Abstention]:
    """What could not be judged of the transfers."""
    width = channels.step_width
    shortest = MIN_STEPS if width == 1 else 2 * width - 1
    notes = [Abstention("short-trouble", f"a link that is slow for fewer than {shortest} steps may not be noticed")]
    alone = sorted({channels.names[channels.segment[row]] for row in np.flatnonzero(~np.isfinite(logs).any(axis=1))})
    if alone:
        notes.append(
            Abstention("transfers", f"{', '.join(alone)}: there is no other group of this kind to compare them with")
        )
    if visible > MAX_VISIBLE_RATIO:
        notes.append(
            Abstention(SIGNAL, f"transfers are so uneven that only links slower than x{visible:.1f} would show")
        )
    if cases > MOST_CULPRITS:
        notes.append(Abstention(SIGNAL, f"{cases - MOST_CULPRITS} more slow links cost less and are not listed"))
    return notes
