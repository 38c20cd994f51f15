"""The numbers behind an accusation, each asked from the store by SQL that anyone can run again."""

from __future__ import annotations

from ..collectors.reading.store import Attempt, Store
from ..collectors.reading.views import identifier, literal
from ..collectors.verdicts import Evidence
from .asking import ask
from .judge import Finding
from .peers import Placement
from .peers_sql import ranks_condition
from .verdict import Pattern


def gather_evidence(
    store: Store, attempt: Attempt, finding: Finding, placement: Placement, *, is_brief: bool = False
) -> tuple[Evidence, ...]:
    """Own time beside the peers', the ratio, and whether the others waited; if brief, the ratio alone.

    Where ranks were compared per token, time per token stands for the first two. What has no answer is left out.
    """
    peers = ranks_condition("e.rank", finding.peers, placement, attempt)
    work = (_time, _ratio) if finding.tokens_beside is None else (_per_token,)
    built = work[-1:] if is_brief else (*work, _waiting, _last_to_arrive)
    return tuple(evidence for make in built if (evidence := make(store, attempt, finding, peers)) is not None)


def _spans(attempt: Attempt, columns: str, condition: str) -> str:
    """Spans of one attempt from its own rows: the view ``spans`` shows a repeated step of the newest attempt only."""
    return (
        f"SELECT {columns} FROM events e JOIN segments s USING (run, attempt, segment) "
        f"LEFT JOIN ranks r USING (run, attempt, rank) "
        f"WHERE e.run = {literal(attempt.run)} AND e.attempt = {attempt.attempt} AND {condition}"
    )


def _when(finding: Finding, who: str) -> str:
    first, last = finding.steps
    return f"e.step BETWEEN {first} AND {last} AND {who}"


def _itself(finding: Finding) -> str:
    return f"e.rank IN ({finding.rank})"


def _cells(attempt: Attempt, finding: Finding, who: str) -> str:
    """Mean time of a span, and their number, by rank, step and chunk."""
    condition = f"{_when(finding, who)} AND s.name = {literal(finding.segment)} AND e.status = 'ok'"
    columns = "e.rank, e.step, coalesce(e.chunk, 0) AS chunk, avg(e.self_ns) / 1e6 AS ms, count(*) AS n"
    return f"{_spans(attempt, columns, condition)} GROUP BY ALL"


def _per_span(attempt: Attempt, finding: Finding, who: str) -> str:
    inner = f"SELECT sum(ms * n) / sum(n) AS ms FROM ({_cells(attempt, finding, who)}) GROUP BY rank, step"
    return f"SELECT {_typical(finding)}(ms) FROM ({inner})"


def _typical(finding: Finding) -> str:
    """What stands for all steps of a finding: of bursts, the median step may show nothing."""
    return "avg" if finding.pattern == Pattern.INTERMITTENT else "median"


def _time(store: Store, attempt: Attempt, finding: Finding, peers_are: str) -> Evidence | None:
    sql = _per_span(attempt, finding, _itself(finding))
    own, peers = ask(store, sql, attempt), ask(store, _per_span(attempt, finding, peers_are), attempt)
    if own is None or peers is None:
        return None
    typical = _MEAN[_typical(finding)]
    statement = (
        f"rank {finding.rank} takes {own:.2f} ms of its own per {finding.segment} span ({typical} over steps "
        f"{finding.steps[0]} to {finding.steps[1]}), its {_count(finding)} {peers:.2f} ms"
    )
    return Evidence(statement, own, peers, "events", sql)


def _ratio(store: Store, attempt: Attempt, finding: Finding, peers_are: str) -> Evidence | None:
    """The culprit's own yardstick: each chunk against the peers' median of the same chunk, weighted by its spans."""
    sql = (
        f"SELECT exp({_typical(finding)}(ln(ratio))) FROM (SELECT sum(own.ms * own.n) / sum(peers.ms * own.n) AS ratio "
        f"FROM ({_cells(attempt, finding, _itself(finding))}) own JOIN (SELECT step, chunk, median(ms) AS ms "
        f"FROM ({_cells(attempt, finding, peers_are)}) GROUP BY step, chunk) peers USING (step, chunk) "
        f"GROUP BY step) WHERE ratio > 0"
    )
    value = ask(store, sql, attempt)
    if value is None:
        return None
    of_all = "over all these steps" if finding.pattern == Pattern.INTERMITTENT else "in the median step"
    return Evidence(
        f"that is x{value:.2f} of its peers' median, chunk by chunk, {of_all}: {finding.excess_ms:.1f} ms more a step",
        value, 1.0, "events", sql,
    )  # fmt: skip


def _per_token(store: Store, attempt: Attempt, finding: Finding, peers_are: str) -> Evidence | None:
    """Own time in the segment over the rank's tokens of a step."""

    def sql(who: str) -> str:
        condition = f"{_when(finding, who)} AND s.name = {literal(finding.segment)} AND e.status = 'ok'"
        work = f"{_spans(attempt, 'e.rank, e.step, sum(e.self_ns) / 1e6 AS ms', condition)} GROUP BY ALL"
        return (
            f"SELECT {_typical(finding)}(1000 * ms / rank_tokens) FROM ({work}) JOIN steps_all t USING (rank, step) "
            f"WHERE t.run = {literal(attempt.run)} AND t.attempt = {attempt.attempt} AND rank_tokens > 0"
        )

    mine = sql(_itself(finding))
    own, peers = ask(store, mine, attempt), ask(store, sql(peers_are), attempt)
    if own is None or peers is None:
        return None
    return Evidence(per_token_statement(finding, own, peers, _MEAN[_typical(finding)]), own, peers, "events", mine)


def per_token_statement(finding: Finding, own: float, peers: float, typical: str) -> str:
    """Says what a rank and its peers take for a thousand tokens, in milliseconds."""
    return (
        f"rank {finding.rank} takes {own:.2f} ms of its own in {finding.segment} per 1,000 of its tokens ({typical} "
        f"over steps {finding.steps[0]} to {finding.steps[1]}), its {_count(finding)} {peers:.2f} ms: "
        f"x{finding.ratio:.2f}, and it was given x{finding.tokens_beside:.2f} of their tokens"
    )


def _waiting(store: Store, attempt: Attempt, finding: Finding, peers_are: str) -> Evidence | None:
    """Communication times contain waiting, so they accuse nobody; but whom the others wait for waits least."""

    def sql(who: str) -> str:
        condition = f"{_when(finding, who)} AND s.kind IN ('collective', 'p2p')"
        waits = _spans(attempt, "e.rank, e.step, sum(e.exposed_ns) / 1e6 AS ms", condition)
        return f"SELECT median(ms) FROM ({waits} GROUP BY ALL)"

    own = ask(store, sql(_itself(finding)), attempt)
    peers = ask(store, sql(peers_are), attempt)
    if own is None or peers is None:
        return None
    more = peers - own
    statement = f"it waits {own:.1f} ms per step for communication, its {_count(finding)} {peers:.1f} ms: " + (
        f"they wait {more:.1f} ms longer" if more > 0 else "they do not wait longer"
    )
    return Evidence(statement, own, peers, "events", sql(_itself(finding)))


def _last_to_arrive(store: Store, attempt: Attempt, finding: Finding, _: str) -> Evidence | None:
    """Share of the collectives of one host in which this rank began last; by chance it is one over the group's size.

    Left out where it is not clearly more: that neither accuses nor clears anyone.
    """
    group = f"e.{identifier('group')}"
    collectives = f"e.step BETWEEN {finding.steps[0]} AND {finding.steps[1]} AND s.kind = 'collective'"
    own_groups = _spans(attempt, f"DISTINCT {group}", f"{collectives} AND e.rank = {finding.rank}")
    columns = f"{group} AS g, e.sequence AS q, arg_max(e.rank, e.start_ns) AS last, count(*) AS size"
    inner = (
        f"{_spans(attempt, columns, f'{collectives} AND {group} IN ({own_groups})')} GROUP BY g, q "
        f"HAVING count(*) > 1 AND count(DISTINCT r.host) = 1"
    )
    sql = f"SELECT avg((last = {finding.rank})::INT) FROM ({inner})"
    own = ask(store, sql, attempt)
    chance = ask(store, f"SELECT avg(1.0 / size) FROM ({inner})", attempt)
    if own is None or chance is None or own < 1.25 * chance:
        return None
    statement = (
        f"it is the last to arrive in {own:.0%} of the collectives that it takes part in, "
        f"by chance it would be {chance:.0%}"
    )
    return Evidence(statement, own, chance, "events", sql)


_MEAN = {"avg": "mean", "median": "median"}


def _count(finding: Finding) -> str:
    peers = len(finding.peers)
    return f"{peers} peers" if peers > 1 else f"only peer (rank {finding.peers[0]})"
