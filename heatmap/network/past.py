"""Links that have nobody to be compared with, against their own past: the job with one replica a host.

Where every pair or group between hosts has a member on the same host, one slow network there slows all of them alike.
What is left is time: transfers that became longer at some step, and made the steps longer by as much, became slow then.
Which host it is cannot be told, and what was slow from the first step on does not show: then nothing is called healthy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.verdicts import Abstention, Evidence
from ..asking import ask
from ..detect import Noise, find_raised, measure_noise
from ..observations import Observations
from ..peers import FloatArray, IntArray, column_median, row_median
from ..verdict import Cause, Culprit, CulpritKind, Findings, Pattern, severity
from .channels import TRIM_RATIO, Channels
from .evidence import transfer_sql
from .levels import MIN_RATIO, MIN_SHARE_BEYOND, MIN_STEPS, MIN_Z
from .loss import Excess

SIGNAL = "network"

LEAST_SHARE = 0.02
"""Share of the step that such transfers must take, or take longer, to be worth a word: less cannot cost more."""

LEAST_GROWTH = 0.5
"""What the steps became longer by, over what the transfers did: else these are hidden behind work."""


@dataclass(frozen=True, slots=True)
class Change:
    """Transfers of one kind that became longer: columns ``first`` to ``last``, milliseconds an operation before and
    in them, and the rows of the channels. ``a_step_ms`` is what all operations of a step take longer."""

    segment: str
    first: int
    last: int
    before_ms: float
    own_ms: float
    a_step_ms: float
    z: float
    rows: tuple[int, ...]
    to_the_end: bool


def against_own_past(
    store: Store, attempt: Attempt, channels: Channels, hosts: Sequence[str], seen: Observations
) -> Findings:
    """A finding of the job where transfers that touch ``hosts`` became longer; else why it is not healthy, if it may
    not be."""
    rows = _touching(channels, hosts, seen)
    share = _share_of_step(channels, rows, seen.step_ms)
    if not len(rows) or share < LEAST_SHARE:
        return Findings()
    changes = find_changes(channels, rows, seen.step_ms)
    if not changes:
        return Findings(blocking=(Abstention(SIGNAL, _NOT_SEEN.format(share)),))
    return Findings(culprits=(_culprit(store, attempt, changes, channels, seen),))


_NOT_SEEN = (
    "transfers that have no like to be compared with take {:.0%} of the step; they did not become longer, but a "
    "network that was slow from the first step on would not show"
)


def _touching(channels: Channels, hosts: Sequence[str], seen: Observations) -> IntArray:
    """Channels with a member on one of the hosts."""
    at = seen.placement.at(channels.rank_of)
    names = np.append(np.asarray(seen.placement.hosts, dtype=object), "").astype(str)
    touched: IntArray = np.unique(channels.channel_of[np.isin(names[at], list(hosts))])
    return touched


def _share_of_step(channels: Channels, rows: IntArray, step_ms: FloatArray) -> float:
    """What the transfers of the busiest rank take of the median step: more cannot be lost in them than that."""
    if not len(rows) or not np.isfinite(step_ms).any():
        return 0.0
    each = np.nan_to_num(row_median(channels.transfer_ms)) * channels.per_step
    of_member = np.where(np.isin(channels.channel_of, rows), each[channels.channel_of], 0.0)
    _, place = np.unique(channels.rank_of, return_inverse=True)
    return float(np.bincount(place.reshape(-1), of_member).max()) / float(np.nanmedian(step_ms))


def find_changes(channels: Channels, rows: IntArray, step_ms: FloatArray) -> list[Change]:
    """Kinds of transfers among the given channels that became longer and made the steps longer, the costliest first."""
    found = []
    for kind in np.unique(channels.kind[rows]):
        own = rows[channels.kind[rows] == kind]
        change = _change(channels, own)
        if change is None:
            continue
        inside = np.zeros(len(step_ms), bool)
        inside[change.first : change.last + 1] = True
        usual, now = (float(np.nanmedian(step_ms[part])) for part in (~inside, inside))
        if change.a_step_ms >= LEAST_SHARE * usual and now - usual >= LEAST_GROWTH * change.a_step_ms:
            found.append(change)
    return sorted(found, key=lambda one: -one.a_step_ms)


def _change(channels: Channels, rows: IntArray) -> Change | None:
    """The stretch in which channels of one kind take longer than before; None where there is none that is sure."""
    typical = column_median(channels.transfer_ms[rows])
    known, least = np.isfinite(typical) & (typical > 0), -(-MIN_STEPS // channels.step_width)
    if known.sum() < 3 * max(least, 2):
        return None
    logs = np.log(np.where(known, typical, np.nan))
    logs -= _quiet(logs[known], max(least, 2))
    raised = find_raised(0, logs, Noise(0.01, 0.01, 1), math.log(MIN_RATIO), 0.0, 0)
    if raised is None or raised.share_beyond < MIN_SHARE_BEYOND or raised.effect < math.log(MIN_RATIO):
        return None
    inside = np.zeros(len(logs), bool)
    inside[raised.first : raised.last + 1] = True
    before = known & (np.arange(len(logs)) < raised.first)
    if min((inside & known).sum(), before.sum()) < max(least, 2):
        return None
    levels = float(np.median(logs[known & ~inside])), float(np.median(logs[known & inside]))
    noise = measure_noise((logs - np.where(inside, levels[1], levels[0]))[None])
    effect = levels[1] - levels[0]
    if noise is None or effect < math.log(MIN_RATIO):
        return None
    z = effect / math.hypot(noise.standard_error(int(inside.sum())), noise.standard_error(int(before.sum())))
    if z < MIN_Z:
        return None
    was, now = float(np.median(typical[known & ~inside])), float(np.median(typical[known & inside]))
    a_step_ms = (now - was) * float(np.median(channels.per_step[rows]))
    return Change(
        channels.names[channels.segment[rows[0]]], raised.first, raised.last, was, now, a_step_ms, z,
        tuple(int(row) for row in rows), raised.to_the_end,
    )  # fmt: skip


def _quiet(logs: FloatArray, least: int) -> float:
    """What is usual, of log-times [S]: the median of those near the lower quartile, or of the first if that is less.

    A network that has been slow for most of a long job was so in its lower quartile too.
    """
    quartile = float(np.quantile(logs, 0.25))
    return min(float(np.median(logs[logs <= quartile + math.log(TRIM_RATIO)])), float(np.median(logs[:least])))


def _culprit(
    store: Store, attempt: Attempt, changes: Sequence[Change], channels: Channels, seen: Observations
) -> Culprit:
    worst, width = changes[0], channels.step_width
    steps = int(channels.steps[worst.first]), seen.last_of(int(channels.steps[worst.last]), width)
    past = int(channels.steps[0]), int(channels.steps[worst.first]) - 1
    total, columns = float(np.nansum(seen.step_ms)), worst.last - worst.first + 1
    lost = round(min(worst.a_step_ms * columns / total, 1.0), 6) if total > 0 else 0.0
    return Culprit(
        ranks=(),
        hosts=(),
        confidence=round(0.9 * (1 - 0.5 * math.exp(-(worst.z - MIN_Z) / 8.0)), 3),
        severity=severity(lost),
        kind=CulpritKind.JOB,
        cause=Cause.NETWORK,
        segment=worst.segment,
        ratio=round(worst.own_ms / worst.before_ms, 4),
        steps=steps,
        pattern=Pattern.CHRONIC if worst.to_the_end else Pattern.ONE_OFF,
        lost_share=lost,
        evidence=tuple(
            said for one in changes[:3] if (said := _evidence(store, attempt, one, channels, steps, past)) is not None
        ),
    )


def _evidence(
    store: Store, attempt: Attempt, one: Change, channels: Channels, steps: tuple[int, int], past: tuple[int, int]
) -> Evidence | None:
    """The transfers' median in the stretch and before it, each asked from the store."""
    what = Excess(one.segment, one.own_ms, one.before_ms, 1.0, one.rows, 0)
    sql = transfer_sql(attempt, what, channels, steps)
    own, before = ask(store, sql, attempt), ask(store, transfer_sql(attempt, what, channels, past), attempt)
    if own is None or before is None:
        return None
    table = "events" if channels.exact else "rank_windows"
    statement = (
        f"transfers of {one.segment} take {own:.2f} ms once all have arrived (steps {steps[0]} to {steps[1]}), "
        f"{before:.2f} ms before: {one.a_step_ms:.1f} ms more a step; all pairs or groups between hosts did so at once"
    )
    return Evidence(statement, own, before, table, sql)
