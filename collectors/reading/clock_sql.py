"""The SQL that turns the rows of `clock_offsets` into pieces of a line: the one definition of a host's offset."""

from __future__ import annotations

from enum import StrEnum

MAX_DRIFT_PPB = 100_000.0
"""Two clocks drift apart by no more: oscillators of servers are specified to 50 ppm each."""


class OffsetSource(StrEnum):
    """Where a row of `clock_offsets` comes from; for a host with rows from ends, those are used and no others.

    host: the job has one host, whose clock is the reference. exchange: messages at the start of the job. ends: the ends
    of operations that hosts shared. exchange-and-ends: the two disagreed; drift from ends, offset from the exchange,
    since messages bound it whatever the delays, while ends take both hosts to notice completion equally late.
    """

    HOST = "host"
    EXCHANGE = "exchange"
    ENDS = "ends"
    BOTH = "exchange-and-ends"


_FROM_ENDS = f"(source IS NOT NULL AND source IN ('{OffsetSource.ENDS}', '{OffsetSource.BOTH}'))"

CLOCK_PIECES = f"""
    WITH usable AS (
        SELECT * FROM clock_offsets WHERE uncertainty_ns IS NOT NULL
        QUALIFY {_FROM_ENDS} OR NOT bool_or({_FROM_ENDS}) OVER (PARTITION BY run, attempt, host)
    ), knots AS (
        SELECT run, attempt, host, moment_ns, offset_ns, drift_ppb,
            max(uncertainty_ns) OVER knot + max(offset_ns) OVER knot - min(offset_ns) OVER knot AS uncertainty_ns
        FROM usable WINDOW knot AS (PARTITION BY run, attempt, host, moment_ns)
        QUALIFY row_number() OVER
            (PARTITION BY run, attempt, host, moment_ns ORDER BY uncertainty_ns, offset_ns, drift_ppb) = 1
    ), spans AS (
        SELECT *, lead(moment_ns) OVER later - moment_ns AS until_next_ns,
            lead(offset_ns) OVER later - offset_ns AS step_ns,
            lead(uncertainty_ns) OVER later - uncertainty_ns AS widening_ns,
            moment_ns - lag(moment_ns) OVER later AS since_last_ns,
            least({MAX_DRIFT_PPB} * 1e-9, coalesce(
                (lag(uncertainty_ns) OVER later + uncertainty_ns) / (moment_ns - lag(moment_ns) OVER later),
                (lead(uncertainty_ns) OVER later + uncertainty_ns) / (lead(moment_ns) OVER later - moment_ns),
                CASE WHEN drift_ppb IS NULL THEN {MAX_DRIFT_PPB} * 1e-9 ELSE 0 END)) AS growth
        FROM knots WINDOW later AS (PARTITION BY run, attempt, host ORDER BY moment_ns)
    )
    SELECT run, attempt, host, moment_ns AS from_ns, moment_ns, offset_ns,
        coalesce(step_ns / until_next_ns, drift_ppb * 1e-9, 0) AS slope,
        uncertainty_ns, coalesce(widening_ns / until_next_ns, growth) AS widening
    FROM spans
    UNION ALL
    SELECT run, attempt, host, -9223372036854775807 AS from_ns, moment_ns, offset_ns,
        coalesce(drift_ppb * 1e-9, 0) AS slope, uncertainty_ns, -growth AS widening
    FROM spans WHERE since_last_ns IS NULL
"""
"""Pieces of every host's offset. From ``from_ns`` on, until the host's next piece, at the host's moment t:

    offset = offset_ns + slope * (t - moment_ns), uncertainty = uncertainty_ns + widening * (t - moment_ns)

Of several rows for one moment the surest counts, and the uncertainty covers all of them. Between two moments of
`clock_offsets` both are interpolated. Outside, the row's drift goes on, and the uncertainty grows
by the drift that the rows' uncertainties leave open; by `MAX_DRIFT_PPB` for a row that does not know its drift.
"""


def aligned_sql(moment: str, piece: str = "pieces") -> str:
    """SQL of a moment of a host on the reference clock; NULL without a piece."""
    return f"{moment} + {piece}.offset_ns + CAST(round({piece}.slope * ({moment} - {piece}.moment_ns)) AS BIGINT)"


def uncertainty_sql(moment: str, piece: str = "pieces") -> str:
    """SQL of the uncertainty (ns) of a host's moment; NULL without a piece."""
    return f"{piece}.uncertainty_ns + CAST(round({piece}.widening * ({moment} - {piece}.moment_ns)) AS BIGINT)"


EVENTS_ALIGNED = f"""
    WITH pieces AS ({CLOCK_PIECES}),
    alone AS (SELECT run, attempt FROM ranks GROUP BY run, attempt HAVING count(DISTINCT host) = 1)
    SELECT events.* REPLACE (
            CASE WHEN pieces.offset_ns IS NOT NULL THEN {aligned_sql("events.start_ns")}
                 WHEN alone.run IS NOT NULL THEN events.start_ns END AS start_ns),
        CASE WHEN pieces.offset_ns IS NOT NULL THEN {uncertainty_sql("events.start_ns")}
             WHEN alone.run IS NOT NULL THEN 0 END AS uncertainty_ns,
        events.start_ns AS host_start_ns
    FROM events
    LEFT JOIN ranks ON ranks.run = events.run AND ranks.attempt = events.attempt AND ranks.rank = events.rank
    LEFT JOIN alone ON alone.run = events.run AND alone.attempt = events.attempt
    ASOF LEFT JOIN pieces ON pieces.run = events.run AND pieces.attempt = events.attempt
        AND pieces.host = ranks.host AND events.start_ns >= pieces.from_ns
"""
"""Events with their start on the reference clock: NULL where the host cannot be aligned with the others.

``host_start_ns`` is the start on the host's own clock. The hosts of a job that has only one are aligned as they are.
"""
