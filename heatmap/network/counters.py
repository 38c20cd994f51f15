"""Counters of network hardware as further evidence: what the table ``health`` says of the accused's hosts."""

from __future__ import annotations

import re

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Evidence
from ..asking import ask
from .places import Place

NETWORK_WORDS = ("network", "nic", "rdma", "roce", "infiniband", "ib", "nvlink", "link", "ethernet", "pcie")
TROUBLE_WORDS = ("error", "drop", "discard", "retrans", "retry", "down", "timeout", "symbol", "recover", "pause", "cnp")
"""Metrics with a word that begins like one of these count what should not happen: more is worse. Of
``..._bytes_per_s`` less is."""

_NO_TROUBLE = ("download", "downlink")

MOST_HOSTS = 4
MOST_METRICS = 4
SLOWER_THROUGHPUT = 0.7
"""Throughput below this share of the other hosts' is told."""


def counter_evidence(store: Store, attempt: Attempt, place: Place, steps: tuple[int, int]) -> tuple[Evidence, ...]:
    """Network metrics of the accused's hosts that stand out in the steps; nothing where the store has none."""
    if not place.hosts or len(place.hosts) > MOST_HOSTS:
        return ()
    metrics = store.query("SELECT DISTINCT metric FROM health ORDER BY metric", attempt=attempt)["metric"].to_pylist()
    chosen = [name for name in metrics if not _words(str(name)).isdisjoint(NETWORK_WORDS)]
    found = []
    for name in chosen:
        own, others = _sql(attempt, place, str(name), steps, "IN"), _sql(attempt, place, str(name), steps, "NOT IN")
        value, peers = ask(store, own, attempt), ask(store, others, attempt)
        if value is not None and peers is not None and (said := _stands_out(str(name), value, peers)):
            hosts = ", ".join(place.hosts)
            found.append(Evidence(f"{name} of {hosts} is {value:g}, {said} {peers:g}", value, peers, "health", own))
    return tuple(found[:MOST_METRICS])


def _words(metric: str) -> set[str]:
    """The words of a metric's name."""
    return set(re.split(r"[^a-z0-9]+", metric.lower()))


def _stands_out(name: str, value: float, peers: float) -> str | None:
    """How a value stands out against the median of the other hosts, in words; None if it does not."""
    lower = name.lower()
    words = _words(name) - set(_NO_TROUBLE)
    if any(word.startswith(trouble) for word in words for trouble in TROUBLE_WORDS):
        return "on the other hosts" if value > max(2 * peers, 0.0) else None
    if "_per_s" in lower or "speed" in lower or "rate" in lower or "width" in lower:
        return "on the other hosts" if peers > 0 and value < SLOWER_THROUGHPUT * peers else None
    return None


def _sql(attempt: Attempt, place: Place, metric: str, steps: tuple[int, int], which: str) -> str:
    """Median over hosts of the mean of a metric while the steps ran, by each host's own clock."""
    hosts = ", ".join(literal(host) for host in place.hosts)
    return (
        f"WITH times AS (SELECT r.host, min(s.start_ns) AS low, max(s.start_ns + coalesce(s.duration_ns, 0)) AS high "
        f"FROM steps s JOIN ranks r USING (run, attempt, rank) WHERE run = {literal(attempt.run)} "
        f"AND attempt = {attempt.attempt} AND s.step BETWEEN {steps[0]} AND {steps[1]} GROUP BY r.host) "
        f"SELECT median(value) FROM (SELECT h.host, avg(h.value) AS value FROM health h JOIN times t USING (host) "
        f"WHERE h.run = {literal(attempt.run)} AND h.attempt = {attempt.attempt} AND h.metric = {literal(metric)} "
        f"AND h.moment_ns BETWEEN t.low AND t.high AND h.host {which} ({hosts}) AND h.value IS NOT NULL "
        f"GROUP BY h.host)"
    )
