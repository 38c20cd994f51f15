"""Whether those whose links are slow work slowly too: then the machine may be at fault, and not its network alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Evidence
from ..asking import ask
from ..detect import Raised
from ..observations import MAIN_KINDS, Observations
from ..peers import peers_median, row_median

MIN_RATIO = 1.15
"""Own time over the peers' from which on the work is called slow too."""


@dataclass(frozen=True, slots=True)
class OwnWork:
    """Own work of some ranks in a stretch, milliseconds a step: the median of theirs, and of their peers'."""

    own_ms: float
    peers_ms: float

    @property
    def is_slow(self) -> bool:
        """Whether it takes clearly longer than the peers'."""
        return self.peers_ms > 0 and self.own_ms >= MIN_RATIO * self.peers_ms


def own_work(ranks: tuple[int, ...], stretch: Raised, seen: Observations) -> OwnWork | None:
    """What the ranks' own compute takes in a stretch beside that of their peers; None where it is not known."""
    cells = [one for one in seen.cells if one.kind in MAIN_KINDS]
    if not cells:
        return None
    times = np.stack([one.per_step_ms() for one in cells])
    known = np.isfinite(times).any(axis=0)
    work = np.where(known, np.nansum(times, axis=0), np.nan)[:, stretch.first : stretch.last + 1]
    rows = np.flatnonzero(np.isin(seen.ranks, ranks))
    excluded = np.zeros(len(seen.ranks), bool)
    excluded[rows] = True
    peers = peers_median(work, seen.placement.roles(seen.ranks), excluded)[rows]
    own, like = row_median(row_median(work[rows])[None])[0], row_median(row_median(peers)[None])[0]
    return OwnWork(float(own), float(like)) if np.isfinite(own) and np.isfinite(like) else None


def own_work_evidence(
    store: Store, attempt: Attempt, ranks: tuple[int, ...], steps: tuple[int, int], found: OwnWork, width: int
) -> tuple[Evidence, ...]:
    """Says that the accused work slowly too; the value is asked from the store."""
    kinds = ", ".join(literal(str(kind)) for kind in MAIN_KINDS)
    table, value, extra = ("events", "sum(t.self_ns) / 1e6", "t.status = 'ok'")
    step = "step"
    if width > 1:
        table, value = "rank_windows", f"sum(t.self_sum_ns) / 1e6 / {width}"
        step, extra = "first_step", f"t.window_steps = {width}"
    sql = (
        f"SELECT median(ms) FROM (SELECT t.rank, t.{step}, {value} AS ms FROM {table} t JOIN segments s "
        f"USING (run, attempt, segment) WHERE t.run = {literal(attempt.run)} AND t.attempt = {attempt.attempt} "
        f"AND {extra} AND t.{step} BETWEEN {steps[0]} AND {steps[1]} AND s.kind IN ({kinds}) "
        f"AND t.rank IN ({', '.join(str(rank) for rank in ranks)}) GROUP BY ALL)"
    )
    own = ask(store, sql, attempt)
    if own is None:
        return ()
    statement = (
        f"own work takes {own:.1f} ms a step there too, {found.peers_ms:.1f} ms on its peers: the whole machine may be "
        f"slow, and not its network alone"
    )
    return (Evidence(statement, own, round(found.peers_ms, 6), table, sql),)
