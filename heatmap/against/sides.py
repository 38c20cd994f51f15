"""One side of a comparison, loaded; and what two sides do not have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...profiler.vocabulary import REPLICA_AXES
from ..mfu.lives import Life, load_life
from ..observations import MAIN_KINDS, Observations, observe
from ..peers import FloatArray, row_median
from .result import Side

DATA_AXES = frozenset(REPLICA_AXES)
"""Axes whose size leaves a rank's own work as it is: more of them run the same on other data."""

MAX_DIFFERENCES = 12

COUNT_SLACK = 0.02
"""Spans of a step may differ by so much before the steps are said to hold different work."""

WORK_SLACK = 0.05
"""The same for the FLOPs of a token, which rest on measured times."""

_NOT_THE_WORK = frozenset({"seed", "run", "out", "store", "spool", "steps", "faults", "attempt", "clocks", "resume"})
"""Names in configurations that do not change what a step does."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A side with what was observed in it; ``life`` is None where it has no step with a time."""

    store: Store
    attempt: Attempt
    steps: tuple[int, int] | None
    seen: Observations
    life: Life | None

    def said(self) -> Side:
        """What it is, for the report."""
        steps, width = self.seen.steps, self.seen.source.step_width
        read = (int(steps[0]), int(steps[-1]) + width - 1) if len(steps) else None
        return Side(
            str(self.store.root), self.attempt.run, self.attempt.attempt, read, len(self.seen.ranks),
            dict(self.attempt.layout), str(self.seen.source.source), len(steps), width,
        )  # fmt: skip

    def spans_per_step(self) -> dict[tuple[str, str], float]:
        """Spans of each main segment that the median rank has in a step."""
        found = {}
        for one in self.seen.cells:
            if one.kind in MAIN_KINDS:
                count = one.count.sum(axis=0)
                found[one.name, one.kind] = float(np.median(count[count > 0])) if (count > 0).any() else 0.0
        return found

    def tokens_per_span(self) -> float | None:
        """Tokens of a micro-batch of one replica, from those of a step; None where they were not recorded."""
        tokens = None if self.life is None else _median(self.life.kept.tokens)
        spans = max(self.spans_per_step().values(), default=0.0)
        replicas = math.prod(self.attempt.layout.get(axis, 1) for axis in REPLICA_AXES)
        return tokens / spans / replicas if tokens is not None and spans > 0 else None

    def work_per_token(self) -> float | None:
        """FLOPs of a token over the peak of one device, in device milliseconds; None without MFU and tokens."""
        if self.life is None:
            return None
        series = self.life.kept
        done = _median(series.mfu * series.ms / series.tokens)
        return None if done is None else done * max(self.attempt.world_size or 0, len(self.seen.ranks))


def _median(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def load_side(store: Store, attempt: Attempt, steps: tuple[int, int] | None) -> Loaded:
    """Load an attempt in the given steps (first, last; None: all)."""
    return Loaded(store, attempt, steps, observe(store, attempt, steps=steps), load_life(store, attempt, steps))


def other_work(now: Loaded, then: Loaded) -> list[str]:
    """Why a span on one side is not the same work as on the other, in words; empty where nothing says so.

    The axes that cut the model and the sequence, the model's settings, the tokens of a span, and the model's FLOPs of a
    token over the device's peak, which MFU, step time and tokens give together.
    """
    axes = sorted((set(now.attempt.layout) | set(then.attempt.layout)) - DATA_AXES)
    cut = [axis for axis in axes if now.attempt.layout.get(axis, 1) != then.attempt.layout.get(axis, 1)]
    reasons = []
    if cut:
        reasons.append(f"{', '.join(cut)} cut the model or the sequence otherwise on the two sides")
    changed = changed_settings(now.attempt.configuration, then.attempt.configuration)
    reasons += [text for name, text in changed if is_of_model(name)]
    mine, theirs = now.tokens_per_span(), then.tokens_per_span()
    if mine is not None and theirs is not None and abs(mine - theirs) > COUNT_SLACK * theirs:
        reasons.append(f"a span stands for {mine:,.0f} tokens now, {theirs:,.0f} then")
    mine, theirs = now.work_per_token(), then.work_per_token()
    if mine is not None and theirs is not None and abs(mine - theirs) > WORK_SLACK * theirs:
        reasons.append(f"a token costs x{mine / theirs:.2f} of the FLOPs, or the device's peak is another")
    return reasons


def is_of_model(name: str) -> bool:
    """Whether a setting is one of the model's, by its name: `model.layers`, also inside another table."""
    return "model" in name.split(".")[:-1]


def same_work(now: Loaded, then: Loaded) -> bool:
    """Whether nothing says that a span is other work on the two sides."""
    return not other_work(now, then)


def same_ranks(now: Loaded, then: Loaded) -> bool:
    """Whether a rank number stands for the same place in the mesh."""
    same = list(now.attempt.layout.items()) == list(then.attempt.layout.items())
    return same and len(np.intersect1d(now.seen.ranks, then.seen.ranks)) > 0


def same_step(now: Loaded, then: Loaded) -> bool:
    """Whether a step holds the same work: as many spans of every main segment, on as many ranks."""
    if not same_work(now, then) or not same_ranks(now, then):
        return False
    mine, theirs = now.spans_per_step(), then.spans_per_step()
    return all(abs(mine[key] - theirs[key]) <= COUNT_SLACK * theirs[key] for key in mine.keys() & theirs.keys())


def differences(now: Loaded, then: Loaded) -> tuple[str, ...]:
    """What the two sides do not have in common, in words."""
    return tuple(_differences(now, then))


def _differences(now: Loaded, then: Loaded) -> Iterator[str]:
    if now.attempt.layout != then.attempt.layout:
        yield f"layout {_layout(now)} now, {_layout(then)} then"
    mine, theirs = now.spans_per_step(), then.spans_per_step()
    for key in sorted(mine.keys() & theirs.keys()):
        if abs(mine[key] - theirs[key]) > COUNT_SLACK * theirs[key]:
            yield f"{key[0]} runs {mine[key]:g} times a step now, {theirs[key]:g} times then: it is compared per span"
    for which, own, other in (("now", mine, theirs), ("then", theirs, mine)):
        alone = sorted(name for name, _ in own.keys() - other.keys())
        if alone:
            yield f"{', '.join(alone)} runs {which} only"
    changed = [text for _, text in changed_settings(now.attempt.configuration, then.attempt.configuration)]
    yield from changed[:MAX_DIFFERENCES]
    if len(changed) > MAX_DIFFERENCES:
        yield f"{len(changed) - MAX_DIFFERENCES} more settings"
    hosts = [set(one.seen.placement.hosts) for one in (now, then)]
    new = sorted(hosts[0] - hosts[1])
    if new:
        more = f" and {len(new) - 4} more" if len(new) > 4 else ""
        yield f"hosts {', '.join(new[:4])}{more} run it now only"


def _layout(side: Loaded) -> str:
    return "x".join(f"{axis}{size}" for axis, size in side.attempt.layout.items()) or "unknown"


def changed_settings(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings with other values: names, and as text."""
    mine, theirs = dict(_flat(now)), dict(_flat(then))
    names = sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])
    return [(name, f"{name} is {mine[name]} now, {theirs[name]} then") for name in names]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in _NOT_THE_WORK:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list) or len(value) <= 4:
            yield f"{prefix}{name}", value


def median_over(values: FloatArray) -> FloatArray:
    """Median over ranks of each column, [R, S] -> [S]."""
    return row_median(values.T)
