"""Places of slow links as cases: what they cost, whether that is worth an accusation, and the accusation itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.verdicts import Abstention
from ..detect import Raised
from ..observations import Observations
from ..peers import FloatArray
from ..verdict import Cause, Culprit, CulpritKind, severity
from .channels import Channels
from .counters import counter_evidence
from .evidence import gather
from .levels import Levels, Routes, raised_rows
from .loss import Excess, excesses, lost_share
from .own_work import own_work, own_work_evidence
from .places import Place

MOST_CULPRITS = 20

MIN_EXCESS_SHARE = 0.005
"""What the slow transfers of a step take longer, as a share of the step: less is not worth an accusation."""

GROUP_RATIO = 2.0
GROUP_PEERS = 3
"""A group or a pair whose members cannot be told apart is accused from this ratio, and so many peers, on."""

WHOLE_MACHINE = 0.6
"""Factor on the confidence that it is the network, where the ranks' own work is slow too."""


@dataclass(frozen=True, slots=True)
class Case:
    """One place with what it costs, and the channels that show it."""

    place: Place
    found: tuple[Excess, ...]
    lost_share: float
    channels: Channels


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


def accuse(
    store: Store, attempt: Attempt, cases: list[Case], routes: Routes, seen: Observations
) -> tuple[tuple[Culprit, ...], list[Abstention]]:
    """Accusations of the costliest cases, and why some are none: the store has no answer to show for them."""
    culprits = [culprit_of(store, attempt, one, routes, seen) for one in cases[:MOST_CULPRITS]]
    proven = tuple(one for one in culprits if one.evidence)
    if len(proven) == len(culprits):
        return proven, []
    reason = f"{len(culprits) - len(proven)} slow links are not named: their transfers cannot be asked for again"
    return proven, [Abstention("transfers", reason)]


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
    return int(channels.steps[stretch.first]), seen.last_of(int(channels.steps[stretch.last]), channels.step_width)


def _confidence(case: Case) -> float:
    """0 to 1, an ordering aid: grows with z and the ratio; less for a place that is one of several explanations."""
    place, first = case.place, case.found[0]
    sure = 1 - 0.5 * math.exp(-max(place.stretch.z - 8.0, 0.0) / 8.0)
    apart = 1 - 0.5 * math.exp(-max(first.ratio - 1.4, 0.0) / 0.6)
    whole = 0.7 if place.kind in (CulpritKind.GROUP, CulpritKind.LINK) else 1.0
    few = 0.6 if max(one.peers for one in case.found) < GROUP_PEERS else 1.0
    return round(min(sure, apart, 0.99) * min(whole, few), 3)
