"""A slow rank whose waiting victims read the same: work that contains its collectives, with these taken out.

Where self times contain a timed collective (a reducer inside ``backward``), a slow rank and those that wait for it
there take equally long. The collective tells: the last to arrive shows the shortest one. So what overlaps with
collectives is taken out of the work around them, and the rest is compared between ranks. This needs no clock. Since not
all that overlaps is waiting, a rank is named only if it also comes to a collective later after the begin of its work.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Abstention, Evidence
from ...profiler.vocabulary import SegmentKind
from ..asking import ask
from ..cells import NS_PER_MS, SegmentCells
from ..compare import Comparison, compare, typical_excess
from ..cores import Cores, short_of_cores
from ..detect import Raised
from ..observations import MAIN_KINDS, Observations
from ..per_token import SIGNAL, UnequalTokens
from ..source import Source
from ..thresholds import Thresholds
from ..verdict import Cause, Culprit, CulpritKind, Findings, severity

MOST_SPANS = 1_000_000
MIN_EXCESS_SHARE = 0.05
"""Excess over the peers as a share of the step: not all that overlaps with work is waiting."""

MIN_HIDDEN_SHARE = 0.05
"""Share of a segment's self time that lies in collectives, from which on it is not a rank's own."""

MIN_LATER = 0.5
"""Share of the excess by which a rank must come to a collective later, after the begin of its work."""

_INSIDE = """
    WITH spans AS (
        SELECT e.rank, e.step, s.name, s.kind, e.start_ns, e.start_ns + e.duration_ns AS end_ns, e.duration_ns,
            coalesce(e.self_ns, e.duration_ns) AS self_ns, coalesce(e.exposed_ns, e.duration_ns) AS exposed_ns
        FROM events e JOIN segments s USING (segment) WHERE e.status = 'ok' AND e.duration_ns IS NOT NULL
            AND e.step BETWEEN ? AND ? AND s.kind IN ({kinds}, 'collective')
    )
    SELECT w.rank, w.step, w.name, w.kind,
        sum(least(least(w.end_ns, c.end_ns) - greatest(w.start_ns, c.start_ns), c.exposed_ns)) AS inside,
        list(c.start_ns - w.start_ns ORDER BY c.start_ns) AS reached_ns,
        any_value(w.duration_ns) AS took, any_value(w.self_ns) AS own
    FROM spans w JOIN spans c ON c.rank = w.rank AND c.step = w.step AND c.kind = 'collective'
        AND c.start_ns < w.end_ns AND c.end_ns > w.start_ns
    WHERE w.kind <> 'collective' GROUP BY w.rank, w.step, w.name, w.kind, w.start_ns
"""


def find_hidden(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Ranks that work longer inside a segment whose self time contains collectives. Only of jobs without pipeline
    stages, from spans: elsewhere ranks arrive late for many reasons."""
    stages = len(np.unique(seen.placement.roles(seen.ranks)))
    main = [one for one in seen.cells if one.kind in MAIN_KINDS]
    if seen.source.source != Source.SPANS or stages != 1 or len(seen.ranks) < 2 or not main:
        return Findings()
    if seen.source.spans > MOST_SPANS or not len(seen.steps):
        return Findings()
    kinds = ", ".join(literal(str(kind)) for kind in MAIN_KINDS)
    sql = _INSIDE.format(kinds=kinds)
    table = store.query(sql, [int(seen.steps[0]), int(seen.steps[-1])], attempt=attempt)
    cores = Cores(store, attempt, seen)
    found: list[Culprit] = []
    notes: list[Abstention] = []
    for cells in main:
        rest = _without(cells, table)
        if rest is None:
            continue
        for culprit, excess_ms in _culprits(store, attempt, cells, rest, seen, _of(cells, table)):
            why = _why_not(culprit, excess_ms, cells, seen, cores)
            found += [culprit] if why is None else []
            notes += [] if why is None else [why]
    return Findings(tuple(found), blocking=tuple(notes))


def _why_not(
    culprit: Culprit, excess_ms: float, cells: SegmentCells, seen: Observations, cores: Cores
) -> Abstention | None:
    """Why it is not accused: its tokens explain it, or it waited for a processor core, and the others for it."""
    [rank] = culprit.ranks
    tokens = UnequalTokens(seen, seen).explains(
        rank, cells.name, cells.kind, culprit.ratio, culprit.steps, culprit.pattern
    )
    if tokens is not None:
        return Abstention(SIGNAL, tokens)
    others = [one for one in seen.ranks.tolist() if one != rank]
    why = cores.explains(rank, others, cells.name, cells.kind, culprit.steps, excess_ms, culprit.pattern)
    if why is None:
        return None
    return short_of_cores(rank, culprit.segment, culprit.ratio, culprit.steps, why, seen)


def _without(cells: SegmentCells, table: pa.Table) -> SegmentCells | None:
    """A segment's cells with the time in collectives taken out; None where self times do not contain it."""
    part = _of(cells, table)
    inside, took, own = (np.asarray(part[name].to_numpy(), float) for name in ("inside", "took", "own"))
    inside = np.minimum(inside, took)
    hidden = np.maximum(own + inside - took, 0.0)  # 0 where self time had it taken out already
    if not len(hidden) or hidden.sum() < MIN_HIDDEN_SHARE * float(np.nansum(cells.total_ms)) * NS_PER_MS:
        return None
    row = np.searchsorted(cells.ranks, part["rank"].to_numpy())
    column = np.searchsorted(cells.steps, part["step"].to_numpy())
    keep = (row < len(cells.ranks)) & (column < len(cells.steps))
    keep[keep] = (cells.ranks[row[keep]] == part["rank"].to_numpy()[keep]) & (
        cells.steps[column[keep]] == part["step"].to_numpy()[keep]
    )
    taken = np.zeros(cells.total_ms.shape[1:])
    np.add.at(taken, (row[keep], column[keep]), hidden[keep] / NS_PER_MS)
    whole = np.nansum(cells.total_ms, axis=0)
    share = np.divide(taken, whole, out=np.zeros_like(taken), where=whole > 0)
    return replace(cells, total_ms=cells.total_ms * (1 - np.minimum(share, 1.0)))


def _of(cells: SegmentCells, table: pa.Table) -> pa.Table:
    """Rows of one segment."""
    here = (np.asarray(table["name"].to_pylist(), object) == cells.name) & (
        np.asarray(table["kind"].to_pylist(), object) == cells.kind
    )
    return table.filter(pa.array(here))


def _reached_later_ms(part: pa.Table, rank: int, steps: tuple[int, int]) -> float:
    """How much later than its peers a rank begins a collective, after the begin of the work around it, ms a span.

    The greatest over the collectives of a span, in their order, of the difference of medians.
    """
    step, ranks = part["step"].to_numpy(), part["rank"].to_numpy()
    inside = np.flatnonzero((step >= steps[0]) & (step <= steps[1]))
    lists = part["reached_ns"].combine_chunks()
    lengths = lists.value_lengths().to_numpy()
    if not len(inside):
        return 0.0
    usual = int(np.median(lengths[inside]))
    alike = inside[lengths[inside] == usual]
    starts = np.cumsum(lengths) - lengths
    values = lists.flatten().to_numpy()[starts[alike][:, None] + np.arange(usual)] / NS_PER_MS
    medians = {one: np.median(values[ranks[alike] == one], axis=0) for one in np.unique(ranks[alike]).tolist()}
    own = medians.pop(rank, None)
    if own is None or not medians:
        return 0.0
    return float((own - np.median(list(medians.values()), axis=0)).max())


def _culprits(
    store: Store, attempt: Attempt, cells: SegmentCells, rest: SegmentCells, seen: Observations, part: pa.Table
) -> list[tuple[Culprit, float]]:
    """Culprits, and by how much longer each works, ms a step."""
    limits = Thresholds(min_excess_share=MIN_EXCESS_SHARE)
    comparison = compare(rest, seen.placement.roles(rest.ranks), seen.step_ms, limits)
    if comparison is None:
        return []
    raised = [one for one in comparison.raised if one.last > one.first]
    if len(raised) > max(1, len(seen.ranks) // 4):
        return []
    spans = part.num_rows / max(len(cells.ranks) * len(cells.steps), 1)
    culprits = [
        (_culprit(store, attempt, one, comparison, cells, seen), typical_excess(one, comparison)) for one in raised
    ]
    return [
        (culprit, excess_ms)
        for culprit, excess_ms in culprits
        if _reached_later_ms(part, culprit.ranks[0], culprit.steps) * max(spans, 1.0) >= MIN_LATER * excess_ms
    ]


def _culprit(
    store: Store, attempt: Attempt, one: Raised, comparison: Comparison, cells: SegmentCells, seen: Observations
) -> Culprit:
    rank = int(cells.ranks[one.row])
    steps = int(cells.steps[one.first]), int(cells.steps[one.last])
    excess, total = typical_excess(one, comparison), float(np.nansum(seen.step_ms))
    lost = min(max(excess, 0.0) * (one.last - one.first + 1) / total, 1.0) if total > 0 else 0.0
    host = seen.placement.host_of(rank)
    return Culprit(
        ranks=(rank,),
        hosts=() if host is None else (host,),
        confidence=round(min(1 - 0.5 * math.exp(-max(one.z - 5.0, 0.0) / 2.5), 0.9 if len(seen.ranks) > 2 else 0.6), 3),
        severity=severity(lost),
        kind=CulpritKind.RANK,
        cause=Cause.SLOW_COMPUTE,
        segment=cells.name,
        ratio=round(math.exp(one.effect), 4),
        steps=steps,
        pattern=one.pattern,
        lost_share=round(lost, 6),
        evidence=_evidence(store, attempt, rank, cells.name, steps, excess),
    )


def _evidence(
    store: Store, attempt: Attempt, rank: int, segment: str, steps: tuple[int, int], excess: float
) -> tuple[Evidence, ...]:
    """The equal totals, and the collectives that tell them apart."""

    def sql(condition: str, which: str) -> str:
        return (
            f"SELECT median(ms) FROM (SELECT e.rank, e.step, sum(e.duration_ns) / 1e6 AS ms FROM events e "
            f"JOIN segments s USING (run, attempt, segment) WHERE e.run = {literal(attempt.run)} "
            f"AND e.attempt = {attempt.attempt} "
            f"AND e.step BETWEEN {steps[0]} AND {steps[1]} AND {condition} AND e.rank {which} {rank} GROUP BY ALL)"
        )

    result = []
    for condition, statement in (
        (
            f"s.kind = {literal(str(SegmentKind.COLLECTIVE))}",
            "rank {rank} spends {own:.1f} ms a step in collectives, the others {peers:.1f} ms: it is the last to "
            "arrive, and they wait for it; without that it works {excess:.1f} ms longer a step",
        ),
        (f"s.name = {literal(segment)}", "with the waiting in it, {segment} takes {own:.1f} and {peers:.1f} ms a step"),
    ):
        own, peers = (ask(store, sql(condition, which), attempt) for which in ("=", "<>"))
        if own is not None and peers is not None and (own < peers or "last" not in statement):
            said = statement.format(rank=rank, own=own, peers=peers, excess=excess, segment=segment)
            result.append(Evidence(said, own, peers, "events", sql(condition, "=")))
    return tuple(result)
