"""Values of GPUs over the last hour in few bins, for the small lines of the Health page."""

from __future__ import annotations

from collections.abc import Sequence

from ..collectors.reading.store import Attempt, Store

BINS = 48
LEAST_BIN_S = 10.0
"""Bins are no shorter than two samples: else sound lines would have gaps."""
SPAN_S = 3600.0
METRICS = ("temperature_celsius", "power_watts", "sm_clock_mhz")

Line = list[float | None]
"""Mean of each bin from the oldest to the newest; None where there was no value."""

_SQL = """
    SELECT {key} AS key, metric, least((moment_ns - ?) * ? // ?, ? - 1)::INT AS bin, {what} AS value FROM health
    WHERE moment_ns BETWEEN ? AND ? AND value IS NOT NULL AND device IS NOT NULL AND metric IN ({metrics})
        AND host IN ({hosts})
    GROUP BY ALL
"""


def lines_of_hosts(store: Store, attempt: Attempt, hosts: Sequence[str], end_ns: int) -> dict[str, Line]:
    """Host to the highest temperature of its GPUs in each bin."""
    found = _lines(store, attempt, hosts, end_ns, "host", "max(value)", METRICS[:1])
    return {key: line for (key, _), line in found.items()}


def lines_of_gpus(store: Store, attempt: Attempt, host: str, end_ns: int) -> dict[tuple[str, str], Line]:
    """(device, metric) to the mean in each bin, of the GPUs of one host."""
    return _lines(store, attempt, [host], end_ns, "device", "avg(value)", METRICS)


def _lines(
    store: Store,
    attempt: Attempt,
    hosts: Sequence[str],
    end_ns: int,
    key: str,
    what: str,
    metrics: Sequence[str],
) -> dict[tuple[str, str], Line]:
    """Lines over the last hour, or from the attempt's start where that is later."""
    first_ns = max(end_ns - int(SPAN_S * 1e9), attempt.start_ns or 0)
    span_ns = max(1, end_ns - first_ns)
    count = min(BINS, max(1, int(span_ns / 1e9 / LEAST_BIN_S)))
    bins = [first_ns, count, span_ns, count]
    sql = _SQL.format(key=key, what=what, metrics=_places(metrics), hosts=_places(hosts))
    rows = store.query(sql, [*bins, first_ns, end_ns, *metrics, *hosts], attempt).to_pylist()
    found: dict[tuple[str, str], Line] = {}
    for row in rows:
        line = found.setdefault((str(row["key"]), str(row["metric"])), [None] * count)
        line[max(0, int(row["bin"]))] = float(row["value"])
    return found


def _places(values: Sequence[str]) -> str:
    """Places of parameters in a list of SQL, which holds nothing without values."""
    return ", ".join("?" * len(values)) or "NULL"
