"""What the store has of hardware in a time, summed up by host, device and metric; and what happened."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ..store import Attempt, Store
from .throttling import HARD, THERMAL

MOST_EVENTS = 2000
"""The newest events that are read; the gravest of each host are among them, or thousands of others are."""

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
    SELECT host, device, moment_ns, kind, severity, code, pid, text FROM hardware_events
    WHERE moment_ns <= ? AND kind <> 'not-sampled' ORDER BY moment_ns DESC LIMIT {MOST_EVENTS}
"""

_NOT_SAMPLED = "SELECT DISTINCT host, text FROM hardware_events WHERE moment_ns <= ? AND kind = 'not-sampled'"

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


def newest_ns(store: Store, attempt: Attempt) -> int | None:
    """The newest moment of a heartbeat or of a sample; None where there is neither."""
    sql = "SELECT max(moment_ns) FROM {}"
    found = [store.query(sql.format(table), attempt=attempt).column(0)[0].as_py() for table in ("heartbeats", "health")]
    return max((int(one) for one in found if one is not None), default=None)
