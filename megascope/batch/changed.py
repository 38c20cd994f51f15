"""`changed`: whose work takes longer in one stretch of steps than in another, over all raw spans of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..profiler.errors import MegascopeError, UsageError
from .engines import Engine
from .medians import Side, medians_of
from .places import load_places
from .scope import Scope
from .worst import Compared, compare

BEFORE, AFTER = 0, 1


def sides_of(scope: Scope, before: tuple[int, int] | None, after: tuple[int, int] | None) -> tuple[Side, Side]:
    """The two stretches: as asked, or the halves of all recorded steps.

    Raises UsageError where only one is given, and MegascopeError where one has no spans.
    """
    if (before is None) != (after is None):
        raise UsageError("--before and --after belong together: give both, or neither for the two halves.")
    if before is not None and after is not None:
        if before[0] <= after[1] and after[0] <= before[1]:
            raise UsageError("--before and --after have steps in common: give two stretches apart.")
        _require(scope, "--before", before)
        _require(scope, "--after", after)
        return Side(*before), Side(*after)
    first, last = _extent(scope)
    if first == last:
        raise MegascopeError(f"Run {scope.run} has spans of step {first} alone: two stretches need more.")
    middle = (first + last) // 2
    return Side(first, middle), Side(middle + 1, last)


def _extent(scope: Scope) -> tuple[int, int]:
    """First and last step of all that count."""
    return min(ranges[0][0] for ranges in scope.kept), max(ranges[-1][1] for ranges in scope.kept)


def _require(scope: Scope, option: str, steps: tuple[int, int]) -> None:
    if any(first <= steps[1] and steps[0] <= last for ranges in scope.kept for first, last in ranges):
        return
    first, last = _extent(scope)
    raise MegascopeError(f"There are no spans in {option}: run {scope.run} has some from step {first} to {last}.")


@dataclass(frozen=True, slots=True)
class Work:
    """What ranks do alike: they are expected to change alike."""

    segment: str
    stage: int
    chunk: int


def find_changed(scope: Scope, engine: Engine, sides: tuple[Side, Side], limit: int) -> dict[str, Any]:
    """Segments with the median over their ranks of how many times as long they take, and the ``limit`` ranks whose time
    grew or shrank the most beyond the others'.

    A rank and segment that one of the stretches lacks is compared with nothing, and counted. Attempts are put together
    where a rank is on the same host in them.
    """
    places = load_places(scope, together=True)
    compared = compare(engine.ask(medians_of(scope, places, sides)), places)
    pairs = _pairs(compared)
    ratios: dict[Work, list[float]] = {}
    for (_, _, work), (earlier, later) in pairs.items():
        ratios.setdefault(work, []).append(float(compared.median_ns[later] / compared.median_ns[earlier]))
    usual = {work: float(np.median(found)) for work, found in ratios.items()}
    ranks = [_row(compared, *key, usual[key[2]], *rows) for key, rows in pairs.items()]
    lost = dict.fromkeys(usual, 0.0)
    for (_, _, work), row in zip(pairs, ranks, strict=True):
        lost[work] += row["lost_s"]
    segments = [
        {**asdict(work), "ranks": len(ratios[work]), "ratio": usual[work], "lost_s": lost[work]}
        for work in sorted(usual, key=lambda work: -abs(lost[work]))
    ]
    ranks.sort(key=lambda row: -abs(row["beyond_others_s"]))
    alone = len(compared.rows) - 2 * len(pairs)  # a place has one row on each side
    return {"segments": segments, "ranks": ranks[:limit], "in_one_stretch_only": alone}


def _row(
    compared: Compared, rank: int, host: str | None, work: Work, others: float, earlier: int, later: int
) -> dict[str, Any]:
    """``lost_s``: what the later spans took beyond the earlier; ``beyond_others_s``: beyond what the others' ratio
    would have made of them."""
    before, after = float(compared.median_ns[earlier]), float(compared.median_ns[later])
    spans = compared.rows[later]["spans"]
    return {
        "rank": rank,
        "host": host,
        **asdict(work),
        "before_ns": before,
        "after_ns": after,
        "ratio": after / before,
        "others_ratio": others,
        "lost_s": (after - before) * spans / 1e9,
        "beyond_others_s": (after - before * others) * spans / 1e9,
    }


def _pairs(compared: Compared) -> dict[tuple[int, str | None, Work], tuple[int, int]]:
    """(rank, host, work) to the rows before and after."""
    found: dict[tuple[int, str | None, Work], dict[int, int]] = {}
    for at, row in enumerate(compared.rows):
        one = compared.named(at)
        key = (one["rank"], one["host"], Work(one["segment"], one["stage"], one["chunk"]))
        found.setdefault(key, {})[row["side"]] = at
    return {key: (rows[BEFORE], rows[AFTER]) for key, rows in found.items() if len(rows) == 2}
