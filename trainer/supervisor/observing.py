"""What a supervisor sees of a running attempt in the store: steps, heartbeats, devices, and the agents' incidents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...collectors.store import Attempt, Store
from ...profiler.errors import MegascopeError
from .detectors import ECC_METRIC, XID_METRIC
from .goodput import StepSpan
from .signs import Beat, DeviceReading, StepRecord

MOST_STEPS = 400
"""Steps that are kept for the detectors."""

MOST_RANKS_BY_STEP = 4096
"""Above so many ranks, their own step times are not read: the median and the slowest are."""

SKIPPED_FIRST = 2
"""The first steps of an attempt fill caches: they are in no baseline."""

_STEPS = """
SELECT step, median(duration_ns) AS duration_ns, min(start_ns) AS start_ns,
    max(start_ns + coalesce(duration_ns, 0)) AS end_ns, min(loss) AS loss, max(grad_norm) AS grad_norm,
    max(tokens) AS tokens, min(rank) FILTER (NOT isfinite(loss) OR NOT isfinite(grad_norm)) AS first_bad_rank,
    {by_rank} AS by_rank
FROM steps WHERE step > ? AND duration_ns IS NOT NULL GROUP BY step ORDER BY step"""

_FURTHEST = """
SELECT max(step) AS step, arg_max(start_ns + duration_ns, step) AS end_ns FROM steps
WHERE duration_ns IS NOT NULL AND (loss IS NOT NULL OR grad_norm IS NOT NULL)"""

_BEATS = """
SELECT rank, host, moment_ns, flight.segment AS storage, (moment_ns - flight.begun_ns) / 1e9 AS age_s FROM (
    SELECT rank, host, moment_ns, [one FOR one IN in_flight IF one.kind IN ('data', 'checkpoint')][1] AS flight
    FROM heartbeats JOIN ranks USING (rank)
    QUALIFY row_number() OVER (PARTITION BY rank ORDER BY moment_ns DESC) = 1)"""

_READINGS = f"""
SELECT host, device, moment_ns, metric, value FROM health
WHERE metric IN ('{ECC_METRIC}', '{XID_METRIC}') AND value IS NOT NULL ORDER BY moment_ns"""


@dataclass(slots=True)
class Seen:
    """What is known of one attempt. ``end_ns``: when ``last_step``, the last one that all ranks told of, ended (UTC).

    ``furthest``: the last completed step that any rank has told of, with its end: a lost host tells nothing more.
    """

    attempt: int
    steps: list[StepRecord] = field(default_factory=list)
    last_step: int | None = None
    first_step_ns: int | None = None
    end_ns: int | None = None
    furthest: int | None = None
    furthest_ns: int | None = None
    beats: list[Beat] = field(default_factory=list)
    readings: list[DeviceReading] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)

    @property
    def settled(self) -> list[StepRecord]:
        """The steps without the first ones of the attempt."""
        return self.steps if len(self.steps) >= MOST_STEPS else self.steps[SKIPPED_FIRST:]

    @property
    def stall(self) -> dict[str, Any] | None:
        """The open stall that an agent has looked at twice, or has judged; None where there is none."""
        for row in self.incidents:
            if row["kind"] == "stalled" and row["closed_ns"] is None:
                return row
        return None


class Observer:
    """Reads a store that is being written. Where it cannot be read, what was known before stays."""

    def __init__(self, root: Path, run: str) -> None:
        self._root, self._run = root, run
        self._store: Store | None = None
        self.seen = Seen(0)
        self.problem: str | None = None

    def begin(self, attempt: int) -> None:
        """Look at another attempt."""
        self.seen = Seen(attempt)

    def look(self) -> bool:
        """Take over what is new; False where the store, or the attempt in it, is not there yet."""
        import duckdb  # noqa: PLC0415

        try:
            if self._store is None:
                self._store = Store(self._root)
            self._store.refresh()
            attempt = self._store.attempt(self._run, self.seen.attempt)
            self._take_steps(self._store, attempt)
            self._take_rest(self._store, attempt)
        except (MegascopeError, OSError, duckdb.Error) as error:
            self.problem = str(error).partition("\n")[0]
            return False
        self.problem = None
        return True

    def _take_steps(self, store: Store, attempt: Attempt) -> None:
        seen = self.seen
        few = (attempt.world_size or 0) <= MOST_RANKS_BY_STEP
        by_rank = "map_from_entries(list((rank, duration_ns)))" if few else "NULL"
        last = -1 if seen.last_step is None else seen.last_step
        rows = store.query(_STEPS.format(by_rank=by_rank), [last], attempt).to_pylist()
        for row in rows:
            by_rank_ns = {int(rank): float(value) for rank, value in (row["by_rank"] or ())}
            if few and attempt.world_size and len(by_rank_ns) < attempt.world_size:
                break  # not all ranks have written theirs: the next time
            seen.steps.append(
                StepRecord(
                    step=int(row["step"]),
                    duration_ns=row["duration_ns"],
                    start_ns=row["start_ns"],
                    loss=row["loss"],
                    grad_norm=row["grad_norm"],
                    tokens=row["tokens"],
                    by_rank_ns=by_rank_ns,
                    first_bad_rank=row["first_bad_rank"],
                )
            )
            seen.last_step, seen.end_ns = int(row["step"]), int(row["end_ns"])
            seen.first_step_ns = seen.first_step_ns or int(row["start_ns"])
        del seen.steps[:-MOST_STEPS]
        row = store.query(_FURTHEST, attempt=attempt).to_pylist()[0]
        seen.furthest, seen.furthest_ns = row["step"], row["end_ns"]

    def _take_rest(self, store: Store, attempt: Attempt) -> None:
        seen = self.seen
        seen.incidents = store.read("incidents", attempt).to_pylist()
        seen.beats = [
            Beat(int(row["rank"]), row["host"], int(row["moment_ns"]), row["storage"], row["age_s"] or 0.0)
            for row in store.query(_BEATS, attempt=attempt).to_pylist()
        ]
        seen.readings = [DeviceReading(**row) for row in store.query(_READINGS, attempt=attempt).to_pylist()]

    def losses(self) -> Iterator[tuple[int, float]]:
        """(step, loss) of the whole run, of repeated steps the newest."""
        if self._store is not None:
            self._store.refresh()
            sql = (
                "SELECT step, arg_max(loss, attempt) AS loss FROM steps WHERE run = ? AND loss IS NOT NULL "
                "GROUP BY step ORDER BY step"
            )
            for row in self._store.query(sql, [self._run]).to_pylist():
                yield int(row["step"]), float(row["loss"])

    def executions(self) -> list[StepSpan]:
        """Every execution of every step of the run, in all attempts: the median duration over ranks."""
        if self._store is None:
            return []
        self._store.refresh()
        sql = (
            "SELECT attempt, step, median(duration_ns) / 1e9 AS duration_s FROM steps_all "
            "WHERE run = ? AND duration_ns IS NOT NULL GROUP BY attempt, step "
            "HAVING count(loss) > 0 OR count(grad_norm) > 0"  # a step that was broken off has neither
        )
        rows = self._store.query(sql, [self._run]).to_pylist()
        return [StepSpan(int(row["attempt"]), int(row["step"]), float(row["duration_s"])) for row in rows]

    def close(self) -> None:
        """Give the store free."""
        if self._store is not None:
            self._store.close()
            self._store = None
