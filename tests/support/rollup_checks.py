"""What the rollups of a store must be: the sums of its events, each counted once, whatever happened to its agents."""

from __future__ import annotations

from typing import Any

from megascope.collectors.reading.store import Attempt, Store

from .histograms import bin_sql

_LENGTHS = "(SELECT unnest([10, 100, 1000]) AS length)"
_KEY = "rank, segment, window_steps, first_step"


def _of_events(metric: str) -> str:
    known = f"{metric}_ns >= 0"
    return (  # a count and a sum of nothing are 0, the least and the largest NULL
        f"count(*) FILTER ({known}), coalesce(sum({metric}_ns) FILTER ({known}), 0), "
        f"min({metric}_ns) FILTER ({known}), max({metric}_ns) FILTER ({known})"
    )


def _of_windows(metric: str) -> str:
    return f"sum({metric}_count), sum({metric}_sum_ns), min({metric}_min_ns), max({metric}_max_ns)"


def _rows(store: Store, attempt: Attempt, sql: str) -> set[tuple[Any, ...]]:
    table = store.query(sql, attempt=attempt)
    return set(zip(*(column.to_pylist() for column in table.columns), strict=True))


def windows_of_store(store: Store, attempt: Attempt) -> set[tuple[Any, ...]]:
    """Keys, counts, sums, least and largest as ``rank_windows`` has them, rows of one key added up."""
    values = ", ".join([*(_of_windows(m) for m in ("duration", "self")), "sum(exposed_count), sum(exposed_sum_ns)"])
    return _rows(store, attempt, f"SELECT {_KEY}, {values} FROM rank_windows GROUP BY {_KEY}")


def windows_of_events(store: Store, attempt: Attempt) -> set[tuple[Any, ...]]:
    """The same from the spans."""
    waits = "count(*) FILTER (exposed_ns >= 0), coalesce(sum(exposed_ns) FILTER (exposed_ns >= 0), 0)"
    values = ", ".join([*(_of_events(m) for m in ("duration", "self")), waits])
    return _rows(
        store,
        attempt,
        f"""SELECT rank, segment, length, step // length * length AS first_step, {values}
            FROM events, {_LENGTHS} WHERE status = 'ok' AND step IS NOT NULL GROUP BY ALL""",
    )


def check_rollups(store: Store, attempt: Attempt) -> None:
    """Counts, sums, extremes and histograms of duration and self time are those of the events."""
    found = windows_of_store(store, attempt)
    assert found == windows_of_events(store, attempt)
    assert found
    for metric in ("duration", "self"):
        merged = f"""SELECT {_KEY}, bin, sum(n) FROM (SELECT {_KEY}, unnest({metric}_bins) AS bin,
            unnest({metric}_bin_counts) AS n FROM rank_windows) GROUP BY ALL"""
        direct = f"""SELECT rank, segment, length, step // length * length AS first_step,
            {bin_sql(f"{metric}_ns")} AS bin, count(*)
            FROM events, {_LENGTHS} WHERE status = 'ok' AND step IS NOT NULL AND {metric}_ns >= 0 GROUP BY ALL"""
        assert _rows(store, attempt, merged) == _rows(store, attempt, direct)
