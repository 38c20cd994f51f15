"""`rollups`: the windows of every rank and segment made again from raw spans, and held against those in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ..collectors.reading.store import Attempt
from ..collectors.rollups.histogram import BINS_PER_E
from ..collectors.rollups.windows import WINDOW_STEPS
from .engines import Engine, Question
from .scope import Scope

_REBUILT = """
    WITH measured AS (
        SELECT events.run, events.attempt, events.rank, events.segment,
            events.step - events.step % {shortest} AS first_step, metrics.metric,
            CASE metrics.metric WHEN 'duration' THEN events.duration_ns WHEN 'self' THEN events.self_ns
                ELSE events.exposed_ns END AS took_ns
        FROM events CROSS JOIN metrics WHERE {where}
    ), entries AS (
        SELECT run, attempt, rank, segment, first_step, metric,
            CASE WHEN metric = 'exposed' THEN 0
                WHEN took_ns <= 0 THEN -1 ELSE CAST(floor(ln(took_ns) * {bins}) AS INT) END AS bin,
            count(*) AS n, sum(took_ns) AS sum_ns, min(took_ns) AS min_ns, max(took_ns) AS max_ns
        FROM measured WHERE took_ns IS NOT NULL
        GROUP BY run, attempt, rank, segment, first_step, metric,
            CASE WHEN metric = 'exposed' THEN 0
                WHEN took_ns <= 0 THEN -1 ELSE CAST(floor(ln(took_ns) * {bins}) AS INT) END
    ), longer AS (
        SELECT run, attempt, rank, segment, lengths.window_steps, metric, bin,
            first_step - first_step % lengths.window_steps AS first_step,
            CAST(sum(n) AS INT) AS n, sum(sum_ns) AS sum_ns, min(min_ns) AS min_ns, max(max_ns) AS max_ns
        FROM entries CROSS JOIN lengths
        GROUP BY run, attempt, rank, segment, lengths.window_steps, metric, bin,
            first_step - first_step % lengths.window_steps
    )
    SELECT run, attempt, rank, segment, window_steps, first_step,
        {duration}, {self},
        CAST(sum(CASE WHEN metric = 'exposed' THEN n ELSE 0 END) AS BIGINT) AS exposed_count,
        CAST(sum(CASE WHEN metric = 'exposed' THEN sum_ns ELSE 0 END) AS BIGINT) AS exposed_sum_ns,
        {duration_lists}, {self_lists}
    FROM longer GROUP BY run, attempt, rank, segment, window_steps, first_step
"""

_SCALARS = """CAST(sum(CASE WHEN metric = '{0}' THEN n ELSE 0 END) AS BIGINT) AS {0}_count,
        CAST(sum(CASE WHEN metric = '{0}' THEN sum_ns ELSE 0 END) AS BIGINT) AS {0}_sum_ns,
        min(CASE WHEN metric = '{0}' THEN min_ns END) AS {0}_min_ns,
        max(CASE WHEN metric = '{0}' THEN max_ns END) AS {0}_max_ns"""

_LISTS = """KEYS_IN_ORDER(bin, n, metric = '{0}') AS {0}_bins,
        VALUES_IN_ORDER(bin, n, metric = '{0}') AS {0}_bin_counts"""

COMPARED = ("duration_count", "duration_sum_ns", "self_count", "self_sum_ns", "exposed_count", "exposed_sum_ns")
"""What of a window is held against the stored one."""

_SUMS = """
    SELECT attempt, segment, window_steps, first_step, count(*) AS ranks, {sums}
    FROM ({rows}) AS one GROUP BY attempt, segment, window_steps, first_step
"""


def rebuilt(scope: Scope) -> Question:
    """Rows of ``rank_windows`` made of the raw spans alone."""
    parts = {name: _SCALARS.format(name) for name in ("duration", "self")}
    parts |= {f"{name}_lists": _LISTS.format(name) for name in ("duration", "self")}
    sql = _REBUILT.format(shortest=WINDOW_STEPS[0], bins=BINS_PER_E, where=scope.where(), **parts)
    small = {
        "metrics": pa.table({"metric": ["duration", "self", "exposed"]}),
        "lengths": pa.table({"window_steps": pa.array(WINDOW_STEPS, pa.int32())}),
    }
    return Question(sql, small)


def find_rollups(scope: Scope, engine: Engine, folder: Path | None) -> dict[str, Any]:
    """Make the windows again and count which of the store's agree; ``folder`` gets the rows, in all their columns.

    Compared are counts and sums of all ranks together, for each segment and window: the answer stays small for any
    fleet. A window that the raw spans no longer hold whole (they were pruned, or the window is still open) differs.
    """
    question = rebuilt(scope)
    saved = engine.save(question, folder) if folder is not None else None
    sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in COMPARED)
    made = engine.ask(Question(_SUMS.format(sums=sums, rows=question.sql), question.small)).to_pylist()
    made.sort(key=_key)
    stored = {
        _key(row | {"attempt": one.attempt}): row
        for one, ranges in zip(scope.attempts, scope.kept, strict=True)
        for row in _stored(scope, one, ranges)
    }
    equal = differing = 0
    worst: list[dict[str, Any]] = []
    absent = [row for row in made if _key(row) not in stored]
    for row in made:
        other = stored.pop(_key(row), None)
        if other is None:
            continue
        if all(row[name] == other[name] for name in ("ranks", *COMPARED)):
            equal += 1
        else:
            differing += 1
            worst.append({**dict(zip(_KEY, _key(row), strict=True)), "rebuilt": row, "stored": other})
    return {
        "windows": len(made),
        "equal": equal,
        "different": differing,
        "not_in_store": len(absent),
        "not_in_raw_spans": len(stored),
        "examples": worst[:5],
        "saved_rows": saved,
        "saved_to": None if folder is None else str(folder),
    }


_KEY = ("attempt", "segment", "window_steps", "first_step")


def _key(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in _KEY)


def _stored(scope: Scope, attempt: Attempt, ranges: tuple[tuple[int, int], ...]) -> list[dict[str, Any]]:
    """The store's windows that have any of the steps looked at."""
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in COMPARED)
    reached = " OR ".join(f"(first_step <= {last} AND first_step + window_steps > {first})" for first, last in ranges)
    rows: list[dict[str, Any]] = scope.store.query(
        f"SELECT segment, window_steps, first_step, count(DISTINCT rank) AS ranks, {sums} FROM rank_windows "
        f"WHERE {reached} GROUP BY segment, window_steps, first_step",
        attempt=attempt,
    ).to_pylist()
    return rows
