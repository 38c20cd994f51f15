"""What a supervisor sees of a running attempt in the store: steps, heartbeats, devices, and the agents' incidents.

Every look reads only what has come since the one before, so that it costs the same after a week as after a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...collectors.goodput import Goodput, run_goodput
from ...collectors.reading.store import Attempt, Store
from ...profiler.errors import MegascopeError, UsageError
from .detectors import ECC_METRIC, XID_METRIC
from .signs import Beat, DeviceReading, StepRecord
from .steps_seen import NEW_STEPS, StepsSeen
from .tail import Tail

log = logging.getLogger(__name__)

MOST_STEPS = 400
"""Steps that are kept for the detectors."""

SKIPPED_FIRST = 2
"""The first steps of an attempt fill caches: they are in no baseline."""

_NEW_BEATS = """
SELECT rank, moment_ns, flight.segment AS storage, (moment_ns - flight.begun_ns) / 1e9 AS age_s FROM (
    SELECT rank, moment_ns, [one FOR one IN in_flight IF one.kind IN ('data', 'checkpoint')][1] AS flight
    FROM rows QUALIFY row_number() OVER (PARTITION BY rank ORDER BY moment_ns DESC) = 1)"""

_NEW_READINGS = f"""
SELECT host, device, moment_ns, metric, value FROM rows
WHERE metric IN ('{ECC_METRIC}', '{XID_METRIC}') AND value IS NOT NULL ORDER BY moment_ns"""


@dataclass(slots=True)
class Seen:
    """What is known of one attempt. ``end_ns``: when ``last_step``, the last one that is over, ended (UTC).

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
    def moved_ns(self) -> int | None:
        """When the last step ended that is known to have been made; None before the first."""
        return max((one for one in (self.end_ns, self.furthest_ns) if one is not None), default=None)

    @property
    def stall(self) -> dict[str, Any] | None:
        """The open stall that an agent has looked at twice, or has judged; None where there is none."""
        for row in self.incidents:
            if row["kind"] == "stalled" and row["closed_ns"] is None:
                return row
        return None


class Observer:
    """Reads a store that is being written. Where it cannot be read, what was known before stays.

    ``problem``: what kept the last look from telling anything; ``is_blind``: not even whether there is anything.
    """

    def __init__(self, root: Path, run: str, clock_ns: Callable[[], int] = time.time_ns) -> None:
        from ...collectors.reading.duck import connect  # noqa: PLC0415

        self._root, self._run, self._clock_ns = root, run, clock_ns
        self._store: Store | None = None
        self._connection = connect()
        self.problem: str | None = None
        self.is_blind = False
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Look at another attempt."""
        self.seen = Seen(attempt)
        self._attempt: Attempt | None = None
        self._new_steps, self._new_beats, self._new_health = (
            Tail(table, self._connection) for table in ("steps", "heartbeats", "health")
        )
        self._steps = StepsSeen(self._connection)
        self._beats: dict[int, Beat] = {}
        self._hosts: dict[int, str] = {}
        self._behind_ns: dict[str, int] = {}
        self._read_files: dict[str, list[str]] = {}
        self._values: dict[tuple[str, str | None], float] = {}
        self._readings: dict[DeviceReading, None] = {}

    def look(self) -> bool:
        """Take over what is new; False where the store, or the attempt in it, is not there yet."""
        import duckdb  # noqa: PLC0415

        try:
            if self._store is None:
                self._store = Store(self._root)
            self._store.refresh()
            if self._attempt is None or self._attempt.world_size is None:
                self._attempt = self._store.attempt(self._run, self.seen.attempt)
            self._take_steps(self._store, self._attempt)
            self._take_beats(self._store, self._attempt)
            self._take_readings(self._store, self._attempt)
            if self._has_changed("incidents", self._store, self._attempt):
                self.seen.incidents = self._store.read("incidents", self._attempt).to_pylist()
        except (MegascopeError, OSError, duckdb.Error) as error:
            self._read_files.clear()
            self.problem, self.is_blind = str(error).partition("\n")[0], not self._sees(error)
            return False
        self.problem, self.is_blind = None, False
        return True

    def _sees(self, error: Exception) -> bool:
        """Whether an error only says that the store, or the attempt in it, is not there yet."""
        if self._store is None and isinstance(error, MegascopeError):
            try:
                next(iter(self._root.iterdir()), None)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True
        return isinstance(error, UsageError)

    def _has_changed(self, table: str, store: Store, attempt: Attempt) -> bool:
        """Whether a small table, which is read as a whole, has other files than before."""
        paths = [entry.path for entry in store.entries(table, attempt)]
        before = self._read_files.get(table)
        self._read_files[table] = paths
        return paths != before

    def _take_steps(self, store: Store, attempt: Attempt) -> None:
        seen, found = self.seen, self._steps
        rows = self._new_steps.take(store, attempt, NEW_STEPS, [found.after])
        if rows is None:
            return
        for record, end_ns in found.add(rows, attempt.world_size):
            if seen.last_step is not None and record.step <= seen.last_step:  # its metrics have come
                seen.steps = [record if one.step == record.step else one for one in seen.steps]
                continue
            seen.steps.append(record)
            seen.last_step, seen.end_ns = record.step, end_ns
            seen.first_step_ns = seen.first_step_ns or record.start_ns
        del seen.steps[:-MOST_STEPS]
        seen.furthest, seen.furthest_ns = found.furthest, found.furthest_ns

    def _take_beats(self, store: Store, attempt: Attempt) -> None:
        """The newest of each rank. A host's clock is behind by what its quickest beat seems to have taken to here."""
        if self._has_changed("ranks", store, attempt):
            rows = store.read("ranks", attempt, ["rank", "host"]).to_pylist()
            self._hosts = {int(row["rank"]): row["host"] for row in rows}
        new, now_ns = self._new_beats.take(store, attempt, _NEW_BEATS), self._clock_ns()
        for row in () if new is None else new.to_pylist():
            rank, moment_ns = int(row["rank"]), int(row["moment_ns"])
            host, before = self._hosts.get(rank), self._beats.get(rank)
            if host is not None and (before is None or moment_ns > before.moment_ns):
                self._beats[rank] = Beat(rank, host, moment_ns, row["storage"], row["age_s"] or 0.0)
                self._behind_ns[host] = min(now_ns - moment_ns, self._behind_ns.get(host, now_ns - moment_ns))
        self.seen.beats = [
            replace(beat, behind_ns=self._behind_ns[beat.host]) for _, beat in sorted(self._beats.items())
        ]

    def _take_readings(self, store: Store, attempt: Attempt) -> None:
        """Every Xid; of a counter, its first value and those at which it has changed. Moments as with heartbeats."""
        new = self._new_health.take(store, attempt, _NEW_READINGS)
        for row in () if new is None else new.to_pylist():
            reading = DeviceReading(**row)
            place = reading.host, reading.device
            if reading.metric == ECC_METRIC and self._values.get(place) == reading.value:
                continue
            if reading.metric == ECC_METRIC:
                self._values[place] = reading.value
            self._readings.setdefault(reading)
        behind = {one.host: self._behind_ns.get(one.host, 0) for one in self._readings}
        self.seen.readings = [replace(one, moment_ns=one.moment_ns + behind[one.host]) for one in self._readings]

    def goodput(self, began_ns: int, until_ns: int) -> Goodput | None:
        """Goodput of the run, over all its attempts; None where no step was completed, or the store cannot be read."""
        if self._store is None:
            return None
        try:
            self._store.refresh()
            return run_goodput(self._store, self._run, began_ns, until_ns)
        except (OSError, MegascopeError) as error:
            log.warning("The goodput cannot be told (%s).", error)
            return None

    def close(self) -> None:
        """Give the store free."""
        self._connection.close()
        if self._store is not None:
            self._store.close()
            self._store = None
