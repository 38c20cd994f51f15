"""The agent: one process a host that turns black boxes into tables and samples what is in flight."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from ...profiler.errors import MegascopeError
from ..alarms.pickup import AlarmPickUp
from ..drains.run import RunDrain
from ..hardware.telling import HardwareTeller
from ..hardware.watch import HardwareWatch, Sources
from ..manifests.marker import check_marker
from ..metrics.address import MetricsAddress
from ..metrics.opening import open_metrics
from ..patience import STALL_S
from ..reading.store import Store
from ..spool.spool import boxes, clear_away, patient_lock
from ..storage.address import store_path
from ..storage.object_path import ObjectPath
from ..storage.quota import Quota, default_quota
from ..upkeep.sweeping import sweep
from .clock_watch import ClockWatch, presence_of
from .compaction_idle import compact_if_alone
from .signals import stopped_by_signals

log = logging.getLogger(__name__)

FLUSH_FROM_SPANS = 200_000
"""Spans in memory that are written without waiting for ``flush_s``: larger files are not cheaper."""

_MOST_LAST_POLLS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What the agent reads and writes, and how often. ``run`` and ``attempt`` None mean all in the spool.

    ``lock_patience_s`` is how long an agent waits for another one that serves the same spool to end.
    ``quota_bytes`` None is 20 GiB or a tenth of the disk, whichever is less. ``idle_exit_s`` None runs until a signal.
    ``stop_grace_s`` is how long ranks that are ending too may still say goodbye after SIGTERM or SIGINT, at most: where
    none is alive, nothing is waited for. At ``metrics`` Prometheus finds what the last turn saw; None: nowhere.
    """

    spool: Path
    store: Path
    run: str | None = None
    attempt: int | None = None
    poll_s: float = 0.5
    flush_s: float = 2.0
    heartbeat_s: float = 1.0
    health_s: float = 5.0
    stall_s: float = STALL_S
    catalog_s: float = 30.0
    quota_bytes: int | None = None
    idle_exit_s: float | None = None
    stop_grace_s: float = 10.0
    lock_patience_s: float = 30.0
    metrics: MetricsAddress | None = None

    def boxes(self) -> Iterator[Path]:
        """The boxes in the spool that are meant."""
        return boxes(self.spool, self.run, self.attempt)


def run_agent(settings: AgentSettings, stop: threading.Event | None = None) -> int:
    """Run until told to stop (SIGTERM, SIGINT, ``stop``) or idle for ``idle_exit_s``; the exit code.

    Where another agent serves the same spool, this one waits a little for its end, says so and returns 0. Raises
    MegascopeError for a spool that cannot be made and for a store of a newer schema; a store that cannot be written is
    waited for, also beyond ``idle_exit_s``, as long as there are boxes.
    """
    settings = replace(settings, store=store_path(settings.store))
    ended = stop or threading.Event()
    with contextlib.suppress(OSError):
        check_marker(settings.store)
    with stopped_by_signals(ended):
        while _serve(settings, ended):
            log.info("More boxes came to %s while the agent was about to end: it goes on.", settings.spool)
    return 0


def _serve(settings: AgentSettings, ended: threading.Event) -> bool:
    """The life of one agent, under the spool's lock; whether boxes came too late for it and have no other agent."""
    lock = None
    if settings.run is None:
        lock = patient_lock(settings.spool, settings.lock_patience_s, ended)
        if lock is None:
            log.warning("Another agent serves the spool %s: this one ends.", settings.spool)
            return False
    agent = Agent(settings, ended)
    try:
        agent.run()
        known = agent.known_boxes()
    finally:
        agent.close()
        if lock is not None:
            lock.release(delete=True)
            clear_away(settings.spool)
    return not ended.is_set() and not known.issuperset(settings.boxes())


class _Timer:
    """True once every so many seconds, the first time at once."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._due = every_s, time.monotonic()

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = max(self._due + self._every_s, now)
        return True


class Agent:
    """The loop of one agent process."""

    def __init__(self, settings: AgentSettings, stop: threading.Event) -> None:
        self.settings, self._stop = settings, stop
        self.runs: dict[str, RunDrain] = {}
        limit = settings.quota_bytes if settings.quota_bytes is not None else default_quota(settings.store)
        self._quota = Quota(settings.store, limit)
        self._clocks = ClockWatch(settings.store)
        self._alarms = AlarmPickUp(settings.store)
        teller = HardwareTeller(self._alarms.raise_alarm)
        self._hardware = HardwareWatch(settings.health_s, Sources(spool=settings.spool), teller.tell)
        self._metrics = open_metrics(settings.metrics, settings.spool)
        self._flush_timer, self._heartbeat_timer = _Timer(settings.flush_s), _Timer(settings.heartbeat_s)
        self._catalog_timer = _Timer(settings.catalog_s)
        self._busy_at = time.monotonic()
        self._refused: dict[str, float] = {}
        self._said: set[str] = set()
        self._catalog_is_stale = False
        self._reader: Store | None = None
        self._catalog_version: tuple[object, ...] = ()

    def run(self) -> None:
        """Work until there is a reason to stop; then drain and commit once more."""
        self._sweep()
        stop_by: float | None = None
        while not self._is_idle():
            if self._stop.is_set():
                stop_by = stop_by or time.monotonic() + self.settings.stop_grace_s
                if time.monotonic() >= stop_by or not any(run.is_active for run in self.runs.values()):
                    break
                time.sleep(min(self.settings.poll_s, 0.1))
            else:
                pauses = [self.settings.poll_s, *(run.pause_s for run in self.runs.values())]
                self._stop.wait(0 if self.is_behind else min(pauses))
            self.poll()
        self._drain_rest()
        if not self._stop.is_set() and not self.runs:
            if self._metrics is not None:
                self._metrics.close()  # there are no turns any more, and compaction may take minutes
            done = compact_if_alone(self.settings.store, should_stop=self._is_wanted)
            self._catalog_is_stale |= done is not None and done.files_before > 0
        if self._catalog_is_stale:
            self._write_catalog()
        self._sweep()

    def _is_wanted(self) -> bool:
        """Whether there is something to do at once: to end, or to drain boxes that have come."""
        return self._stop.is_set() or not self.known_boxes().issuperset(self.settings.boxes())

    def _drain_rest(self) -> None:
        """Poll and commit until nothing is left; a store that cannot be written leaves it in the boxes."""
        for _ in range(_MOST_LAST_POLLS):
            self.poll(flush=True)
            if not self.is_behind or any(run.pending_spans for run in self.runs.values()):
                return

    @property
    def is_behind(self) -> bool:
        """Whether the last poll left spans in the boxes because there were too many for one."""
        return any(attempt.has_backlog for run in self.runs.values() for attempt in run.attempts.values())

    def poll(self, *, flush: bool = False) -> None:
        """One round: look at all boxes, and flush when it is time, when much is pending, or when an attempt ended."""
        begun = time.monotonic()
        heartbeat = self._heartbeat_timer.is_due()
        for run, numbers in self._found().items():
            if self._hold(run):
                self.runs[run].poll(numbers, self.settings.stall_s, heartbeat=heartbeat)
        attempts = [one for run in self.runs.values() for one in run.attempts.values()]
        self._hardware.poll([one for one in attempts if one.is_active or any(rank.runs_here for rank in one.ranks)])
        self._alarms.poll()
        if self._metrics is not None:
            self._metrics.show(self.runs, self._quota)
        is_much = sum(run.pending_spans for run in self.runs.values()) >= FLUSH_FROM_SPANS
        is_urgent = any(run.is_urgent for run in self.runs.values())
        if flush or is_urgent or is_much or self.is_behind or self._flush_timer.is_due():
            self.flush()
        if self._catalog_is_stale and self._catalog_timer.is_due():
            self._write_catalog()
        self._clocks.poll(presence_of(self.runs))
        self._drop_finished()
        if self._metrics is not None:
            self._metrics.timed(time.monotonic() - begun)

    def flush(self) -> None:
        """Commit what is pending, run by run."""
        written = sum(run.written_bytes for run in self.runs.values())
        for run in self.runs.values():
            if any(attempt.has_news for attempt in run.attempts.values()):
                self._catalog_is_stale |= run.flush(with_events=not self._quota.is_exceeded(written))

    def close(self) -> None:
        """Give everything free."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for run in self.runs.values():
            run.close()
        self.runs.clear()
        self._alarms.close()
        if self._metrics is not None:
            self._metrics.close()
        self._hardware.close()

    # -- what there is to do ------------------------------------------------------------------------------------

    def known_boxes(self) -> set[Path]:
        """Boxes that this agent looked at, and those of runs that another agent holds."""
        theirs = {path for path in self.settings.boxes() if path.parts[-3] in self._refused}
        return theirs.union(*(run.known_boxes for run in self.runs.values()))

    def _found(self) -> dict[str, list[int]]:
        """Attempts in the spool by run."""
        found: dict[str, set[int]] = defaultdict(set)
        for path in self.settings.boxes():
            run, attempt = path.parts[-3:-1]
            found[run].add(int(attempt))
        return {run: sorted(found[run]) for run in sorted({*self.runs, *found})}

    def _hold(self, run: str) -> bool:
        """Whether the run is this agent's; a run that another agent holds is tried again every time."""
        if run in self.runs:
            return True
        observe = None if self._metrics is None else self._metrics.observe
        drain = RunDrain.open(self.settings.spool, self.settings.store, run, observe)
        if drain is None:
            since = self._refused.setdefault(run, time.monotonic())
            if time.monotonic() - since >= self.settings.lock_patience_s and run not in self._said:
                log.warning("Another agent holds run %s in %s: it is left to that one.", run, self.settings.spool)
                self._said.add(run)
                if run == self.settings.run:
                    self._stop.set()
            return False
        self._refused.pop(run, None)
        self._said.discard(run)
        self.runs[run] = drain
        return True

    def _drop_finished(self) -> None:
        for run in [run for run, drain in self.runs.items() if drain.is_gone]:
            self.runs.pop(run).close()

    def _is_idle(self) -> bool:
        """Whether nothing was under way for ``idle_exit_s``; unseen processes count while their boxes move."""
        now = time.monotonic()
        changed = max((run.changed_ns for run in self.runs.values()), default=0) / 1e9
        if any(run.is_active for run in self.runs.values()):
            self._busy_at = now
        idle_s = now - max(self._busy_at, changed)
        return self.settings.idle_exit_s is not None and idle_s >= self.settings.idle_exit_s

    # -- the store --------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Delete what earlier agents had no time to; a store that cannot be written now is none of its business."""
        with contextlib.suppress(OSError, MegascopeError):
            sweep(self.settings.store)

    def _write_catalog(self) -> None:
        """Refresh the views for other DuckDB clients; they are a convenience and never a reason to stop."""
        self._catalog_is_stale = False
        if isinstance(self.settings.store, ObjectPath):
            return
        try:
            if self._reader is None:
                self._reader = Store(self.settings.store)
            self._reader.refresh()
            if self._reader.version() != self._catalog_version:
                self._reader.write_catalog()
                self._catalog_version = self._reader.version()
        except (MegascopeError, OSError, duckdb.Error) as error:
            self._catalog_is_stale = True
            log.warning("The catalog of %s was not written (%s).", self.settings.store, error)
