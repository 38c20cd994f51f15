"""From observations to findings: which ranks are raised against their peers, and what could not be judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..profiler.vocabulary import SegmentKind
from .cells import SegmentCells
from .compare import Comparison, compare, typical_excess
from .detect import Raised, smallest_visible_ratio, spread_of_others, usable_rows
from .inside import look_inside
from .observations import Observations
from .peers import FloatArray, IntArray, has_values, peer_counts, refine, row_median
from .synchrony import MeasuredWaiting
from .thresholds import Thresholds
from .verdict import Abstention, Pattern
from .victims import sift
from .window_shape import WindowShapes

DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class Finding:
    """One rank at one segment: what `stragglers` turns into a culprit.

    ``excess_ms`` is per step; ``excess_share`` and ``waited_share`` (how much longer others waited) are shares of the
    job's time in the steps looked at; ``peers``, who it was compared with, do not stand out. ``step_width``: of the
    cells; ``burst_steps``: length of a burst; ``tokens_beside``: tokens over the peers', where compared per token.
    """

    rank: int
    segment: str
    kind: str
    ratio: float
    steps: tuple[int, int]
    pattern: Pattern
    confidence: float
    excess_ms: float
    excess_share: float
    waited_share: float
    peers: tuple[int, ...]
    step_width: int = 1
    burst_steps: float = 0.0
    tokens_beside: float | None = None

    @property
    def lost_share(self) -> float:
        """Share of the job's time that is lost to this rank, 0 to 1.

        Sum of the excess on the critical path / sum of the step times. The excess is own time minus the peers' median.
        Where waiting is measured, only that part counts which the others waited longer in communication than this
        rank did: what slack hides costs nothing.
        """
        return round(min(max(min(self.excess_share, self.waited_share), 0.0), 1.0), 6)


@dataclass(frozen=True, slots=True)
class SegmentJudgement:
    """What one segment gave. ``visible_ratio`` is the slow-down from which a rank would have been named, None where
    the segment could not be judged; ``cost_share`` its share of the step's time on the median rank."""

    findings: tuple[Finding, ...]
    abstained: tuple[Abstention, ...]
    visible_ratio: float | None
    cost_share: float
    compared: frozenset[int]
    hiding: tuple[Abstention, ...] = ()
    """Ranks that are raised in too few averaged columns to be accused, and in too many to be called healthy."""
    comparison: Comparison | None = None
    """What the ranks were compared by; None where it may hide waiting, so that nothing follows from it."""
    light: tuple[Finding, ...] = ()
    """Delays that have ended, and cost too little at this segment alone."""
    brief: tuple[Finding, ...] = ()
    """Short bursts, which accuse only a rank that has them in all its compute."""


def measured_waiting(seen: Observations) -> MeasuredWaiting | None:
    """The waiting that was timed; None where no communication was recorded, or no work."""
    if seen.waits_ms is None or not seen.cells:
        return None
    return MeasuredWaiting.of(seen.waits_ms, seen.cells, seen.placement.roles(seen.ranks))


def judge_segment(
    cells: SegmentCells,
    seen: Observations,
    waiting: MeasuredWaiting | None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    shapes: WindowShapes | None = None,
) -> SegmentJudgement:
    """Compare the ranks at one segment of work and accuse those that pass every threshold.

    ``waiting`` is what `measured_waiting` gives of the same observations; ``shapes`` reads what lies inside windows.
    """
    roles = seen.placement.roles(cells.ranks)
    cost = _cost_share(cells, seen)
    comparison = compare(cells, roles, seen.step_ms, thresholds)
    if comparison is None:
        needed = thresholds.min_steps * cells.step_width
        reason = f"fewer than two ranks of a stage have {needed} measured steps of it"
        alone = _without_company(cells, roles, seen, thresholds)
        return SegmentJudgement((), (Abstention(cells.name, reason),), None, cost, frozenset(), alone)
    notes: list[Abstention] = []
    split = _role_effect(comparison, cells, roles, seen)
    if split is not None:
        roles, note = split
        notes.append(note)
        again = compare(cells, roles, seen.step_ms, thresholds)
        if again is None:
            return SegmentJudgement((), tuple(notes), None, cost, frozenset())
        comparison = again
    if shapes is not None:
        comparison = look_inside(comparison, cells, roles, shapes, thresholds)
    sifted = sift(comparison, cells, roles, seen, waiting)
    notes += sifted.abstained
    usable = usable_rows(comparison.logs, thresholds.min_steps)
    levels = row_median(comparison.logs)
    for one in comparison.raised:  # their mirror images too: a peer that has no other
        mirrored = roles == roles[one.row]
        levels[mirrored if mirrored.sum() <= 2 else [one.row]] = np.nan
    visible = None
    if not sifted.is_blind and len(usable):
        fewest = int(peer_counts(roles, has_values(comparison.logs))[usable].min())
        visible = smallest_visible_ratio(comparison.noise, levels, comparison.logs.shape[1], thresholds, fewest)
    findings = tuple(_finding(one, comparison, cells, roles, seen) for one in sifted.raised)

    def also(raised: tuple[Raised, ...]) -> tuple[Finding, ...]:
        if not raised:
            return ()
        own = sift(replace(comparison, raised=raised), cells, roles, seen, waiting)
        return tuple(_finding(one, comparison, cells, roles, seen) for one in own.raised)

    light, brief = also(comparison.light), also(comparison.brief)
    compared = frozenset(int(cells.ranks[row]) for row in usable)
    hiding = [_hiding(one, cells, seen) for one in comparison.hiding]
    hiding += _without_company(cells, roles, seen, thresholds)
    seen_through = None if sifted.is_blind else comparison
    return SegmentJudgement(findings, tuple(notes), visible, cost, compared, tuple(hiding), seen_through, light, brief)


def _hiding(one: Raised, cells: SegmentCells, seen: Observations) -> Abstention:
    """A stretch that may be a slow rank or not: of averaged columns, or of steps that are now slow and now not."""
    first, last = _steps(one, cells, seen)
    if cells.step_width == 1:
        reason = (
            f"rank {int(cells.ranks[one.row])} takes x{math.exp(one.effect):.2f} of its peers' time in steps {first} "
            f"to {last}, but only in {one.share_beyond:.0%} of them: not steadily enough to accuse it, too often to be "
            f"called healthy"
        )
        return Abstention(cells.name, reason)
    windows = (
        f"the window of steps {first} to {last}" if one.first == one.last else f"windows of steps {first} to {last}"
    )
    reason = (
        f"rank {int(cells.ranks[one.row])} takes x{math.exp(one.effect):.2f} of its peers' time in {windows}, too few "
        f"to tell a slow rank from a passing delay: look at the single steps (record spans of them)"
    )
    return Abstention(cells.name, reason)


def _without_company(
    cells: SegmentCells, roles: IntArray, seen: Observations, thresholds: Thresholds
) -> tuple[Abstention, ...]:
    """Time at checkpoints in steps in which most peers take none, though they do in others: compared with too few."""
    total = float(np.nansum(seen.step_ms))
    if cells.kind != SegmentKind.CHECKPOINT or not total > 0:
        return ()
    own = cells.per_step_ms()
    counts, lonely = peer_counts(roles, has_values(own)), np.zeros(own.shape, bool)
    for role in np.unique(roles[roles >= 0]):
        here = (roles == role) & has_values(own)
        lonely[here] = 2 * np.isfinite(own[here]).sum(axis=0) <= here.sum()
    alone = np.where(lonely, np.nan_to_num(own), 0.0).sum(axis=1) / total
    ranks = cells.ranks[(alone >= thresholds.min_excess_share) & (counts > 0)].tolist()
    if not ranks:
        return ()
    named = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    reason = (
        f"{'rank' if len(ranks) == 1 else 'ranks'} {named} spend up to {alone.max():.1%} of the job's time in it in "
        f"steps in which most of their peers take none: too few to compare them with"
    )
    return (Abstention(cells.name, reason),)


def _steps(one: Raised, cells: SegmentCells, seen: Observations) -> tuple[int, int]:
    """First and last step of a stretch; the last column may not be complete yet."""
    return int(cells.steps[one.first]), seen.last_of(int(cells.steps[one.last]), cells.step_width)


def _role_effect(
    comparison: Comparison, cells: SegmentCells, roles: IntArray, seen: Observations
) -> tuple[IntArray, Abstention] | None:
    """Peer groups split by an axis on which all ranks of one index are raised: they do more work, they are not slow.

    Such as the tp rank that also loads the data. A slow host is told apart by what its other ranks do: where most of
    them are raised too, the machine explains more than the axis.
    """
    raised = np.zeros(len(roles), bool)
    raised[[one.row for one in comparison.raised]] = True
    if raised.sum() < 2:
        return None
    present = has_values(comparison.logs)
    hosts = np.array([seen.placement.host_of(int(rank)) or "" for rank in cells.ranks], dtype=object)
    for axis in seen.placement.coordinates:
        index = seen.placement.coordinate(axis, cells.ranks)
        pairs = {(stage, at) for stage, at in zip(roles[raised], index[raised], strict=True)} | {
            (None, at) for at in index[raised]
        }
        for stage, at in sorted(pairs, key=str):
            members = present & (index == at) & (True if stage is None else roles == stage)
            others = present & (index != at) & np.isin(roles, roles[members])
            if members.sum() < 2 or not raised[members].all() or not others.any():
                continue
            beside = others & np.isin(hosts, hosts[members])
            if not beside.any() or 2 * (beside & raised).sum() > beside.sum():
                continue
            reason = (
                f"all ranks with {axis}={at} take longer at it than the rest of their stage: that is their place in "
                f"the mesh, not a slow rank, so they were compared only among themselves"
            )
            return refine(roles, index), Abstention(cells.name, reason)
    return None


def _cost_share(cells: SegmentCells, seen: Observations) -> float:
    """Share of the job's time that the median rank spends in the segment."""
    total = float(np.nansum(seen.step_ms))
    own = np.nansum(cells.per_step_ms(), axis=1)
    return float(np.median(own)) / total if len(own) and total > 0 else 0.0


def _finding(one: Raised, comparison: Comparison, cells: SegmentCells, roles: IntArray, seen: Observations) -> Finding:
    others = (roles == roles[one.row]) & has_values(comparison.logs) & ~comparison.excluded
    peers = tuple(int(rank) for row, rank in enumerate(cells.ranks) if others[row] and row != one.row)
    levels = row_median(comparison.logs[:, one.first : one.last + 1])
    between = one.effect / spread_of_others(levels, one.row, roles)
    excess_share, waited_share = _shares(one, comparison.own - comparison.peers, seen)
    return Finding(
        rank=int(cells.ranks[one.row]),
        segment=cells.name,
        kind=cells.kind,
        ratio=math.exp(one.effect),
        steps=_steps(one, cells, seen),
        pattern=one.pattern,
        confidence=_confidence(one, between, len(peers)),
        excess_ms=typical_excess(one, comparison),
        excess_share=excess_share,
        waited_share=waited_share,
        peers=peers,
        step_width=cells.step_width,
        burst_steps=one.burst_steps * cells.step_width,
    )


def _confidence(one: Raised, between: float, peers: int) -> float:
    """0 to 1: grows with both z and the distance from the other ranks; with a single peer at most 0.6.

    Both parts are 0.5 at their thresholds (5 and 3.5) and reach 0.95 at about twice those; an ordering aid, not a
    probability.
    """
    sure = 1 - 0.5 * math.exp(-max(one.z - 5.0, 0.0) / 2.5)
    apart = 1 - 0.5 * math.exp(-max(between - 3.5, 0.0) / 1.75)
    result = min(sure, apart, 0.99)
    return round(result * 0.6 if peers == 1 else result, 3)


def _shares(one: Raised, excess: FloatArray, seen: Observations) -> tuple[float, float]:
    """Excess in the stretch, and how much longer the median of the others waited for communication than this rank
    did, both over the sum of all step times looked at. Without measured waiting both are the excess."""
    inside = slice(one.first, one.last + 1)
    above = np.minimum(excess[one.row, inside], seen.step_ms[inside])
    usable = np.isfinite(above)
    total = float(np.nansum(seen.step_ms))
    if not usable.any() or not total > 0:
        return 0.0, 0.0
    own = float(np.mean(above[usable])) * int(usable.sum()) / total
    if seen.waits_ms is None:
        return own, own
    waited = seen.waits_ms[:, inside]
    more = row_median(np.delete(waited, one.row, axis=0).T) - waited[one.row]
    if not np.isfinite(more).any():
        return own, own
    return own, float(np.nanmean(more)) * int(usable.sum()) / total


def per_rank(findings: list[Finding]) -> list[Finding]:
    """One finding a rank: its costliest segment, with the loss in all its segments; the costliest rank first."""
    by_rank: dict[int, list[Finding]] = {}
    for one in findings:
        by_rank.setdefault(one.rank, []).append(one)
    result = []
    for own in by_rank.values():
        first = max(own, key=lambda one: one.excess_share)
        waited = max(one.waited_share for one in own)
        result.append(replace(first, excess_share=sum(one.excess_share for one in own), waited_share=waited))
    return sorted(result, key=lambda one: (-one.lost_share, -one.ratio, one.rank))
