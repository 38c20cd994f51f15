"""A rank that became slower than it was, by how long it works while it has a core: sure enough to accuse it.

Ranks that share cores take turns, and whoever waits longer for a core is not slower. The column ``worked_ns`` of
``steps`` leaves that out. What is left of the differences between eight ranks on two cores, and of their changes from
step to step, is small enough for a lasting change of a tenth to stand out, whatever else runs there. A rank that shares
its core's caches with other programs becomes truly slower for a while: so a change has to last.
"""

from __future__ import annotations

import math

import numpy as np

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import literal
from ..collectors.verdicts import Evidence
from ..profiler.vocabulary import SegmentKind
from .asking import ask
from .cores import worked_ms
from .observations import Observations
from .own_change import Bar, OwnChange, find_own_change
from .peers import FloatArray, peer_counts, row_median
from .source import Source
from .verdict import Cause, Culprit, CulpritKind, Findings, Pattern, severity

ACCUSED = Bar(1.07, 4.0, 6.0, 60, by_itself=1.03)

MOST_OTHER_WORK = 0.02
"""Change of a rank's tokens beside its peers', as a logarithm, up to which its work is taken to be what it was."""


def find_slowed(store: Store, attempt: Attempt, seen: Observations, many_peers: int) -> Findings:
    """The rank whose work became slower, where ranks have fewer than ``many_peers``: with more, peers are the better
    yardstick. Without any it did work that no other rank does, and that changes in its own way.

    Nobody where it is not known how long each worked, as on GPUs, which time their work themselves, or where no
    communication was recorded: then who waits for the slow rank may look as busy.
    """
    if seen.source.source != Source.SPANS or not seen.cells or seen.waits_ms is None:
        return Findings()
    worked = worked_ms(store, attempt, seen)
    if seen.tokens is not None:
        worked = worked / seen.tokens.beside
    change = find_own_change(worked, ACCUSED)
    if change is None or not has_few_peers(seen, change.row, many_peers) or _has_other_work(change, seen):
        return Findings()
    return Findings(culprits=(_culprit(store, attempt, change, seen, worked),))


def _has_other_work(change: OwnChange, seen: Observations) -> bool:
    """Whether a rank was given another share of the tokens from the change on: what they cost is not known so well."""
    if seen.tokens is None or not seen.tokens.varies[change.row]:
        return False
    own = seen.tokens.beside[change.row : change.row + 1]
    shift = np.log(row_median(own[:, change.first :])) - np.log(row_median(own[:, : change.first]))
    return not abs(float(shift[0])) <= MOST_OTHER_WORK


def has_few_peers(seen: Observations, row: int, many_peers: int) -> bool:
    """Whether a rank has peers, but fewer than many: then they move as it does where the job's work changes."""
    roles = seen.placement.roles(seen.ranks)
    return 1 <= int(peer_counts(roles, np.ones(len(roles), bool))[row]) < many_peers


def _culprit(store: Store, attempt: Attempt, change: OwnChange, seen: Observations, worked: FloatArray) -> Culprit:
    rank, steps = int(seen.ranks[change.row]), (int(seen.steps[change.first]), int(seen.steps[-1]))
    compute = [one for one in seen.cells if one.kind == SegmentKind.COMPUTE] or list(seen.cells)
    costliest = max(compute, key=lambda one: float(np.nansum(one.per_step_ms()[change.row])))
    since = row_median(worked[change.row : change.row + 1, change.first :])[0]
    excess_ms, columns = since * (1 - math.exp(-change.effect)), len(seen.steps) - change.first
    total = float(np.nansum(seen.step_ms))
    lost = round(min(max(float(excess_ms) * columns / total, 0.0), 1.0), 6) if total > 0 else 0.0
    host = seen.placement.host_of(rank)
    return Culprit(
        ranks=(rank,),
        hosts=() if host is None else (host,),
        confidence=round(0.9 * (1 - 0.5 * math.exp(-(change.z - ACCUSED.z) / 3.0)), 3),
        severity=severity(lost),
        kind=CulpritKind.RANK,
        cause=Cause.SLOW_COMPUTE,
        segment=costliest.name,
        ratio=round(math.exp(change.effect), 4),
        steps=steps,
        pattern=Pattern.CHRONIC,
        lost_share=lost,
        evidence=_evidence(store, attempt, rank, steps, int(seen.steps[0])),
        against_own_past=True,
    )


def _evidence(store: Store, attempt: Attempt, rank: int, steps: tuple[int, int], begin: int) -> tuple[Evidence, ...]:
    """The rank's work a step, then and before; and what the others' grew by. Nothing where that has no answer."""
    past = begin, steps[0] - 1
    sql = _median_sql(attempt, f"rank = {rank}", steps)
    own, before = ask(store, sql, attempt), ask(store, _median_sql(attempt, f"rank = {rank}", past), attempt)
    others = (
        f"FROM ({_median_sql(attempt, f'rank <> {rank}', steps, by='rank')}) now "
        f"JOIN ({_median_sql(attempt, f'rank <> {rank}', past, by='rank')}) past USING (rank)"
    )
    growth = f"SELECT median(now.ms / past.ms) {others}"
    usual, largest = ask(store, growth, attempt), ask(store, f"SELECT max(now.ms / past.ms) {others}", attempt)
    if own is None or before is None or usual is None or largest is None or not before > 0:
        return ()
    return (
        Evidence(
            f"rank {rank} works {own:.2f} ms a step, recorded waits for communication and waits of its thread for a "
            f"core left out (median over steps {steps[0]} to {steps[1]}); {before:.2f} ms in steps {past[0]} to "
            f"{past[1]}: x{own / before:.2f}; sleep that no span shows is in it",
            own, before, "steps", sql,
        ),
        Evidence(
            f"the work of the median other rank is x{usual:.2f} of before in the same steps, and of none more than "
            f"x{largest:.2f}: what moves all of them is not this rank's",
            usual, own / before, "steps", growth,
        ),
    )  # fmt: skip


def _median_sql(attempt: Attempt, who: str, steps: tuple[int, int], *, by: str = "") -> str:
    """Median over steps of the time worked in ms; with ``by``, of each rank."""
    return (
        f"SELECT {f'{by}, ' if by else ''}median(worked_ns) / 1e6 AS ms FROM steps_all "
        f"WHERE run = {literal(attempt.run)} AND attempt = {attempt.attempt} AND {who} AND worked_ns > 0 "
        f"AND step BETWEEN {steps[0]} AND {steps[1]}" + (f" GROUP BY {by}" if by else "")
    )
