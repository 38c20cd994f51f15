"""Waiting over an axis, split: what transfers take once all have arrived, and what is lateness of whoever comes last.

All members see an operation end together, so its transfer is the shortest duration among them (end minus the latest
start); of a rank's waiting at it, what exceeds the transfer was spent on somebody who was late. No clocks are compared.
Of rollups, the least duration in a window among the members of a group is taken for each of its operations: the least
transfer. That is told of collectives alone, as a send that is over at once would pass for the transfer of its pair.
"""

from __future__ import annotations

from dataclasses import replace

from ...collectors.reading.store import Attempt
from ...collectors.reading.views import literal
from ...collectors.verdicts import Evidence
from ..network.operations import SENDER, USABLE
from ..source import Source
from .result import Place, Slower, Waited
from .sides import Loaded

LEAST_KNOWN = 0.9
"""Share of the waiting that must lie in operations all of whose members were recorded."""


def with_split(one: Slower, now: Loaded, then: Loaded) -> Slower:
    """A finding of waiting with its transfer and lateness on both sides, and the SQL behind them.

    Unchanged where one side cannot tell, or the two were read from different tables.
    """
    if one.place != Place.WAITING:
        return one
    sides = _split(now, one.segment), _split(then, one.segment)
    if sides[0] is None or sides[1] is None or now.seen.source.source != then.seen.source.source:
        return one
    table = "rank_windows" if now.seen.source.source == Source.ROLLUPS else "events"
    evidence = []
    for which, side, (own, sql), (other, _) in (("now", now, sides[0], sides[1]), ("then", then, sides[1], sides[0])):
        statement = (
            f"{which}: of the mean rank's waiting over {one.segment}, transfers take {own.transfer_ms:.2f} ms a step "
            f"and lateness {own.lateness_ms:.2f} ms (run {side.attempt.run}, attempt {side.attempt.attempt})"
        )
        evidence.append(Evidence(statement, own.transfer_ms, other.transfer_ms, table, sql))
    return replace(one, waited=(sides[0][0], sides[1][0]), evidence=tuple(evidence))


def _split(side: Loaded, axis: str) -> tuple[Waited, str] | None:
    """Transfer and lateness on one side, and the SQL for the first; None where they cannot be told."""
    ranks, steps = len(side.seen.ranks), side.seen.steps
    width = side.seen.source.step_width
    if not ranks or not len(steps):
        return None
    cells, within = ranks * len(steps) * width, (int(steps[0]), int(steps[-1]))
    if side.seen.source.source == Source.ROLLUPS:
        operations = _windows(side.attempt, axis, within, width)
    else:
        operations = _operations(side.attempt, axis, within)
    row = side.store.query(
        f"SELECT sum(exposed) / 1e6 AS waited, sum(exposed) FILTER (is_whole) / 1e6 AS known, "
        f"sum(least(exposed, took)) FILTER (is_whole) / 1e6 AS moved FROM ({operations})",
        attempt=side.attempt,
    ).to_pylist()[0]
    if not row["waited"] or (row["known"] or 0.0) < LEAST_KNOWN * row["waited"]:
        return None
    found = Waited(round(row["moved"] / cells, 6), round((row["known"] - row["moved"]) / cells, 6))
    return found, f"SELECT sum(least(exposed, took)) FILTER (is_whole) / 1e6 / {cells} FROM ({operations})"


def _operations(attempt: Attempt, axis: str, steps: tuple[int, int]) -> str:
    """Every end of every operation: ``exposed`` waiting and the operation's transfer ``took``, in nanoseconds.

    ``is_whole``: all its members were recorded, both ends of a pair; one that is missing may have been the last.
    """
    return (
        f"SELECT exposed, took, ends = size AS is_whole FROM ("
        f"SELECT e.exposed_ns AS exposed, min(e.duration_ns) OVER one AS took, count(*) OVER one AS ends, "
        f"CASE WHEN {SENDER} >= 0 THEN 2 ELSE len(g.ranks) END AS size FROM events e "
        f"JOIN segments s USING (run, attempt, segment) "
        f'LEFT JOIN groups g ON g.run = e.run AND g.attempt = e.attempt AND g."group" = e."group" '
        f"WHERE e.run = {literal(attempt.run)} AND e.attempt = {attempt.attempt} "
        f"AND coalesce(s.axis, s.name) = {literal(axis)} AND e.step BETWEEN {steps[0]} AND {steps[1]} "
        f"AND {USABLE} "
        f'WINDOW one AS (PARTITION BY e."group", e.sequence, {SENDER})) WHERE exposed IS NOT NULL'
    )


def _windows(attempt: Attempt, axis: str, steps: tuple[int, int], width: int) -> str:
    """The same of windows, summed over each one's operations; whole are those of collectives in a group that is known,
    all of whose members have the window."""
    attempt_is = f"run = {literal(attempt.run)} AND attempt = {attempt.attempt}"
    return (
        f"SELECT exposed, spans * least_ns AS took, coalesce(ends = size, false) AS is_whole FROM ("
        f"SELECT w.exposed_sum_ns AS exposed, w.exposed_count AS spans, g.size, "
        f"min(w.duration_min_ns) OVER one AS least_ns, count(*) OVER one AS ends FROM rank_windows w "
        f'JOIN segments s USING (run, attempt, segment) LEFT JOIN (SELECT "group", kind, unnest(ranks) AS rank, '
        f"len(ranks) AS size FROM groups WHERE {attempt_is}) g ON g.rank = w.rank AND g.kind = s.axis "
        f"AND s.kind = 'collective' WHERE w.{attempt_is.replace(' AND ', ' AND w.')} AND w.window_steps = {width} "
        f"AND w.first_step BETWEEN {steps[0]} AND {steps[1]} AND coalesce(s.axis, s.name) = {literal(axis)} "
        f"AND s.kind IN ('collective', 'p2p') "
        f'WINDOW one AS (PARTITION BY g."group", w.segment, w.first_step)) WHERE exposed IS NOT NULL'
    )
