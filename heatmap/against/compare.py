"""Segment by segment, now against then: stages, and ranks and hosts that changed more than their stage."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ..cells import SegmentCells
from ..estimate import Estimate, estimate, normal_reach, ratio_of
from ..peers import FloatArray, IntArray
from .result import Change, Place, Slower
from .sides import Loaded, median_over, same_ranks

LEAST_STEPS, LEAST_WINDOWS = 10, 4
"""Columns that either side needs: single steps, or averages over windows of them."""

MIN_SEGMENT, MIN_RANK = 1.01, 1.05
"""Ratios below are no finding, however sure: of a segment, and of a rank beyond its stage."""

MIN_SPREADS = 5.0
"""A rank changed by so many robust spreads of its stage's changes: two runs never spread their noise alike."""

LEAST_PEERS = 3
"""Ranks of a stage from which on one of them can be told from the stage."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment on both sides over the same stages; times per span, [R, S], in the sides' own columns."""

    name: str
    kind: str
    now: SegmentCells
    then: SegmentCells


def pairs(now: Loaded, then: Loaded) -> list[Pair]:
    """Segments of work that both sides have."""
    mine = {(one.name, one.kind): one for one in now.seen.cells}
    theirs = {(one.name, one.kind): one for one in then.seen.cells}
    return [Pair(*key, mine[key], theirs[key]) for key in mine if key in theirs]


def least_columns(side: Loaded) -> int:
    """Columns that the side needs."""
    return LEAST_STEPS if side.seen.source.step_width == 1 else LEAST_WINDOWS


def stage_changes(pair: Pair, now: Loaded, then: Loaded, tried: int) -> Iterator[Slower]:
    """Change of the median rank of every stage that both sides have, whether slower or faster."""
    own, before = pair.now.per_span_ms(), pair.then.per_span_ms()
    roles, roles_then = _roles(now), _roles(then)
    counts = pair.now.count.sum(axis=0)
    for stage in np.intersect1d(np.unique(roles[roles >= 0]), np.unique(roles_then[roles_then >= 0])):
        mine = estimate(median_over(own[roles == stage])[None], least_columns(now))
        theirs = estimate(median_over(before[roles_then == stage])[None], least_columns(then))
        change = _change(mine, theirs, 0, tried)
        if change is None:
            continue
        here = counts[roles == stage]
        spans = float(np.median(here[here > 0])) if (here > 0).any() else 0.0
        lost = (change.now_ms - change.then_ms) * spans
        yield Slower(
            Place.STAGE, pair.name, pair.kind, int(stage), (), (), (), change, lost, lost, 0.0, ""
        )  # fmt: skip


def _change(now: Estimate, then: Estimate, row: int, tried: int) -> Change | None:
    log, error = now.log[row] - then.log[row], math.hypot(now.error[row], then.error[row])
    if not math.isfinite(log) or not math.isfinite(error):
        return None
    ratio = ratio_of(float(log), error, tried)
    return Change(math.exp(now.log[row]), math.exp(then.log[row]), ratio.value, ratio.low, ratio.high)


def _roles(side: Loaded) -> IntArray:
    return side.seen.placement.roles(side.seen.ranks)


def as_segment(name: str, kind: str, stages: list[Slower]) -> list[Slower]:
    """One finding for a segment that changed on all its stages alike, else those of the stages that did.

    A step waits for the slowest stage, so the whole costs as much as its costliest stage. The interval of the median
    stage stands for it.
    """
    changed = [one for one in stages if is_slower(one.change) or is_faster(one.change)]
    same = {is_slower(one.change) for one in changed}
    if len(changed) < len(stages) or len(same) != 1:
        return changed if len(stages) > 1 else [_whole(one, one) for one in changed]
    ordered = sorted(stages, key=lambda one: one.change.ratio)
    return [_whole(ordered[len(ordered) // 2], max(stages, key=lambda one: abs(one.own_ms)))]


def _whole(middle: Slower, costliest: Slower) -> Slower:
    return Slower(
        Place.SEGMENT, middle.segment, middle.segment_kind, None, (), (), (), middle.change,
        costliest.own_ms, costliest.own_ms, 0.0, "",
    )  # fmt: skip


def is_slower(change: Change) -> bool:
    """Whether it is slower by more than its interval and `MIN_SEGMENT`."""
    return change.low > 1.0 and change.ratio >= MIN_SEGMENT


def is_faster(change: Change) -> bool:
    """The same the other way."""
    return change.high < 1.0 and change.ratio <= 1 / MIN_SEGMENT


def rank_changes(pair: Pair, now: Loaded, then: Loaded, segments: int, left_out: Collection[int] = ()) -> list[Slower]:
    """Ranks that got slower by more than the median change of their stage; those of one host together.

    A rank is compared with itself, then with its stage: what is common to all is the segment's change. Needs the same
    mesh on both sides. Ranks that are ``left_out`` are neither compared nor compared with.
    """
    if not same_ranks(now, then):
        return []
    ranks, mine, theirs = np.intersect1d(now.seen.ranks, then.seen.ranks, return_indices=True)
    own = pair.now.per_span_ms()[mine]
    after, before = estimate(own, least_columns(now)), estimate(pair.then.per_span_ms()[theirs], least_columns(then))
    log, error = after.log - before.log, np.hypot(after.error, before.error)
    roles = now.seen.placement.roles(ranks)
    counts = pair.now.count.sum(axis=0)[mine]
    reach = normal_reach(2 * max(len(ranks) * segments, 1))
    compared = np.isfinite(log) & np.isfinite(error) & ~np.isin(ranks, np.array(sorted(left_out), np.int64))
    found = []
    for stage in np.unique(roles[roles >= 0]):
        here = np.flatnonzero((roles == stage) & compared)
        if len(here) < LEAST_PEERS:
            continue
        common = float(np.median(log[here]))
        spread = 1.4826 * float(np.median(np.abs(log[here] - common)))
        typical = float(np.median(error[here]))  # few columns give some ranks an error that is small by chance
        beyond = log[here] - common
        errors = np.hypot(np.maximum(error[here], typical), spread)
        needed = np.maximum(np.maximum(reach * errors, MIN_SPREADS * spread), math.log(MIN_RANK))
        for place in np.flatnonzero(beyond > needed):
            row, spans = here[place], counts[here[place]]
            usual = float(np.median(spans[spans > 0])) if (spans > 0).any() else 0.0
            ratio = ratio_of(float(beyond[place]), float(errors[place]))
            change = Change(
                math.exp(after.log[row]), math.exp(before.log[row]), ratio.value, ratio.low, ratio.high
            )  # fmt: skip
            lost = (change.now_ms - change.then_ms * math.exp(common)) * usual
            found.append(_rank(pair, int(ranks[row]), int(stage), change, lost, now, then))
    return _by_host(found, pair, now)


def _rank(
    pair: Pair, rank: int, stage: int, change: Change, own_ms: float, now: Loaded, then: Loaded
) -> Slower:  # fmt: skip
    hosts = tuple(host for host in (now.seen.placement.host_of(rank),) if host is not None)
    before = tuple(host for host in (then.seen.placement.host_of(rank),) if host is not None)
    return Slower(Place.RANK, pair.name, pair.kind, stage, (rank,), hosts, before, change, own_ms, own_ms, 0.0, "")


def _by_host(found: list[Slower], pair: Pair, now: Loaded) -> list[Slower]:
    """Half of a host's ranks, at least two, that run the segment and got slower are the host."""
    measured = pair.now.count.sum(axis=(0, 2)) > 0
    running: dict[str, int] = {}
    for rank, has in zip(now.seen.ranks.tolist(), measured, strict=True):
        host = now.seen.placement.host_of(rank) if has else None
        if host is not None:
            running[host] = running.get(host, 0) + 1
    groups: dict[tuple[str, ...], list[Slower]] = {}
    for one in found:
        groups.setdefault(one.hosts, []).append(one)
    result: list[Slower] = []
    several = len(set(now.seen.placement.hosts)) > 1
    for hosts, group in groups.items():
        whole = several and hosts and len(group) >= 2 and 2 * len(group) >= running.get(hosts[0], 0)
        result += [_host(hosts, group)] if whole else group
    return result


def _host(hosts: tuple[str, ...], group: list[Slower]) -> Slower:
    ordered = sorted(group, key=lambda one: one.change.ratio)
    middle, costliest = ordered[len(ordered) // 2], max(group, key=lambda one: one.own_ms)
    stages = {one.stage for one in group}
    return Slower(
        Place.HOST, middle.segment, middle.segment_kind, stages.pop() if len(stages) == 1 else None,
        tuple(sorted(rank for one in group for rank in one.ranks)), hosts,
        tuple(dict.fromkeys(host for one in group for host in one.hosts_then)),
        middle.change, costliest.own_ms, costliest.own_ms, 0.0, "",
    )  # fmt: skip


def per_step(values: FloatArray) -> FloatArray:
    """Times of steps as one row for `estimate`, [S] -> [1, S]."""
    return values[None]
