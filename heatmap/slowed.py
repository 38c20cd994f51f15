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
from .per_token import SIGNAL
from .rank_tokens import ALIKE
from .source import Source
from .verdict import Abstention, Cause, Culprit, CulpritKind, Findings, Pattern, severity

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
    if change is None or not has_few_peers(seen, change.row, many_peers):
        return Findings()
    why = _other_work(change, seen)
    if why is not None:
        return Findings(blocking=(why,))
    return Findings(culprits=(_culprit(store, attempt, change, seen, worked),))


def _other_work(change: OwnChange, seen: Observations) -> Abstention | None:
    """Why a rank is not accused that was given another share of the tokens from the change on; None where it is.

    How much of its work goes with tokens is not known: of more of them, all of it may with their square; of fewer, all
    may be there whatever they are. So a factor of f explains that time per token changes by f or by 1 / f.
    """
    was, now = _tokens_of(change, seen)
    shift = abs(math.log(now / was))
    if shift <= MOST_OTHER_WORK or change.effect - shift >= math.log(ACCUSED.ratio):
        return None
    reason = (
        f"rank {int(seen.ranks[change.row])} works x{math.exp(change.effect):.2f} of what it worked before per token, "
        f"since about step {int(seen.steps[change.first])}, when it got x{now / was:.2f} of its tokens, both beside "
        f"the others': that may explain it, it is not called slow, and nobody else could be judged by its own past"
    )
    return Abstention(SIGNAL, reason)


def _tokens_of(change: OwnChange, seen: Observations) -> tuple[float, float]:
    """A rank's tokens beside its peers', before a change and since."""
    if seen.tokens is None:
        return 1.0, 1.0
    return seen.tokens.change(change.row, slice(0, change.first), slice(change.first, None))


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
        evidence=_evidence(store, attempt, rank, steps, int(seen.steps[0]), _tokens(change, seen)),
        against_own_past=True,
    )


def _tokens(change: OwnChange, seen: Observations) -> str:
    """What is said of a rank's tokens where they changed too; the ratio of a finding is without them."""
    was, now = _tokens_of(change, seen)
    if abs(math.log(now / was)) <= ALIKE:
        return ""
    return f"; it got x{now / was:.2f} of its tokens then, beside its peers', which the ratio leaves out"


def _evidence(
    store: Store, attempt: Attempt, rank: int, steps: tuple[int, int], begin: int, tokens: str
) -> tuple[Evidence, ...]:
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
            f"{past[1]}: x{own / before:.2f}; sleep that no span shows is in it{tokens}",
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
