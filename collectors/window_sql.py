"""The SQL of the view ``windows``: rollups added up, with the names of their segments and the hosts of their ranks."""

from __future__ import annotations

_KEY = "run, attempt, rank, segment, window_steps, first_step"


def _added_up(metric: str) -> str:
    return f"""
        CAST(sum({metric}_count) AS BIGINT) AS {metric}_count, CAST(sum({metric}_sum_ns) AS BIGINT) AS {metric}_sum_ns,
        min({metric}_min_ns) AS {metric}_min_ns, max({metric}_max_ns) AS {metric}_max_ns"""


WINDOWS = f"""
    WITH added AS (
        SELECT {_KEY}, {_added_up("duration")}, {_added_up("self")},
            CAST(sum(exposed_count) AS BIGINT) AS exposed_count, CAST(sum(exposed_sum_ns) AS BIGINT) AS exposed_sum_ns
        FROM rank_windows GROUP BY {_KEY}
    )
    SELECT added.*, segments.name AS segment_name, segments.kind AS kind, segments.axis AS axis, ranks.host AS host
    FROM added
    LEFT JOIN segments ON segments.run = added.run AND segments.attempt = added.attempt
        AND segments.segment = added.segment
    LEFT JOIN ranks ON ranks.run = added.run AND ranks.attempt = added.attempt AND ranks.rank = added.rank
"""
"""One row a rank, segment and window: rows of ``rank_windows`` with one key (a window that still grows, spans that came
late) are one here. Histograms are left out: `histogram.percentile_sql` merges those of ``rank_windows``."""
