"""The numbers behind an accusation where only rollups are left, each with the SQL that gives it from the store.

The numbers themselves come from the matrices that were compared: a fleet has many culprits, and a query of each of
their thousands of peers takes longer than all the rest.
"""

from __future__ import annotations

import numpy as np

from ..collectors.reading.store import Attempt
from ..collectors.reading.views import literal
from ..collectors.verdicts import Evidence
from .evidence import per_token_statement
from .judge import Finding
from .observations import Observations
from .peers import FloatArray, IntArray, row_median
from .peers_sql import ranks_condition
from .rank_tokens import WELL_TOLD


def gather_window_evidence(attempt: Attempt, finding: Finding, seen: Observations) -> tuple[Evidence, ...]:
    """Own time beside the peers', the ratio, and whether the others waited; per token, where ranks were compared so.
    What has no answer is left out."""
    built = (_time, _ratio, _waiting) if finding.tokens_beside is None else (_per_token, _waiting)
    return tuple(evidence for make in built if (evidence := make(attempt, finding, seen)) is not None)


def _windows_inside(finding: Finding, seen: Observations) -> IntArray:
    first, last = finding.steps
    return np.flatnonzero((seen.steps >= first) & (seen.steps <= last))


def _own_and_peers(values: FloatArray, finding: Finding, seen: Observations) -> tuple[FloatArray, FloatArray]:
    """Values of the rank [w] and of its peers [P, w] in the windows of a finding."""
    inside = _windows_inside(finding, seen)
    rows = np.searchsorted(seen.ranks, np.array((finding.rank, *finding.peers), np.int64))
    chosen = values[np.ix_(rows, inside)]
    return chosen[0], chosen[1:]


def _median(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _work_of(finding: Finding, seen: Observations) -> FloatArray:
    [cells] = [one for one in seen.cells if (one.name, one.kind) == (finding.segment, finding.kind)]
    return cells.per_span_ms()


def _windows(attempt: Attempt, finding: Finding, who: str, columns: str, condition: str) -> str:
    """Values of ranks and windows in the finding's steps, rows of one window added up."""
    first, last = finding.steps
    return (
        f"SELECT rank, first_step, {columns} FROM rank_windows w JOIN segments s USING (run, attempt, segment) "
        f"WHERE w.run = {literal(attempt.run)} AND w.attempt = {attempt.attempt} "
        f"AND window_steps = {finding.step_width} AND first_step BETWEEN {first} AND {last} AND {condition} "
        f"AND {who} GROUP BY rank, first_step"
    )


def _itself(finding: Finding) -> str:
    return f"rank IN ({finding.rank})"


def _work(attempt: Attempt, finding: Finding, who: str) -> str:
    mean = "sum(self_sum_ns) / nullif(sum(self_count), 0) / 1e6 AS ms"
    return _windows(attempt, finding, who, mean, f"s.name = {literal(finding.segment)}")


def _time(attempt: Attempt, finding: Finding, seen: Observations) -> Evidence | None:
    values, beside = _own_and_peers(_work_of(finding, seen), finding, seen)
    own, peers = _median(values), _median(beside)
    if own is None or peers is None:
        return None
    statement = (
        f"rank {finding.rank} takes {own:.2f} ms of its own per {finding.segment} span (median over windows of "
        f"{finding.step_width} steps, {finding.steps[0]} to {finding.steps[1]}), its {len(finding.peers)} peers "
        f"{peers:.2f} ms"
    )
    sql = f"SELECT median(ms) FROM ({_work(attempt, finding, _itself(finding))})"
    return Evidence(statement, own, peers, "rank_windows", sql)


def _ratio(attempt: Attempt, finding: Finding, seen: Observations) -> Evidence | None:
    own, beside = _own_and_peers(_work_of(finding, seen), finding, seen)
    peers = row_median(np.ascontiguousarray(beside.T))
    usable = (own > 0) & (peers > 0)
    if not usable.any():
        return None
    value = float(np.exp(np.median(np.log(own[usable] / peers[usable]))))
    peers_are = ranks_condition("rank", finding.peers, seen.placement, attempt)
    sql = (
        f"SELECT exp(median(ln(own.ms / peers.ms))) FROM ({_work(attempt, finding, _itself(finding))}) own "
        f"JOIN (SELECT first_step, median(ms) AS ms FROM ({_work(attempt, finding, peers_are)}) "
        f"GROUP BY first_step) peers USING (first_step) WHERE own.ms > 0 AND peers.ms > 0"
    )
    statement = (
        f"that is x{value:.2f} of its peers' median in the median window: {finding.excess_ms:.1f} ms more a step"
    )
    return Evidence(statement, value, 1.0, "rank_windows", sql)


def _per_token(attempt: Attempt, finding: Finding, seen: Observations) -> Evidence | None:
    if seen.tokens is None:
        return None
    [cells] = [one for one in seen.cells if (one.name, one.kind) == (finding.segment, finding.kind)]
    values, beside = _own_and_peers(1000 * cells.per_step_ms() / seen.tokens.each, finding, seen)
    own, peers = _median(values), _median(beside)
    if own is None or peers is None:
        return None
    total = "sum(self_sum_ns) / 1e6 AS ms"
    work = _windows(attempt, finding, _itself(finding), total, f"s.name = {literal(finding.segment)}")
    tokens = (
        f"SELECT rank, step // {finding.step_width} * {finding.step_width} AS first_step, "
        f"avg(rank_tokens) * count(*) AS tokens FROM steps_all WHERE run = {literal(attempt.run)} "
        f"AND attempt = {attempt.attempt} AND NOT coalesce(shadow, false) AND {_itself(finding)} "
        f"GROUP BY rank, 2 HAVING {WELL_TOLD}"
    )
    sql = f"SELECT median(1000 * ms / tokens) FROM ({work}) JOIN ({tokens}) USING (rank, first_step) WHERE tokens > 0"
    statement = per_token_statement(finding, own, peers, f"median window of {finding.step_width} steps")
    return Evidence(statement, own, peers, "rank_windows", sql)


def _waiting(attempt: Attempt, finding: Finding, seen: Observations) -> Evidence | None:
    """Communication times contain waiting, so they accuse nobody; but whom the others wait for waits least."""
    if seen.waits_ms is None:
        return None
    values, beside = _own_and_peers(seen.waits_ms, finding, seen)
    own, peers = _median(values), _median(beside)
    if own is None or peers is None:
        return None
    more = peers - own
    statement = f"it waits {own:.1f} ms per step for communication, its {len(finding.peers)} peers {peers:.1f} ms: " + (
        f"they wait {more:.1f} ms longer" if more > 0 else "they do not wait longer"
    )
    # The last window may not be complete yet.
    steps = f"least({finding.step_width}, {finding.steps[1]} - first_step + 1)"
    waits = f"sum(exposed_sum_ns) FILTER (exposed_count > 0) / {steps} / 1e6 AS ms"
    sql = f"SELECT median(ms) FROM ({_windows(attempt, finding, _itself(finding), waits, _COMMUNICATION)})"
    return Evidence(statement, own, peers, "rank_windows", sql)


_COMMUNICATION = "s.kind IN ('collective', 'p2p')"
