"""The numbers behind an accusation where only rollups are left, each asked from the store by SQL."""

from __future__ import annotations

from collections.abc import Iterable

from ..collectors.store import Attempt, Store
from ..collectors.verdicts import Evidence
from ..collectors.views import literal
from .judge import Finding


def gather_window_evidence(store: Store, attempt: Attempt, finding: Finding) -> tuple[Evidence, ...]:
    """Own time beside the peers', the ratio, and whether the others waited. What has no answer is left out."""
    built = (_time, _ratio, _waiting)
    return tuple(evidence for make in built if (evidence := make(store, attempt, finding)) is not None)


def _value(store: Store, attempt: Attempt, sql: str) -> float | None:
    table = store.query(sql, attempt=attempt)
    value = table.column(0)[0].as_py() if table.num_rows else None
    return None if value is None else float(value)


def _windows(attempt: Attempt, finding: Finding, ranks: Iterable[int], columns: str, condition: str) -> str:
    """Values of ranks and windows in the finding's steps, rows of one window added up."""
    first, last = finding.steps
    return (
        f"SELECT rank, first_step, {columns} FROM rank_windows w JOIN segments s USING (run, attempt, segment) "
        f"WHERE w.run = {literal(attempt.run)} AND w.attempt = {attempt.attempt} "
        f"AND window_steps = {finding.step_width} AND first_step BETWEEN {first} AND {last} AND {condition} "
        f"AND rank IN ({', '.join(str(rank) for rank in ranks)}) GROUP BY rank, first_step"
    )


def _work(attempt: Attempt, finding: Finding, ranks: Iterable[int]) -> str:
    mean = "sum(self_sum_ns) / nullif(sum(self_count), 0) / 1e6 AS ms"
    return _windows(attempt, finding, ranks, mean, f"s.name = {literal(finding.segment)}")


def _time(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    sql = f"SELECT median(ms) FROM ({_work(attempt, finding, [finding.rank])})"
    own = _value(store, attempt, sql)
    peers = _value(store, attempt, f"SELECT median(ms) FROM ({_work(attempt, finding, finding.peers)})")
    if own is None or peers is None:
        return None
    statement = (
        f"rank {finding.rank} takes {own:.2f} ms of its own per {finding.segment} span (median over windows of "
        f"{finding.step_width} steps, {finding.steps[0]} to {finding.steps[1]}), its {len(finding.peers)} peers "
        f"{peers:.2f} ms"
    )
    return Evidence(statement, own, peers, "rank_windows", sql)


def _ratio(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    sql = (
        f"SELECT exp(median(ln(own.ms / peers.ms))) FROM ({_work(attempt, finding, [finding.rank])}) own "
        f"JOIN (SELECT first_step, median(ms) AS ms FROM ({_work(attempt, finding, finding.peers)}) "
        f"GROUP BY first_step) peers USING (first_step) WHERE own.ms > 0 AND peers.ms > 0"
    )
    value = _value(store, attempt, sql)
    if value is None:
        return None
    statement = (
        f"that is x{value:.2f} of its peers' median in the median window: {finding.excess_ms:.1f} ms more a step"
    )
    return Evidence(statement, value, 1.0, "rank_windows", sql)


def _waiting(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    """Communication times contain waiting, so they accuse nobody; but whom the others wait for waits least."""

    def sql(ranks: Iterable[int]) -> str:
        # The last window may not be complete yet.
        steps = f"least({finding.step_width}, {finding.steps[1]} - first_step + 1)"
        waits = f"sum(exposed_sum_ns) FILTER (exposed_count > 0) / {steps} / 1e6 AS ms"
        return f"SELECT median(ms) FROM ({_windows(attempt, finding, ranks, waits, _COMMUNICATION)})"

    own, peers = _value(store, attempt, sql([finding.rank])), _value(store, attempt, sql(finding.peers))
    if own is None or peers is None:
        return None
    more = peers - own
    statement = f"it waits {own:.1f} ms per step for communication, its {len(finding.peers)} peers {peers:.1f} ms: " + (
        f"they wait {more:.1f} ms longer" if more > 0 else "they do not wait longer"
    )
    return Evidence(statement, own, peers, "rank_windows", sql([finding.rank]))


_COMMUNICATION = "s.kind IN ('collective', 'p2p')"
