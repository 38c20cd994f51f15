"""Ranks whose tokens beside their peers' changed between two sides: longer sequences make no rank slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...collectors.verdicts import Abstention
from ...profiler.vocabulary import SegmentKind
from ..estimate import Estimate, estimate
from ..peers import IntArray
from ..per_token import MAX_NAMED, SIGNAL
from .sides import Loaded, same_ranks

CHANGED = 0.02
"""Change of a rank's median tokens, over its peers', from which on its times are not compared."""

CERTAIN = 2.0
"""Standard errors that it is at least: lengths that are drawn anew change by chance, and times as uncertainly."""

GOES_WITH_TOKENS = frozenset({SegmentKind.COMPUTE, SegmentKind.DATA})
"""Kinds of work that take longer with more tokens."""


@dataclass(frozen=True, slots=True)
class TokenChange:
    """A rank's tokens over its peers' in the median column; 1 where no difference was told, NaN where not known."""

    rank: int
    now: float
    then: float

    def said(self) -> str:
        """The rank and its numbers."""
        return f"rank {self.rank} ({_times(self.now)} now, {_times(self.then)} then)"


def changed_tokens(now: Loaded, then: Loaded) -> tuple[TokenChange, ...]:
    """Ranks whose tokens beside their peers' changed by more than `CHANGED`, or are not known; those that changed most
    come first. None where ranks are not compared."""
    if (now.seen.tokens is None and then.seen.tokens is None) or not same_ranks(now, then):
        return ()
    ranks, mine, theirs = np.intersect1d(now.seen.ranks, then.seen.ranks, return_indices=True)
    after, before = _beside(now, mine), _beside(then, theirs)
    change, error = np.abs(after.log - before.log), np.hypot(after.error, before.error)
    changed = (change > math.log1p(CHANGED)) & (change > CERTAIN * error)
    rows = np.flatnonzero(changed | ~np.isfinite(change) | ~np.isfinite(error))
    rows = rows[np.argsort(-np.nan_to_num(change[rows]), kind="stable")]
    return tuple(
        TokenChange(int(ranks[row]), float(np.exp(after.log[row])), float(np.exp(before.log[row]))) for row in rows
    )


def _beside(side: Loaded, rows: IntArray) -> Estimate:
    """Tokens over the peers' in the median column, [R]: certainly 1 where no difference was told."""
    tokens = side.seen.tokens
    if tokens is None:
        return Estimate(np.zeros(len(rows)), np.zeros(len(rows)))
    found, varies = estimate(tokens.beside[rows], 1), tokens.varies[rows]
    return Estimate(np.where(varies, found.log, 0.0), np.where(varies, found.error, 0.0))


def not_compared(changes: Sequence[TokenChange]) -> list[Abstention]:
    """Why ranks were left out, with their numbers; empty where none was."""
    if not changes:
        return []
    named = ", ".join(one.said() for one in changes[:MAX_NAMED])
    more = f" and {len(changes) - MAX_NAMED} more" if len(changes) > MAX_NAMED else ""
    reason = (
        f"the tokens of {named}{more} changed by over {100 * CHANGED:g} % of the median of their peers, or are not "
        f"known: whether such a rank computes or loads its data slower is not judged"
    )
    return [Abstention(SIGNAL, reason)]


def _times(value: float) -> str:
    return f"x{value:.2f}" if math.isfinite(value) else "not known"
