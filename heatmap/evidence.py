"""The numbers behind an accusation, each asked from the store by SQL that anyone can run again."""

from __future__ import annotations

from collections.abc import Iterable

from ..collectors.store import Attempt, Store
from ..collectors.verdicts import Evidence
from ..collectors.views import identifier, literal
from .judge import Finding


def gather_evidence(store: Store, attempt: Attempt, finding: Finding) -> tuple[Evidence, ...]:
    """Own time beside the peers', the ratio, and whether the others waited. What has no answer is left out."""
    built = (_time, _ratio, _waiting, _last_to_arrive)
    return tuple(evidence for make in built if (evidence := make(store, attempt, finding)) is not None)


def _value(store: Store, attempt: Attempt, sql: str) -> float | None:
    table = store.query(sql, attempt=attempt)
    value = table.column(0)[0].as_py() if table.num_rows else None
    return None if value is None else float(value)


def _where(attempt: Attempt, finding: Finding, ranks: Iterable[int], segment: bool = True) -> str:
    first, last = finding.steps
    parts = [
        f"run = {literal(attempt.run)}",
        f"attempt = {attempt.attempt}",
        f"step BETWEEN {first} AND {last}",
        f"rank IN ({', '.join(str(rank) for rank in ranks)})",
    ]
    if segment:
        parts += [f"segment_name = {literal(finding.segment)}", "status = 'ok'"]
    return " AND ".join(parts)


def _cells(attempt: Attempt, finding: Finding, ranks: Iterable[int]) -> str:
    return (
        f"SELECT rank, step, avg(self_ns) / 1e6 AS ms FROM spans WHERE {_where(attempt, finding, ranks)} "
        f"GROUP BY rank, step"
    )


def _time(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    sql = f"SELECT median(ms) FROM ({_cells(attempt, finding, [finding.rank])})"
    own = _value(store, attempt, sql)
    peers = _value(store, attempt, f"SELECT median(ms) FROM ({_cells(attempt, finding, finding.peers)})")
    if own is None or peers is None:
        return None
    statement = (
        f"rank {finding.rank} takes {own:.2f} ms of its own per {finding.segment} span (median over steps "
        f"{finding.steps[0]} to {finding.steps[1]}), its {_count(finding)} {peers:.2f} ms"
    )
    return Evidence(statement, own, peers, "events", sql)


def _ratio(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    sql = (
        f"SELECT median(own.ms / peers.ms) FROM ({_cells(attempt, finding, [finding.rank])}) own JOIN "
        f"(SELECT step, median(ms) AS ms FROM ({_cells(attempt, finding, finding.peers)}) GROUP BY step) peers "
        f"USING (step) WHERE peers.ms > 0"
    )
    value = _value(store, attempt, sql)
    if value is None:
        return None
    return Evidence(
        f"that is x{value:.2f} of the peers' median in the median step, {finding.excess_ms:.1f} ms more per step",
        value, 1.0, "events", sql,
    )  # fmt: skip


def _waiting(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    """Communication times contain waiting, so they accuse nobody; but whom the others wait for waits least."""

    def sql(ranks: Iterable[int]) -> str:
        where = _where(attempt, finding, ranks, segment=False)
        return (
            f"SELECT median(ms) FROM (SELECT rank, step, sum(exposed_ns) / 1e6 AS ms FROM spans WHERE {where} "
            f"AND kind IN ('collective', 'p2p') GROUP BY rank, step)"
        )

    own = _value(store, attempt, sql([finding.rank]))
    peers = _value(store, attempt, sql(finding.peers))
    if own is None or peers is None:
        return None
    more = peers - own
    statement = f"it waits {own:.1f} ms per step for communication, its {_count(finding)} {peers:.1f} ms: " + (
        f"they wait {more:.1f} ms longer" if more > 0 else "they do not wait longer"
    )
    return Evidence(statement, own, peers, "events", sql([finding.rank]))


def _last_to_arrive(store: Store, attempt: Attempt, finding: Finding) -> Evidence | None:
    """Share of the collectives of one host in which this rank began last; by chance it is one over the group's size.

    Left out where it is not clearly more: that neither accuses nor clears anyone.
    """
    group, sequence = identifier("group"), "sequence"
    where = _where(attempt, finding, [finding.rank], segment=False)
    inner = (
        f"SELECT e.{group} AS g, e.{sequence} AS s, arg_max(e.rank, e.start_ns) AS last, count(*) AS size "
        f"FROM spans e WHERE e.run = {literal(attempt.run)} AND e.attempt = {attempt.attempt} "
        f"AND e.step BETWEEN {finding.steps[0]} AND {finding.steps[1]} AND e.kind = 'collective' AND e.{group} IN "
        f"(SELECT DISTINCT {group} FROM spans WHERE {where} AND kind = 'collective') "
        f"GROUP BY ALL HAVING count(*) > 1 AND count(DISTINCT e.host) = 1"
    )
    sql = f"SELECT avg((last = {finding.rank})::INT) FROM ({inner})"
    own = _value(store, attempt, sql)
    chance = _value(store, attempt, f"SELECT avg(1.0 / size) FROM ({inner})")
    if own is None or chance is None or own < 1.25 * chance:
        return None
    statement = (
        f"it is the last to arrive in {own:.0%} of the collectives that it takes part in, "
        f"by chance it would be {chance:.0%}"
    )
    return Evidence(statement, own, chance, "events", sql)


def _count(finding: Finding) -> str:
    peers = len(finding.peers)
    return f"{peers} peers" if peers > 1 else f"only peer (rank {finding.peers[0]})"
