"""The SQL of the view ``windows``: rollups added up, with the names of their segments and the hosts of their ranks."""

from __future__ import annotations

_KEY = "run, attempt, rank, segment, window_steps, first_step"


def _added_up(metric: str) -> str:
    return f"""
        CAST(sum({metric}_count) AS BIGINT) AS {metric}_count, CAST(sum({metric}_sum_ns) AS BIGINT) AS {metric}_sum_ns,
        min({metric}_min_ns) AS {metric}_min_ns, max({metric}_max_ns) AS {metric}_max_ns"""


_NOT_SUPERSEDED = """
    WHERE (run, attempt, window_steps, first_step) NOT IN (
        SELECT (mine.run, mine.attempt, lengths.window_steps, mine.step // window_steps * window_steps)
        FROM (SELECT DISTINCT run, attempt, step FROM steps_all) mine
        JOIN (SELECT run, step, max(attempt) AS attempt FROM steps_all GROUP BY run, step) newest
            ON newest.run = mine.run AND newest.step = mine.step
        CROSS JOIN (SELECT DISTINCT window_steps FROM rank_windows) lengths
        GROUP BY ALL HAVING bool_and(newest.attempt > mine.attempt)
    )
"""


def windows_view(*, has_restarts: bool) -> str:
    """One row a rank, segment and window, with the names of its segment and host, from ``rank_windows``.

    Rows of one key (a window that still grows, spans that came late) are one here. Histograms are left out. With
    restarts, a window is left out where newer attempts have repeated all steps that its attempt has of it, as ``spans``
    leaves out the spans of a repeated step. A window of which only some steps were repeated stays whole, since its sums
    cannot be taken apart: over several attempts those steps count twice. There are at most two of each length for every
    restart: the one in which it took up, and, until it has caught up, the one in which it is.
    """
    return f"""
    WITH added AS (
        SELECT {_KEY}, {_added_up("duration")}, {_added_up("self")},
            CAST(sum(exposed_count) AS BIGINT) AS exposed_count, CAST(sum(exposed_sum_ns) AS BIGINT) AS exposed_sum_ns
        FROM rank_windows {_NOT_SUPERSEDED if has_restarts else ""} GROUP BY {_KEY}
    )
    SELECT added.*, segments.name AS segment_name, segments.kind AS kind, segments.axis AS axis, ranks.host AS host
    FROM added
    LEFT JOIN segments ON segments.run = added.run AND segments.attempt = added.attempt
        AND segments.segment = added.segment
    LEFT JOIN ranks ON ranks.run = added.run AND ranks.attempt = added.attempt AND ranks.rank = added.rank
    """
