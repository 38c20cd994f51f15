"""What a step took longer than in the reference, part by part: the parts add up to the growth of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ..peers import FloatArray
from .parts import BoolArray, StepParts

LONG_STEP = 3.0
"""A step of so many median steps is a stop of its own: a restart, a stall, a pause that no span tells of."""


class PartKind(StrEnum):
    """What a part of a step is: a segment of work has its own kind instead."""

    WAITING = "waiting"
    LONG_STEPS = "long-steps"
    REST = "rest"


@dataclass(frozen=True, slots=True)
class Growth:
    """One part of what a step took longer; milliseconds per step.

    ``kind`` is that of a segment of work, or a `PartKind`. ``own_ms`` is the growth of the mean rank's own time,
    ``awaited_ms`` that of the time which the others waited for whoever took longest in it, ``growth_ms`` the sum.
    ``share`` is its share of the step's growth; None where the step did not grow.
    """

    name: str
    kind: str
    axis: str | None
    reference_ms: float
    growth_ms: float
    own_ms: float
    awaited_ms: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of an attempt: step times in ms and steps in each [S], what they are made of, and what long steps add.

    ``parts`` has the same columns, or is None where no span of work was timed. ``long_ms`` [S]: mean over the steps of
    a column of what steps of more than `LONG_STEP` medians took above the median.
    """

    ms: FloatArray
    weight: FloatArray
    long_ms: FloatArray
    parts: StepParts | None


def explain(reference: Sequence[tuple[Columns, BoolArray]], later: Sequence[tuple[Columns, BoolArray]]) -> list[Growth]:
    """Parts of the growth from the columns of ``reference`` to those of ``later``, the largest first.

    Each entry is the columns of an attempt and which of them are meant, [S] bool. What the mean rank waited longer
    goes to what it waited for, as far as that grew: the awaited rank's excess, and the excess of the stage whose own
    work grew most. What is left of it stays with the axis that it was waited on.
    """
    before, after = _Means.of(reference), _Means.of(later)
    waits = {axis: after.waits.get(axis, 0.0) - before.waits.get(axis, 0.0) for axis in before.waits | after.waits}
    available = sum(max(one, 0.0) for one in waits.values())
    names = list(before.own | after.own)
    awaited = {name: _late(name, before, after, _slowest_stage(before, after)) for name in names}
    most = sum(awaited.values())
    scale = min(1.0, available / most) if most > 0 else 0.0
    rows = []
    for name, kind in names:
        own = after.own.get((name, kind), 0.0) - before.own.get((name, kind), 0.0)
        late = awaited[name, kind] * scale
        rows.append(Growth(name, kind, None, before.own.get((name, kind), 0.0), own + late, own, late))
    for axis, grown in waits.items():
        left = grown - (max(grown, 0.0) / available * most * scale if available > 0 else 0.0)
        rows.append(
            Growth(f"waiting over {axis}", PartKind.WAITING, axis, before.waits.get(axis, 0.0), left, left, 0.0)
        )
    rows += _not_recorded(before, after, sum(row.growth_ms for row in rows), has_parts=bool(names))
    return _with_shares(rows, after.ms - before.ms)


def _not_recorded(before: _Means, after: _Means, explained_ms: float, *, has_parts: bool) -> list[Growth]:
    """Long steps that no span explains, and the rest: what is left of the growth."""
    rest = after.ms - before.ms - explained_ms
    stopped = after.long - before.long
    # what spans explain of long steps (a checkpoint) is in no rest: so much of it at most is a stop without a name
    stopped = float(np.clip(stopped, min(rest, 0.0), max(rest, 0.0))) if has_parts else stopped
    recorded = sum(before.own.values()) + sum(before.waits.values())
    name = "in no recorded span" if has_parts else "usual steps"
    rows = [Growth(name, PartKind.REST, None, before.ms - before.long - recorded, rest - stopped, rest - stopped, 0.0)]
    if abs(stopped) > 0:
        rows.append(Growth("single long steps", PartKind.LONG_STEPS, None, before.long, stopped, stopped, 0.0))
    return rows


def _with_shares(rows: list[Growth], grown_ms: float) -> list[Growth]:
    shared = [
        Growth(
            row.name,
            row.kind,
            row.axis,
            row.reference_ms,
            row.growth_ms,
            row.own_ms,
            row.awaited_ms,
            row.growth_ms / grown_ms if grown_ms > 0 else None,
        )
        for row in rows
    ]
    return sorted(shared, key=lambda row: -row.growth_ms)


@dataclass(frozen=True, slots=True)
class _Means:
    """Means over columns, weighted by their steps; ``stages`` holds a list over the stages for each segment."""

    ms: float
    long: float
    own: dict[tuple[str, str], float]
    awaited: dict[tuple[str, str], float]
    stages: dict[tuple[str, str], list[float]]
    waits: dict[str, float]

    @classmethod
    def of(cls, chosen: Sequence[tuple[Columns, BoolArray]]) -> _Means:
        """Of the chosen columns of one or several attempts; those without parts count in step times alone."""
        weights = [columns.weight * keep for columns, keep in chosen]
        total = sum(float(weight[np.isfinite(one.ms)].sum()) for (one, _), weight in zip(chosen, weights, strict=True))

        def mean(values: list[FloatArray]) -> float:
            return sum(float(np.nansum(v * w)) for v, w in zip(values, weights, strict=True)) / total if total else 0.0

        result = cls(mean([one.ms for one, _ in chosen]), mean([one.long_ms for one, _ in chosen]), {}, {}, {}, {})
        for (columns, _), weight in zip(chosen, weights, strict=True):
            if columns.parts is not None and total:
                _add(result, columns.parts, weight / total)
        return result


def _add(means: _Means, parts: StepParts, weight: FloatArray) -> None:
    """Add the parts of one attempt; columns without data take the mean of the others."""
    has = np.isfinite(parts.own_ms).all(axis=0)
    inside = float(weight[has].sum())
    if inside <= 0:
        return
    scaled = np.where(has, weight, 0.0) * float(weight.sum()) / inside

    def summed(values: FloatArray) -> float:
        return float(np.nansum(values * scaled))

    for place, key in enumerate(zip(parts.names, parts.kinds, strict=True)):
        means.own[key] = means.own.get(key, 0.0) + summed(parts.own_ms[place])
        means.awaited[key] = means.awaited.get(key, 0.0) + summed(parts.awaited_ms[place])
        found = [summed(stage[place]) for stage in parts.stage_ms]
        known = means.stages.get(key, [0.0] * len(found))
        means.stages[key] = [a + b for a, b in zip(known, found, strict=False)]
    for place, axis in enumerate(parts.axes):
        means.waits[axis] = means.waits.get(axis, 0.0) + summed(parts.waits_ms[place])


def _stage_growth(key: tuple[str, str], before: _Means, after: _Means) -> list[float]:
    now, then = after.stages.get(key, []), before.stages.get(key, [])
    size = max(len(now), len(then))
    return [(now[p] if p < len(now) else 0.0) - (then[p] if p < len(then) else 0.0) for p in range(size)]


def _slowest_stage(before: _Means, after: _Means) -> int | None:
    """The stage whose own work grew most; None without stages."""
    grown = [_stage_growth(key, before, after) for key in before.stages | after.stages]
    size = max((len(one) for one in grown), default=0)
    totals = [sum(one[p] for one in grown if p < len(one)) for p in range(size)]
    return int(np.argmax(totals)) if totals else None


def _late(key: tuple[str, str], before: _Means, after: _Means, stage: int | None) -> float:
    """Growth of what the others wait for in a segment: one rank's excess, and one stage's over the mean stage."""
    rank = max(after.awaited.get(key, 0.0) - before.awaited.get(key, 0.0), 0.0)
    grown = _stage_growth(key, before, after)
    if stage is None or stage >= len(grown):
        return rank
    return rank + max(grown[stage] - sum(grown) / len(grown), 0.0)
