"""How many tokens each rank's own work had, beside its peers': what its time is divided by where they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..collectors.reading.store import Attempt, Store
from ..profiler.vocabulary import SegmentKind
from .cells import SegmentCells
from .peers import FloatArray, IntArray, column_median, row_median

ALIKE = 0.005
"""Ranks whose tokens differ by less than this share have equally many."""

MIN_TOLD = 0.5
"""Share of the steps in which a rank computes, in which it has to tell its tokens."""

MAX_ERROR = 0.05
"""Standard error of the mean of the steps told of a column, over it, up to which it stands for all of its steps."""

SAME_COUNT = 0.02
"""Ranks whose spans differ in number by no more than this share have equally many."""

WELL_TOLD = (
    "min(rank_tokens) >= 0 AND sum(rank_tokens) > 0 AND (count(rank_tokens) = count(*) "
    "OR 2 * count(rank_tokens) >= count(*) AND stddev_samp(rank_tokens) "
    f"* sqrt(1.0 / count(rank_tokens) - 1.0 / count(*)) <= {MAX_ERROR} * avg(rank_tokens))"
)
"""SQL over the steps of a column: whether its mean is known, from all of its steps or from half of them at least. The
error is that of a sample without replacement from so many steps."""


@dataclass(frozen=True, slots=True)
class RankTokens:
    """Tokens of ranks [R] in columns [C], mean per timed step of a column.

    ``each`` [R, C]: NaN where a rank has not told (`WELL_TOLD`), or had none. ``beside`` [R, C]: the same over the
    median of the peer group; 1 in groups that have equally many or do not all tell, NaN where a rank of another group
    has not told. ``varies`` [R]: whose group has unequally many, and tells. ``untold`` are ranks that do not tell, of
    groups in which others do. ``counts_hold``: no span is missing, so that a rank with fewer spans has had fewer
    micro-batches; else the one cannot be told from the other.
    """

    each: FloatArray
    beside: FloatArray
    varies: npt.NDArray[np.bool_]
    untold: tuple[int, ...]
    counts_hold: bool

    def scale(self, count: FloatArray, roles: IntArray) -> FloatArray:
        """Tokens of a span beside those of the peers' spans, [K, R, C], from how many there are, [K, R, C].

        With all spans there, a rank's tokens are in its own number of them; else it has to have as many as its peers.
        NaN where it has not, where there is no span or tokens are not known; 1 where nothing varies.
        """
        result = np.where(count > 0, self.beside, np.nan)
        for role in np.unique(roles[self.varies]):
            here = np.flatnonzero((roles == role) & self.varies)
            own = np.where(np.isfinite(result[:, here]), count[:, here], np.nan)
            if self.counts_hold:
                result[:, here] = _over_usual(self.each[here] / own)
            else:
                is_usual = np.abs(_over_usual(own) - 1) <= SAME_COUNT
                result[:, here] = np.where(is_usual, result[:, here], np.nan)
        return np.where(self.varies[:, np.newaxis], result, 1.0)

    def change(self, row: int, before: slice, after: slice) -> tuple[float, float]:
        """A rank's tokens beside its peers' in the median of some columns and of others; NaN where not known, 1 where
        nothing varies."""
        own = self.beside[row] if self.varies[row] else np.ones(self.beside.shape[1])
        return float(row_median(own[before])), float(row_median(own[after]))


def load_rank_tokens(
    store: Store,
    attempt: Attempt,
    cells: Sequence[SegmentCells],
    ranks: IntArray,
    steps: IntArray,
    roles: IntArray,
    *,
    has_spans: bool,
) -> RankTokens | None:
    """Tokens of the ranks that tell them (column ``rank_tokens``); None where nothing follows: nobody tells, or all
    tell and have as many as their peers. ``steps`` are columns of as many steps as the ``cells`` have; ``has_spans``:
    the store holds the spans that were recorded, whether these or rollups were read."""
    compute = [one for one in cells if one.kind == SegmentKind.COMPUTE]
    if not compute or not _is_told(store, attempt, steps):
        return None
    works = np.any([(one.count > 0).any(axis=0) for one in compute], axis=0)
    each, told = (np.where(works, one, np.nan) for one in _load(store, attempt, ranks, steps, compute[0].step_width))
    beside, varies, untold = np.ones(each.shape), np.zeros(len(ranks), bool), list[int]()
    for role in np.unique(roles[roles >= 0]):
        here = np.flatnonzero((roles == role) & works.any(axis=1))
        tells = np.nansum(told[here], axis=1) >= MIN_TOLD * works[here].sum(axis=1)
        if not tells.all():
            untold += ranks[here[~tells]].tolist() if tells.any() else []
            continue
        ratio = each[here] / column_median(each[here])
        is_known = np.isfinite(ratio).any(axis=1).all()
        if not is_known or np.nanmax(np.abs(np.log(ratio))) > math.log1p(ALIKE):
            beside[here], varies[here] = ratio, True
    if not varies.any() and not untold:
        return None
    holds = not varies.any() or (has_spans and _counts_hold(store, attempt))
    return RankTokens(each, beside, varies, tuple(sorted(untold)), holds)


def load_told(store: Store, attempt: Attempt, ranks: IntArray, steps: IntArray, width: int) -> FloatArray | None:
    """Tokens of ranks in columns of ``width`` steps, mean per timed step, [R, C]: NaN where a rank has not told them
    (`WELL_TOLD`), or had none; None where nobody tells."""
    if not _is_told(store, attempt, steps):
        return None
    return np.asarray(_load(store, attempt, ranks, steps, width)[0], np.float64)


def _is_told(store: Store, attempt: Attempt, steps: IntArray) -> bool:
    """Whether anybody tells, by three steps each of the first, the middle and the last column.

    Who matters tells at least half of its steps; reading all rows takes seconds at 12,288 ranks.
    """
    if not len(steps):
        return False
    asked = ",".join(str(int(first) + more) for first in steps[[0, len(steps) // 2, -1]] for more in range(3))
    sql = f"SELECT 1 FROM steps WHERE step IN ({asked}) AND rank_tokens IS NOT NULL LIMIT 1"
    return bool(store.query(sql, attempt=attempt).num_rows)


def _load(store: Store, attempt: Attempt, ranks: IntArray, steps: IntArray, width: int) -> FloatArray:
    """Of the timed steps of each column the mean, NaN where it is not known, and the share that told, [2, R, C]."""
    table = store.query(
        f"""SELECT rank, step // {width} * {width} AS step,
                CASE WHEN {WELL_TOLD} THEN avg(rank_tokens)::DOUBLE END AS tokens,
                count(rank_tokens)::DOUBLE / count(*) AS told
            FROM steps WHERE step BETWEEN {int(steps[0])} AND {int(steps[-1]) + width - 1}
            AND NOT coalesce(shadow, false) GROUP BY rank, 2
            HAVING min(rank_tokens) >= 0 AND sum(rank_tokens) > 0""",
        attempt=attempt,
    )
    result = np.full((2, len(ranks), len(steps)), np.nan)
    rank, step = table["rank"].to_numpy(), table["step"].to_numpy()
    keep = np.isin(rank, ranks) & np.isin(step, steps)
    at = np.searchsorted(ranks, rank[keep]), np.searchsorted(steps, step[keep])
    for one, column in zip(result, ("tokens", "told"), strict=True):
        one[at] = table[column].to_numpy()[keep]
    return result


def _over_usual(values: FloatArray) -> FloatArray:
    """Values [K, R, C] over their median of the ranks."""
    result: FloatArray = values / np.stack([column_median(one) for one in values])[:, np.newaxis]
    return result


def _counts_hold(store: Store, attempt: Attempt) -> bool:
    """Whether no span of compute was overwritten before it was read, or has no time."""
    lost = store.query("SELECT 1 FROM heartbeats WHERE lost_spans > 0 LIMIT 1", attempt=attempt)
    if lost.num_rows:
        return False
    sql = (
        f"SELECT 1 FROM spans WHERE kind = '{SegmentKind.COMPUTE}' AND step IS NOT NULL "
        f"AND (status <> 'ok' OR self_ns IS NULL) LIMIT 1"
    )
    return not store.query(sql, attempt=attempt).num_rows
