"""Ranks that take longer than their peers and work no longer: they were short of processor cores, and are not slow.

Where programs share cores, a rank takes its own time stretched by what it waits for one. ``worked_ns`` of ``steps`` is
the time without that waiting. With the stretch of its peers (time taken over time worked), a rank's excess falls into
what it works longer, stretched as theirs, and what it waits for a core beyond that. Who is accused for the most part of
the second is not accused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..collectors.reading.store import Attempt, Store
from .cells import EVERY_RANK_KINDS, NS_PER_MS, total_work
from .detect import spread
from .judge import Finding
from .observations import Observations, on_grid
from .peers import FloatArray, IntArray, column_median
from .source import Source
from .verdict import Abstention, Pattern

SIGNAL = "cores"

MOST = 0.5
"""Share of a rank's excess that waiting for cores explains, and that more work does not, for it to be no slow rank."""

ALIKE = 0.02
"""Share of what ranks work by which those that share cores differ by themselves."""

MIN_KNOWN = 0.5
"""Share of the columns of a stretch in which the times worked have to be known."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean (a normal distribution's sqrt(pi / 2))."""

MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rank beside its peers in the columns of a stretch, ms a step: by how much it takes longer and works longer, by
    how much the second may be off; and time taken over time worked, its own and theirs."""

    taken_ms: float
    worked_ms: float
    alike_ms: float
    own: float
    peers: float

    @property
    def more_work_ms(self) -> float:
        """What its taking longer owes to more work, were it stretched as its peers' is."""
        return self.worked_ms * self.peers

    @property
    def waited_ms(self) -> float:
        """The rest: waiting for a core beyond its peers'."""
        return self.taken_ms - self.more_work_ms

    def is_waiting(self, excess_ms: float) -> bool:
        """Whether waiting for cores, and no more work, explains most of an excess."""
        least = max(MOST * excess_ms, self.alike_ms * self.peers)
        return self.waited_ms >= MOST * excess_ms and self.more_work_ms < least


class Cores:
    """What ranks worked and took in compute and optimizers, read when somebody is to be accused. ``seen`` is as it was
    observed: what makes unequal work comparable leaves ``worked_ns`` as it is, unless that is ``per_token`` too."""

    def __init__(self, store: Store, attempt: Attempt, seen: Observations, *, per_token: bool = False) -> None:
        self._store, self._attempt, self._seen, self._per_token = store, attempt, seen, per_token
        self._times: FloatArray | None = None
        self._told: dict[int, bool] = {}

    def explains(
        self, rank: int, peers: Sequence[int], segment: str, kind: str, steps: tuple[int, int], excess_ms: float,
        pattern: Pattern,
    ) -> str | None:  # fmt: skip
        """Why a rank that takes ``excess_ms`` a step longer in a segment is not slow, in words; None where it is, or
        where it is not known.

        Of compute and optimizers by time. Other work is not in ``worked_ns``: it is explained where the rank's compute
        is stretched beyond its peers' by half of its ratio (as a logarithm).
        """
        if self._times is None and self._is_told(rank):
            self._times = self._load()
        if self._times is None or not np.isfinite(self._times[0, np.searchsorted(self._seen.ranks, rank)]).any():
            return None
        columns = np.flatnonzero((self._seen.steps >= steps[0]) & (self._seen.steps <= steps[1]))
        own, like = self._beside(self._times, rank, peers, columns)
        known = np.isfinite(own).all(axis=0) & np.isfinite(like).all(axis=0)
        if not len(columns) or known.sum() < MIN_KNOWN * len(columns):
            return None
        found = _stretch(own[:, known], like[:, known], pattern)
        if kind in EVERY_RANK_KINDS:
            if not found.is_waiting(excess_ms):
                return None
            return (
                f"it works as long as they do while it has a processor core, and waits {found.waited_ms:.2f} ms a "
                f"step longer for one"
            )
        cells = [one.per_step_ms() for one in self._seen.cells if (one.name, one.kind) == (segment, kind)]
        ratio = _ratio_of_means(*self._beside(np.stack(cells), rank, peers, columns[known]))
        if ratio is None or not found.own >= found.peers * ratio**MOST > found.peers:
            return None
        return (
            f"its compute, too, takes x{found.own:.2f} of what it works while it has a processor core, that of its "
            f"peers x{found.peers:.2f}"
        )

    def _beside(
        self, values: FloatArray, rank: int, peers: Sequence[int], columns: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Of values [K, R, C] the rank's, and the median of its peers' where half of them have one, each [K, c]."""
        row, others = np.searchsorted(self._seen.ranks, rank), np.flatnonzero(np.isin(self._seen.ranks, peers))
        theirs = [one[np.ix_(others, columns)] for one in values]
        like = [np.where(2 * np.isfinite(one).sum(axis=0) >= len(one), column_median(one), np.nan) for one in theirs]
        return values[:, row, columns], np.stack(like)

    def _is_told(self, rank: int) -> bool:
        """Whether a rank told what it worked in any step: in a fleet that is asked in a fiftieth of the time that it
        takes to look at the steps of all ranks."""
        if rank not in self._told:
            sql = f"SELECT 1 AS told FROM steps WHERE rank = {rank} AND worked_ns > 0 LIMIT 1"
            self._told[rank] = self._store.query(sql, attempt=self._attempt).num_rows > 0
        return self._told[rank]

    def _load(self) -> FloatArray:
        """Times worked and taken, [2, R, C] in ms a step; both NaN where either is not known."""
        seen = self._seen
        cells = [one for one in seen.cells if one.kind in EVERY_RANK_KINDS]
        worked = worked_ms(self._store, self._attempt, seen)
        if not cells or not np.isfinite(worked).any():
            return np.full((2, *worked.shape), np.nan)
        worked[np.isin(seen.ranks, self._on_devices())] = np.nan
        taken = np.where(np.isfinite(worked), total_work(cells, seen.placement.roles(seen.ranks)), np.nan)
        times = np.stack([np.where(np.isfinite(taken), worked, np.nan), taken])
        return times / seen.tokens.beside if self._per_token and seen.tokens is not None else times

    def _on_devices(self) -> list[int]:
        """Ranks whose work a device times: what runs there waits for no core, whatever their hosts do."""
        if self._seen.source.source != Source.SPANS:
            return []  # they have no `worked_ns`, from the first step on that knows the device
        kinds = ", ".join(f"'{kind}'" for kind in EVERY_RANK_KINDS)
        sql = f"SELECT DISTINCT rank FROM spans WHERE clock = 'device' AND kind IN ({kinds})"
        return [int(rank) for rank in self._store.query(sql, attempt=self._attempt)["rank"].to_pylist()]


def _stretch(own: FloatArray, like: FloatArray, pattern: Pattern) -> Stretch:
    """From times worked and taken, [2, C], of a rank and of its peers."""
    typical, factor = (np.mean, 1.0) if pattern == Pattern.INTERMITTENT else (np.median, MEDIAN_ERROR)
    worked_more, taken_more = typical(own - like, axis=1).tolist()
    error = factor * spread(own[0] - like[0] - worked_more) / math.sqrt(own.shape[1])
    alike = max(2 * error, ALIKE * float(typical(like[0])))
    stretches = (max(float(typical(one[1]) / typical(one[0])), 1.0) for one in (own, like))
    return Stretch(taken_more, worked_more, alike, *stretches)


def _ratio_of_means(own: FloatArray, like: FloatArray) -> float | None:
    """Mean of what is known of the one over that of the other; None where there is nothing."""
    own, like = own[np.isfinite(own)], like[np.isfinite(like)]
    return float(own.mean() / like.mean()) if len(own) and len(like) and like.mean() > 0 else None


def worked_ms(store: Store, attempt: Attempt, seen: Observations) -> FloatArray:
    """Time that every rank worked while it had a core, ms a step, [R, C]; NaN where it is not known, or in fewer than
    half of the steps of a column."""
    width = seen.source.step_width
    sql = (
        f"SELECT rank, step // {width} * {width} AS step, avg(worked_ns) / {NS_PER_MS} AS ms FROM steps "
        f"WHERE worked_ns > 0 GROUP BY ALL HAVING 2 * count(*) >= {width}"
    )
    return on_grid(store.query(sql, attempt=attempt), "ms", seen.ranks, seen.steps)


def without_waiting(
    findings: Iterable[Finding], seen: Observations, cores: Cores
) -> tuple[list[Finding], list[Abstention]]:
    """The findings that more work stands behind; and of other ranks why they are not accused, the costliest first."""
    kept: list[Finding] = []
    left: dict[int, list[tuple[Finding, str]]] = {}
    for one in sorted(findings, key=lambda each: -each.excess_share):
        why = cores.explains(one.rank, one.peers, one.segment, one.kind, one.steps, one.excess_ms, one.pattern)
        if why is None:
            kept.append(one)
        else:
            left.setdefault(one.rank, []).append((one, why))
    slow = {one.rank for one in kept}
    notes = []
    for rank, ((first, why), *more) in left.items():
        if rank not in slow:
            also = "".join(f", x{one.ratio:.2f} in {one.segment}" for one, _ in more)
            notes.append(short_of_cores(rank, first.segment + also, first.ratio, first.steps, why, seen))
    return kept, notes[:MAX_NAMED]


def short_of_cores(
    rank: int, segment: str, ratio: float, steps: tuple[int, int], why: str, seen: Observations
) -> Abstention:
    """Says of a rank that it was short of cores, and is not accused."""
    host = seen.placement.host_of(rank)
    where = f"rank {rank}" if host is None else f"rank {rank} on {host}"
    return Abstention(
        SIGNAL,
        f"{where} took x{ratio:.2f} of its peers' time in {segment}, steps {steps[0]} to {steps[1]}, but {why}: it is "
        f"short of cores, which other programs or ranks of its host use, and is not called slow",
    )
