"""The numbers behind a comparison, each with the SQL that asks its own store for it again."""

from __future__ import annotations

from ...collectors.reading.views import identifier, literal
from ...collectors.verdicts import Evidence
from ..asking import ask
from ..source import Source
from .result import Place, Slower
from .sides import Loaded


def gather(now: Loaded, then: Loaded, found: Slower) -> tuple[Evidence, ...]:
    """Mean time of a span now and then; nothing for waiting, which is a difference of several sums."""
    if found.place == Place.WAITING:
        return ()
    sides = (("now", now), ("then", then))
    asked = [(which, side, _sql(side, found)) for which, side in sides]
    values = [ask(side.store, sql) for _, side, sql in asked]
    if any(value is None for value in values):
        return ()
    result = []
    for (which, side, sql), own, other in zip(asked, values, reversed(values), strict=True):
        statement = (
            f"{which}: a span of {found.segment} takes {own:.2f} ms on average (run {side.attempt.run}, attempt "
            f"{side.attempt.attempt}, store {side.store.root.name})"
        )
        table = "rank_windows" if side.seen.source.source == Source.ROLLUPS else "events"
        result.append(Evidence(statement, own, other, table, sql))
    return tuple(result)


def _sql(side: Loaded, found: Slower) -> str:
    """Mean own time per span over the steps that were read, of the ranks or the stage that are meant."""
    steps, width = side.seen.steps, side.seen.source.step_width
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
    chosen = [
        f"x.run = {literal(side.attempt.run)}",
        f"x.attempt = {side.attempt.attempt}",
        f"s.name = {literal(found.segment)}",
        f"s.kind = {literal(found.segment_kind)}",
    ]
    if found.ranks:
        chosen.append(f"x.rank IN ({', '.join(str(rank) for rank in found.ranks)})")
    elif found.stage is not None and (axis := side.seen.placement.stage_axis) is not None:
        chosen.append(
            f"x.rank IN (SELECT rank FROM ranks WHERE run = {literal(side.attempt.run)} "
            f"AND attempt = {side.attempt.attempt} AND {identifier(axis)} = {found.stage})"
        )
    if side.seen.source.source == Source.ROLLUPS:
        chosen += [f"window_steps = {width}", f"first_step BETWEEN {first} AND {last}"]
        return (
            "SELECT sum(self_sum_ns) / sum(self_count) / 1e6 FROM rank_windows x "
            f"JOIN segments s USING (run, attempt, segment) WHERE {' AND '.join(chosen)}"
        )
    chosen += ["x.status = 'ok'", f"x.step BETWEEN {first} AND {last}"]
    return (
        "SELECT avg(self_ns) / 1e6 FROM events x JOIN segments s USING (run, attempt, segment) "
        f"WHERE {' AND '.join(chosen)}"
    )
