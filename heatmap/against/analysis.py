"""`compare_runs`: what got slower between two runs, attempts or windows of steps, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.verdicts import Abstention
from ...profiler.vocabulary import PIPELINE_AXES, REPLICA_AXES
from ..causes import MAIN_SEGMENT_SHARE
from ..estimate import estimate, ratio_of
from ..mfu.growth import Growth, PartKind, explain
from ..mfu.lives import Life
from .compare import (
    LEAST_PEERS,
    MIN_RANK,
    Pair,
    as_segment,
    is_faster,
    is_slower,
    least_columns,
    pairs,
    per_step,
    rank_changes,
    stage_changes,
)
from .evidence import gather
from .result import Against, Change, Place, Slower, Verdict
from .sides import Loaded, differences, load_side, other_work, same_ranks, same_step, same_work
from .tokens import GOES_WITH_TOKENS, changed_tokens, not_compared
from .waiting import with_split
from .words import sentence_of, statement_of

MAX_FINDINGS = 30
MAX_WITH_EVIDENCE = 10

VISIBLE = 1.05
"""What must have shown before it is said that nothing got slower."""

LEAST_COST = 0.005
"""What takes less than such a share of the step longer is a small change, however sure."""

MIN_WAITING_SHARE = 0.1
"""Waiting that nothing slower explains is a finding from this share of the step's growth on."""


def compare_runs(
    store: Store,
    attempt: Attempt,
    other_store: Store,
    other: Attempt,
    *,
    steps: tuple[int, int] | None = None,
    other_steps: tuple[int, int] | None = None,
) -> Against:
    """What takes longer in ``attempt`` than in ``other``, in the given steps (first, last; None: all).

    Own time per span is compared, stage by stage, and rank by rank where both have the same mesh; where another axis
    than dp has another size, a span is other work and nothing is judged.
    """
    now, then = load_side(store, attempt, steps), load_side(other_store, other, other_steps)
    shared = pairs(now, then) if same_work(now, then) else []
    other_tokens = changed_tokens(now, then) if shared else ()
    left_out = [one.rank for one in other_tokens]
    found = [one for pair in shared for one in _changes(pair, now, then, len(shared), left_out)]
    step = _step(now, then)
    growth = _growth(now.life, then.life) if step is not None else ()
    every = [one for one in found if one.place in (Place.HOST, Place.RANK) or is_slower(one.change)]
    every = [_with_cost(one, now, step) for one in [*every, *_waiting(growth, step)]]
    every.sort(key=lambda one: (-one.lost_ms, -one.own_ms))
    slower, small = _by_cost(every, now, step)
    faster = sorted((one for one in found if is_faster(one.change)), key=lambda one: one.own_ms)
    faster = [one for one in faster if -one.own_ms >= _least_ms(now)]
    blocking = list(_blocking(now, then, shared))
    verdict = _verdict(slower, step, blocking)
    told = tuple(_told(one, now, then, place) for place, one in enumerate(slower[:MAX_FINDINGS]))
    return Against(
        run=attempt.run,
        attempt=attempt.attempt,
        data_age_s=store.data_age_s(attempt),
        verdict=verdict,
        sentence=sentence_of(verdict, told, len(slower), step, blocking, len(left_out)),
        now=now.said(),
        then=then.said(),
        step=step,
        findings=told,
        small=tuple(replace(one, statement=statement_of(one)) for one in small[:MAX_FINDINGS]),
        faster=tuple(replace(one, statement=statement_of(one)) for one in faster[:MAX_FINDINGS]),
        growth=growth,
        differences=differences(now, then),
        abstained=(*blocking, *not_compared(other_tokens), *_notes(now, then, step, len(slower))),
    )


def _told(one: Slower, now: Loaded, then: Loaded, place: int) -> Slower:
    """A finding in words; the first of them with evidence."""
    one = replace(one, evidence=gather(now, then, one)) if place < MAX_WITH_EVIDENCE else one
    one = with_split(one, now, then)
    return replace(one, statement=statement_of(one))


def _changes(pair: Pair, now: Loaded, then: Loaded, segments: int, other_tokens: Sequence[int]) -> list[Slower]:
    """Changes of a segment and its stages, and of ranks and hosts beyond them, slower or faster; not those of ranks
    that have ``other_tokens`` than then, at what goes with tokens."""
    stages = list(stage_changes(pair, now, then, tried=segments))
    stages = list(stage_changes(pair, now, then, tried=segments * max(len(stages), 1)))
    whole = as_segment(pair.name, pair.kind, stages)
    left_out = other_tokens if pair.kind in GOES_WITH_TOKENS else ()
    return [*whole, *rank_changes(pair, now, then, segments, left_out)]


def _step(now: Loaded, then: Loaded) -> Change | None:
    """Change of the step's time; None where a step holds other work, or too few steps have a time."""
    if not same_step(now, then):
        return None
    mine = estimate(per_step(now.seen.step_ms), least_columns(now))
    theirs = estimate(per_step(then.seen.step_ms), least_columns(then))
    log, error = float(mine.log[0] - theirs.log[0]), float(np.hypot(mine.error[0], theirs.error[0]))
    if not np.isfinite(log) or not np.isfinite(error):
        return None
    ratio = ratio_of(log, error)
    return Change(float(np.exp(mine.log[0])), float(np.exp(theirs.log[0])), ratio.value, ratio.low, ratio.high)


def _growth(now: Life | None, then: Life | None) -> tuple[Growth, ...]:
    """What the step took longer, in parts that add up."""
    if now is None or then is None or now.columns.parts is None or then.columns.parts is None:
        return ()
    later, earlier = (
        [(life.columns, np.isfinite(life.columns.ms) & (life.first >= life.kept.steps[0]))] for life in (now, then)
    )
    return tuple(explain(earlier, later))


def _waiting(growth: Sequence[Growth], step: Change | None) -> Iterator[Slower]:
    """Waiting that got longer and that no slower work explains: whose origin that is, it does not tell."""
    if step is None or not is_slower(step):
        return
    for row in growth:
        if row.kind == PartKind.WAITING and row.share is not None and row.share >= MIN_WAITING_SHARE:
            then_ms, now_ms = row.reference_ms, row.reference_ms + row.growth_ms
            ratio = now_ms / then_ms if then_ms > 0 else float("inf")
            change = Change(now_ms, then_ms, ratio, float("nan"), float("nan"))
            yield Slower(
                Place.WAITING,
                row.axis or "",
                "waiting",
                None,
                (),
                (),
                (),
                change,
                row.growth_ms,
                row.growth_ms,
                0.0,
                "",
            )


_STEP_ORDER = ("tp", "cp", "ep", *PIPELINE_AXES, *REPLICA_AXES, "world")
"""Inside micro-batches, then between stages, then at the step's end: who is late is waited for in this order."""


def _by_cost(slower: Sequence[Slower], now: Loaded, step: Change | None) -> tuple[list[Slower], list[Slower]]:
    """Findings, and changes too small to be one: of the step, or, where it is not longer, within its own interval.

    Waiting is told at the end, in the order in which a step meets it.
    """
    least = _least_ms(now)
    if step is not None and not is_slower(step):
        least = max(least, (step.ratio - step.low) * step.then_ms)
    costly = [one for one in slower if one.own_ms >= least and one.lost_ms >= least]
    work = [one for one in costly if one.place != Place.WAITING]
    waits = sorted((one for one in costly if one.place == Place.WAITING), key=_axis_place)
    return work + waits, [one for one in slower if one not in costly]


def _least_ms(now: Loaded) -> float:
    known = now.seen.step_ms[np.isfinite(now.seen.step_ms)]
    return LEAST_COST * float(np.median(known)) if len(known) else 0.0


def _axis_place(one: Slower) -> int:
    return _STEP_ORDER.index(one.segment) if one.segment in _STEP_ORDER else len(_STEP_ORDER)


def _with_cost(one: Slower, now: Loaded, step: Change | None) -> Slower:
    """With what the job loses: own time that hides in a pipeline's bubbles costs nothing, so the step is the limit."""
    most = np.inf if step is None else max((step.high - 1) * step.then_ms, 0.0)
    lost_ms, known = max(min(one.own_ms, most), 0.0), now.seen.step_ms[np.isfinite(now.seen.step_ms)]
    return replace(one, lost_ms=lost_ms, lost_share=round(lost_ms / float(np.median(known)), 6) if len(known) else 0.0)


def _verdict(slower: Sequence[Slower], step: Change | None, blocking: Sequence[Abstention]) -> Verdict:
    if slower or (step is not None and is_slower(step)):
        return Verdict.SLOWER
    return Verdict.INSUFFICIENT if blocking or step is None else Verdict.NOT_SLOWER


def _blocking(now: Loaded, then: Loaded, shared: Sequence[Pair]) -> Iterator[Abstention]:
    """Reasons against the words "nothing got slower"."""
    reasons = other_work(now, then)
    if reasons:
        yield Abstention("work", f"a span is not the same work on the two sides: {'; '.join(reasons)}")
        return
    for which, side in (("now", now), ("then", then)):
        columns = len(side.seen.steps)
        if columns < least_columns(side):
            width = side.seen.source.step_width
            reason = f"only {columns * width} steps {which} after warm-up, {least_columns(side) * width} are needed"
            yield Abstention("steps", reason)
        if side.seen.missing_count:
            yield Abstention("coverage", f"{side.seen.missing_count} ranks have no data {which}")
    if not shared:
        yield Abstention("segments", "the two sides have no timed segment of work in common")
        return
    yield from _hidden(now, then, shared)


def _hidden(now: Loaded, then: Loaded, shared: Sequence[Pair]) -> Iterator[Abstention]:
    """Main segments in which a slow-down of 5 % would not have shown."""
    step = float(np.nanmedian(now.seen.step_ms)) if np.isfinite(now.seen.step_ms).any() else np.nan
    for pair in shared:
        rows = max(int((pair.now.count.sum(axis=(0, 2)) > 0).sum()), 1)
        mean_ms = float(np.nansum(pair.now.total_ms)) / rows / max(len(now.seen.steps), 1)
        if not mean_ms >= MAIN_SEGMENT_SHARE * step:
            continue
        stages = list(stage_changes(pair, now, then, tried=len(shared)))
        widest = max((one.change.high / one.change.ratio for one in stages), default=np.inf)
        if widest > VISIBLE:
            shown = "" if np.isinf(widest) else f": only what is slower by x{widest:.2f} would show"
            yield Abstention(pair.name, f"its time varies too much, or was measured too rarely{shown}")


def _notes(now: Loaded, then: Loaded, step: Change | None, found: int) -> Iterator[Abstention]:
    """What was not compared; none of it forbids the words "nothing got slower", which need the step's time."""
    if same_work(now, then) and not same_ranks(now, then):
        yield Abstention("ranks", "the meshes differ: stages were compared, single ranks and hosts were not")
    elif same_work(now, then):
        yield Abstention("ranks", f"a rank that changed by less than x{MIN_RANK:g} beyond its stage is not looked for")
        roles = now.seen.placement.roles(now.seen.ranks)
        small = [int(one) for one in np.unique(roles[roles >= 0]) if (roles == one).sum() < LEAST_PEERS]
        if small:
            named = ", ".join(str(one) for one in small[:8])
            yield Abstention("ranks", f"stages of under {LEAST_PEERS} ranks ({named}): no rank is told from its stage")
    if step is None:
        yield Abstention("step-time", "steps hold different work, or too few have a time: only spans were compared")
    for which, side in (("now", now), ("then", then)):
        if side.seen.warm_up:
            yield Abstention("warm-up", f"{len(side.seen.warm_up)} first steps of the attempt {which} are left out")
    if found > MAX_FINDINGS:
        yield Abstention("findings", f"{found - MAX_FINDINGS} more findings cost less and are not listed")
