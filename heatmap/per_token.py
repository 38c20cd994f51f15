"""Ranks that were given unequally many tokens, compared by what they take per token.

That is done where a segment's time is its rank's own: where waiting was recorded, and whoever works longer waits less.
A segment that hides a synchronisation takes all ranks equally long, whatever their tokens. Attention costs more per
token the longer a sequence is, up to the square of its length, and every step costs something whatever its tokens.
Neither is known, so that nobody is accused of what they can explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..collectors.reading.store import Attempt, Store
from ..profiler.vocabulary import SegmentKind
from .cells import SegmentCells
from .equal_work import at_equal_work
from .judge import Finding, measured_waiting
from .observations import Observations
from .peers import FloatArray, IntArray, row_median
from .rank_tokens import ALIKE, RankTokens
from .verdict import Abstention, Pattern

SIGNAL = "tokens"

UNEQUAL = "ranks were given unequally many"
"""How the note begins that tokens differ."""

FIXED_SHARE = 0.25
"""Share of the time at the peers' number of tokens that may be there whatever the number: launches, weights read."""

BEYOND = 1.05
"""What is left of a ratio, over what tokens explain of it, for it to accuse anyone."""

MAX_NAMED = 8


def per_token(store: Store, attempt: Attempt, seen: Observations) -> Observations:
    """The observations with compute as if all ranks of a peer group had its median number of tokens in every step;
    unchanged where these do not differ, are not told by all of them, or times may contain waiting."""
    waiting = measured_waiting(seen)
    if seen.tokens is None or not seen.tokens.varies.any() or waiting is None or not waiting.accounts:
        return seen
    roles = seen.placement.roles(seen.ranks)
    goes_with_tokens = {
        one.name for one in seen.cells if one.kind == SegmentKind.COMPUTE and waiting.covers(one, roles)
    }
    if not goes_with_tokens:
        return seen
    return at_equal_work(
        seen,
        [
            _scaled(one, seen.tokens, seen.tokens.scale(one.count, roles))
            if one.kind == SegmentKind.COMPUTE and one.name in goes_with_tokens
            else one
            for one in seen.cells
        ],
    )


def is_per_token(seen: Observations) -> bool:
    """Whether `per_token` has changed anything."""
    return any(one.scale is not None for one in seen.cells)


def _scaled(cells: SegmentCells, tokens: RankTokens, scale: FloatArray) -> SegmentCells:
    """Cells with spans of the peers' tokens (divided by ``scale``), as many as these need for a step's tokens; those of
    which no tokens are known are left out."""
    known = np.isfinite(scale)
    return replace(
        cells,
        total_ms=np.where(known, cells.total_ms / tokens.beside, np.nan),
        count=np.where(known, cells.count * scale / tokens.beside, 0.0),
        scale=scale,
    )


def explained_by(tokens: float, *, before: float = 1.0, per_token: bool = True) -> float:
    """Largest ratio of times, or of times per token, that so many times the peers' ``tokens`` explain beside having as
    many as they, or that a change from ``before`` times theirs explains.

    The time per token of r times the peers' is 1 - a - f + a r + f / r, for any share a that grows with their square
    and a fixed share f up to `FIXED_SHARE`. A ratio of two of these is largest where each is none or all it may be.
    """
    shares = [(share, fixed) for fixed in (0.0, FIXED_SHARE) for share in (0.0, 1.0 - fixed)]
    grown = [_cost(tokens, *one) / _cost(before, *one) for one in shares]
    return max(1.0, max(grown) * (1.0 if per_token else tokens / before))


def _cost(tokens: float, attention: float, fixed: float) -> float:
    return 1 - attention - fixed + attention * tokens + fixed / tokens


class UnequalTokens:
    """What the number of its tokens explains of a rank's time. ``seen`` is as it was observed, ``compared`` as ranks
    were compared."""

    def __init__(self, seen: Observations, compared: Observations) -> None:
        self._seen = seen
        self._compared = [one for one in compared.cells if one.scale is not None]
        self._per_token = {(one.name, one.kind) for one in self._compared}

    def _beside(
        self, rank: int, kind: str, steps: tuple[int, int], pattern: Pattern, *, is_per_token: bool
    ) -> float | None:
        """A rank's tokens over its peers' in the given steps: the median; of what comes and goes, whichever of the 10th
        and 90th percentile explains more. None where they do not differ, or of work that does not go with tokens."""
        tokens, seen = self._seen.tokens, self._seen
        row = int(np.searchsorted(seen.ranks, rank))
        if tokens is None or kind != SegmentKind.COMPUTE or not tokens.varies[row]:
            return None
        inside = (seen.steps >= steps[0]) & (seen.steps <= steps[1])
        ratios = tokens.beside[row, inside]
        ratios = ratios[np.isfinite(ratios)]
        if not len(ratios):
            return None
        if pattern == Pattern.INTERMITTENT:
            low, high = np.percentile(ratios, (10, 90)).tolist()
            return max(float(low), float(high), key=partial(explained_by, per_token=is_per_token))
        return float(np.median(ratios))

    def explains(
        self, rank: int, segment: str, kind: str, ratio: float, steps: tuple[int, int], pattern: Pattern
    ) -> str | None:
        """Why a rank that takes ``ratio`` of its peers' time may not be slow, in words; None where it is."""
        per_token = (segment, kind) in self._per_token
        beside = self._beside(rank, kind, steps, pattern, is_per_token=per_token)
        if beside is None or abs(math.log(beside)) <= math.log1p(ALIKE):
            return None
        explained = explained_by(beside, per_token=per_token)
        if explained == 1 or ratio >= explained * BEYOND:
            return None
        why = (
            "attention, which may grow with the square of a sequence's length, can explain that"
            if beside > 1
            else "what a step costs whatever its tokens can explain that"
        )
        return (
            f"rank {rank} takes x{ratio:.2f} of its peers' time{' per token' if per_token else ''} in {segment}, steps "
            f"{steps[0]} to {steps[1]}, with x{beside:.2f} of their tokens: {why}, and it is not called slow"
        )

    def explained_change(self, row: int, work: Iterable[tuple[str, str]], before: slice, after: slice) -> float:
        """Largest ratio of a rank's times in some work (names and kinds), as compared, in some columns over those in
        others before them, that its tokens explain: 1 where these stayed as they were, infinite if not known."""
        work = [key for key in work if key[1] == SegmentKind.COMPUTE]
        if self._seen.tokens is None or not work:
            return 1.0
        was, now = self._seen.tokens.change(row, before, after)
        if not math.isfinite(was) or not math.isfinite(now):
            return math.inf
        if abs(math.log(now / was)) <= math.log1p(ALIKE):
            return 1.0
        return max(explained_by(now, before=was, per_token=key in self._per_token) for key in work)

    def sift(self, findings: Iterable[Finding]) -> tuple[list[Finding], list[Abstention]]:
        """The findings that tokens do not explain, with what they cost the job as it was; and of other ranks why they
        are not accused, the costliest first."""
        kept: list[Finding] = []
        left: dict[int, str] = {}
        for one in sorted(findings, key=lambda each: -each.excess_share):
            why = self.explains(one.rank, one.segment, one.kind, one.ratio, one.steps, one.pattern)
            if why is None:
                kept.append(self._as_it_was(one))
            else:
                left.setdefault(one.rank, why)
        slow = {one.rank for one in kept}
        return kept, [Abstention(SIGNAL, why) for rank, why in left.items() if rank not in slow][:MAX_NAMED]

    def _as_it_was(self, one: Finding) -> Finding:
        """A finding with its tokens, and how much longer others waited: not what they would have at equal work."""
        if (one.segment, one.kind) not in self._per_token:
            return one
        beside = self._beside(one.rank, one.kind, one.steps, one.pattern, is_per_token=True)
        if beside is None:
            return one
        seen, waited = self._seen, one.waited_share
        inside = (seen.steps >= one.steps[0]) & (seen.steps <= one.steps[1])
        row, total = int(np.searchsorted(seen.ranks, one.rank)), float(np.nansum(seen.step_ms))
        if seen.waits_ms is not None and total > 0:
            waits = seen.waits_ms[:, inside]
            more = row_median(np.delete(waits, row, axis=0).T) - waits[row]
            more = more[np.isfinite(more)]
            waited = min(waited, float(more.mean()) * int(inside.sum()) / total) if len(more) else waited
        return replace(one, waited_share=waited, tokens_beside=beside)

    def left_out(self) -> list[Abstention]:
        """Who could not be compared per token in half of its columns or more, which forbids the word healthy."""
        tokens, seen = self._seen.tokens, {(one.name, one.kind): one for one in self._seen.cells}
        if tokens is None:
            return []
        rows = np.zeros(len(self._seen.ranks), bool)
        for one in self._compared:
            ran = seen[one.name, one.kind].count > 0
            known = ran & (one.count > 0)
            rows |= tokens.varies & (2 * known.sum(axis=(0, 2)) < ran.sum(axis=(0, 2)))
        if not rows.any():
            return []
        reason = (
            f"{_named(self._seen.ranks[rows])} could not be compared per token in half of the steps or more: too few "
            f"steps of a window were told, or spans may be missing, and there were not as many as of the peers"
        )
        return [Abstention(SIGNAL, reason)]

    def notes(self) -> list[Abstention]:
        """That tokens differ and were divided out; and who does not tell its own, though others do."""
        tokens, notes = self._seen.tokens, list[Abstention]()
        if tokens is not None and tokens.varies.any():
            ratios = row_median(tokens.beside[tokens.varies])
            ranks = self._seen.ranks[tokens.varies]
            least, most = int(np.nanargmin(ratios)), int(np.nanargmax(ratios))
            how = (
                "compute was compared per token, and nobody is accused or warned of for what attention or fixed costs "
                "can explain"
                if self._per_token
                else "but times may contain waiting that was not recorded, and were not compared per token"
            )
            reason = (
                f"{UNEQUAL}, from x{ratios[least]:.2f} (rank {ranks[least]}) to "
                f"x{ratios[most]:.2f} (rank {ranks[most]}) of their peers' in the median step: {how}"
            )
            notes.append(Abstention(SIGNAL, reason))
        if tokens is not None and tokens.untold:
            reason = (
                f"{_named(tokens.untold)} did not tell how many they were given (rank_tokens) in enough steps, as "
                f"others of the same stage did: there, times are compared as if all had equally many"
            )
            notes.append(Abstention(SIGNAL, reason))
        return notes


def _named(ranks: Sequence[int] | IntArray) -> str:
    more = ", ..." if len(ranks) > MAX_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(str(rank) for rank in ranks[:MAX_NAMED])}{more}"
