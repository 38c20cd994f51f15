"""What the store has of hardware in a time, summed up by host, device and metric; and what happened."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ..reading.store import Attempt, Store
from .throttling import HARD, THERMAL

MOST_EVENTS = 100
"""Kinds of events on a device that are read of each host, the gravest and then the newest; each with its count."""

MOST_LEFT_OUT = 20
"""Sentences on what is not sampled that are read of each host, the newest; the last one on a flood stands for all."""

_SUMMED = f"""
    SELECT host, device, metric, arg_max({{'value': value}}, moment_ns).value AS last, max(value) AS most,
        avg(((TRY_CAST(value AS BIGINT) & {THERMAL | HARD}) != 0)::INT)
            FILTER (metric = 'clocks_event_reasons') AS held,
        bit_or(TRY_CAST(value AS BIGINT)) FILTER (metric = 'clocks_event_reasons') AS mask
    FROM health WHERE moment_ns BETWEEN ? AND ? AND metric NOT LIKE 'recorder%' GROUP BY host, device, metric
"""

_COUNTED = """
    SELECT host, device, metric, arg_min(value, moment_ns) AS first, arg_max(value, moment_ns) AS last,
        CASE WHEN last >= first THEN last - first ELSE last END AS grown FROM health
    WHERE value IS NOT NULL AND (metric LIKE 'ecc_%' OR metric LIKE '%_errors' AND metric NOT LIKE 'rdma_%')
    GROUP BY host, device, metric
"""

_DELTAS = """
    SELECT host, device, metric, sum(value) AS grown FROM health
    WHERE value > 0 AND metric LIKE 'rdma_%' AND metric NOT LIKE '%_per_s' AND metric NOT IN
        ('rdma_link_up', 'rdma_rate_bits_per_s')
    GROUP BY host, device, metric
"""

_EVENTS = f"""
    SELECT host, device, kind, severity, code, times, newest_ns AS moment_ns, text FROM (
        SELECT host, device, kind, severity, code, count(*) AS times, max(moment_ns) AS newest_ns,
            arg_max(text, moment_ns) AS text FROM hardware_events
        WHERE moment_ns <= ? AND kind <> 'not-sampled' GROUP BY host, device, kind, severity, code)
    QUALIFY row_number() OVER (PARTITION BY host ORDER BY CASE severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1
        ELSE 2 END, newest_ns DESC) <= {MOST_EVENTS}
    ORDER BY newest_ns DESC
"""

_NOT_SAMPLED = f"""
    SELECT host, text FROM (
        SELECT host, arg_max(text, moment_ns) AS text, max(moment_ns) AS newest_ns FROM hardware_events
        WHERE moment_ns <= ? AND kind = 'not-sampled'
        GROUP BY host, CASE WHEN severity = 'note' THEN text END)
    QUALIFY row_number() OVER (PARTITION BY host ORDER BY newest_ns DESC) <= {MOST_LEFT_OUT}
"""

_NEWEST = """
    SELECT coalesce(host, '') AS host, max(moment_ns) AS moment_ns FROM (
        SELECT host, max(moment_ns) AS moment_ns FROM health GROUP BY host
        UNION ALL BY NAME
        SELECT host, moment_ns FROM (SELECT rank, max(moment_ns) AS moment_ns FROM heartbeats GROUP BY rank)
            LEFT JOIN (SELECT rank, host FROM ranks) USING (rank))
    WHERE moment_ns IS NOT NULL GROUP BY ALL
"""

_BEATS = """
    SELECT rank, max(moment_ns) AS moment_ns, arg_max(lost_spans, moment_ns) AS lost_spans FROM heartbeats
    WHERE moment_ns BETWEEN ? AND ? GROUP BY rank
"""

Key = tuple[str, str | None]


@dataclass(slots=True)
class Device:
    """Samples of one device (or of a host, whose device is None): newest and largest values, and what was counted.

    ``held`` is the share of samples whose clocks were held back by heat or hardware, ``mask`` all reasons met.
    """

    last: dict[str, float | None] = field(default_factory=dict)
    most: dict[str, float | None] = field(default_factory=dict)
    grown: dict[str, float | None] = field(default_factory=dict)
    held: float | None = None
    mask: float | None = None


@dataclass(slots=True)
class Samples:
    """All that was read. Moments are UTC ns by the hosts' clocks; ``window_ns`` is (from, to)."""

    window_ns: tuple[int, int]
    devices: dict[Key, Device]
    events: list[dict[str, Any]]
    not_sampled: list[dict[str, Any]]
    ranks: list[dict[str, Any]]
    beats: dict[int, dict[str, Any]]


def read_samples(store: Store, attempt: Attempt, window_ns: tuple[int, int]) -> Samples:
    """Newest values and shares in the window, counters over the whole attempt."""
    devices: dict[Key, Device] = defaultdict(Device)
    for row in store.query(_SUMMED, list(window_ns), attempt).to_pylist():
        device = devices[row["host"], row["device"]]
        device.last[row["metric"]], device.most[row["metric"]] = row["last"], row["most"]
        if row["metric"] == "clocks_event_reasons":
            device.held, device.mask = row["held"], row["mask"]
    for sql in (_COUNTED, _DELTAS):
        for row in store.query(sql, attempt=attempt).to_pylist():
            devices[row["host"], row["device"]].grown[row["metric"]] = row["grown"]
    ranks = store.read("ranks", attempt, ["rank", "host", "local_rank", "device"]).to_pylist()
    beats = store.query(_BEATS, list(window_ns), attempt).to_pylist()
    events = store.query(_EVENTS, [window_ns[1]], attempt).to_pylist()
    left_out = store.query(_NOT_SAMPLED, [window_ns[1]], attempt).to_pylist()
    return Samples(window_ns, dict(devices), events, left_out, ranks, {int(row["rank"]): row for row in beats})


def newest_by_host(store: Store, attempt: Attempt) -> dict[str, int]:
    """The newest moment of a heartbeat or of a sample of each host, by its own clock."""
    return {str(row["host"]): int(row["moment_ns"]) for row in store.query(_NEWEST, attempt=attempt).to_pylist()}
