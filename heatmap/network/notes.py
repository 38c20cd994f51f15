"""What could not be judged of links between hosts, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...collectors.verdicts import Abstention
from ..detect import Raised
from ..observations import Observations
from ..peers import FloatArray
from ..verdict import CulpritKind
from .cases import MOST_CULPRITS, Case, case_of
from .channels import Channels
from .levels import MIN_STEPS, Levels, Routes
from .places import Place

SIGNAL = "network"

MIN_BLOCKING_SHARE = 0.02
"""Share of the step that a slow group which nobody is accused of must cost to forbid the word healthy."""

MAX_VISIBLE_RATIO = 2.5
"""Where only links slower than this would show, transfers are not called even."""

_SHOWN_HOSTS = 4
_SHOWN_RANKS = 8


def uncovered(levels: Levels, seen: Observations) -> list[Abstention]:
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


def without_like(hosts: Sequence[str]) -> list[Abstention]:
    """Hosts whose networks cannot be judged, since all transfers to compare with would be slow with them."""
    if not hosts:
        return []
    shown = ", ".join(hosts[:_SHOWN_HOSTS]) + (", ..." if len(hosts) > _SHOWN_HOSTS else "")
    reason = (
        f"nearly every pair or group between hosts has a member on the same hosts ({shown}): one slow network there "
        f"would slow all of them alike, and would not show"
    )
    return [Abstention(SIGNAL, reason)]


def unexplained_note(
    left: list[int],
    slow: Mapping[int, Raised],
    routes: Routes,
    channels: Channels,
    usual: FloatArray,
    seen: Observations,
) -> tuple[Abstention, ...]:
    """The costliest of the slow routes that nobody is accused of: the job is not healthy with it."""
    whole = [Place(CulpritKind.GROUP, tuple(routes.members(one).tolist()), (), slow[one], (one,)) for one in left]
    cases = [case_of(place, routes, channels, usual, seen.step_ms, MIN_BLOCKING_SHARE) for place in whole]
    costly = [one for one in cases if one is not None]
    if not costly:
        return ()
    worst = max(costly, key=lambda one: one.found[0].a_step_ms)
    ranks = ", ".join(str(rank) for rank in worst.place.ranks[:_SHOWN_RANKS])
    more = ", ..." if len(worst.place.ranks) > _SHOWN_RANKS else ""
    first = worst.found[0]
    reason = (
        f"transfers of {first.segment} take x{first.ratio:.2f} of what others take among ranks {ranks}{more}, and "
        f"whether a link or what they send makes the difference cannot be told"
    )
    return (Abstention(SIGNAL, reason),)


def not_named(places: list[Place], cases: list[Case], left: list[int]) -> list[Abstention]:
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


def general_notes(channels: Channels, logs: FloatArray, visible: float, cases: int) -> list[Abstention]:
    """What could not be judged of the transfers."""
    width = channels.step_width
    shortest = MIN_STEPS if width == 1 else 2 * width - 1
    notes = [
        Abstention(
            "short-trouble",
            f"a link that is slow for fewer than {shortest} steps at a stretch, or in bursts, may not be noticed",
        )
    ]
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
