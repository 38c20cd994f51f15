"""One attempt as an agent sees it go by, kept as numbers for the next scrape."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...profiler.vocabulary import stage_axis
from ..drains.attempt import AttemptDrain
from ..incidents.incidents import IncidentKind
from ..spool.event_rows import SpanArrays
from ..spool.rank_drain import RankDrain
from .agent_families import MOST_RANKS
from .family import Samples
from .hardware_gauges import HardwareGauges
from .job_totals import JobTotals
from .rank_totals import RankTotals
from .straggling import straggler_ratios

log = logging.getLogger(__name__)


class AttemptWatch:
    """The observer of one attempt. What goes wrong in it is said once: metrics are no reason to stop an agent."""

    def __init__(self, run: str, attempt: int) -> None:
        self.run, self.attempt = run, attempt
        self.hardware, self.job = HardwareGauges(), JobTotals()
        self._ranks: dict[int, RankTotals] = {}
        self._deaths = self._stalls = 0
        self._open: dict[str, int] = {}
        self._failed = False

    def rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of ``steps``, ``heartbeats`` and ``health``; others are not looked at."""
        try:
            if table == "health":
                self.hardware.take(rows)
                self.job.add_health(rows)
            elif table == "steps":
                for row in rows:
                    self._of(row["rank"]).add_step(row)
                    self.job.add_step(row)
            elif table == "heartbeats":
                for row in rows:
                    self._of(row["rank"]).add_heartbeat(row)
        except Exception as error:
            self._say(error)

    def spans(self, rank: RankDrain, arrays: Sequence[SpanArrays]) -> None:
        """Spans as they are read."""
        try:
            for one in arrays:
                self._of(rank.rank).add_spans(one, rank.metadata.names)
        except Exception as error:
            self._say(error)

    def _of(self, rank: int) -> RankTotals:
        return self._ranks.setdefault(rank, RankTotals())

    def _say(self, error: Exception) -> None:
        if not self._failed:
            log.warning(
                "Metrics of %s/%d are incomplete (%s: %s).", self.run, self.attempt, type(error).__name__, error
            )
        self._failed = True

    def look(self, attempt: AttemptDrain) -> None:
        """What the agent has noticed in the attempt so far."""
        deaths = {
            action["rank"]
            for one in attempt.incidents
            for action in one.actions
            if action["action"] == "noticed-death" and one.kind == IncidentKind.RANK_DIED
        }
        self._deaths, self._stalls = max(self._deaths, len(deaths)), attempt.watch.stalls
        self._open = dict.fromkeys(map(str, IncidentKind), 0)
        for one in attempt.incidents:
            if one.closed_ns is None and one.kind in self._open:
                self._open[one.kind] += 1

    def add_to(self, samples: Samples, attempt: AttemptDrain | None) -> None:
        """The run's values and, while the ``attempt`` is there, those of its ranks."""
        is_active = attempt is not None and not attempt.is_over
        samples.add("megascope_attempt", self.attempt, self.run)
        samples.add("megascope_active", is_active, self.run)
        self.job.add_to(samples, self.run)
        samples.add("megascope_rank_deaths_total", self._deaths, self.run)
        samples.add("megascope_stalls_total", self._stalls, self.run)
        for kind, count in self._open.items():
            samples.add("megascope_incidents_open", count if is_active else 0, self.run, kind)
        if attempt is not None and is_active:
            self._add_ranks(samples, attempt)

    def _add_ranks(self, samples: Samples, attempt: AttemptDrain) -> None:
        ranks = sorted((rank for rank in attempt.ranks if rank.header is not None), key=lambda rank: rank.rank)
        shown = ranks[:MOST_RANKS]
        world = max((rank.header.world_size for rank in ranks if rank.header is not None), default=None)
        samples.add("megascope_world_size", world, self.run)
        samples.add("megascope_local_ranks", len(ranks), self.run)
        samples.add("megascope_hidden_ranks", len(ranks) - len(shown), self.run)
        samples.add("megascope_pending_spans", attempt.pending_spans, self.run)
        stages = {rank.rank: _stage(rank) for rank in ranks}
        work = {rank.rank: _of_done_steps(self._of(rank.rank), rank.reader.step) for rank in ranks}
        ratios = straggler_ratios(work, stages)
        for rank in shown:
            stage = stages[rank.rank]
            self._add_rank(samples, rank, "" if stage is None else str(stage), ratios.get(rank.rank))

    def _add_rank(self, samples: Samples, rank: RankDrain, stage: str, ratio: float | None) -> None:
        where, totals = (self.run, rank.rank), self._of(rank.rank)
        samples.add("megascope_step", rank.reader.step, *where)
        samples.add("megascope_step_seconds", totals.steps_s, *where, count=totals.steps)
        samples.add("megascope_last_step_seconds", totals.last_step_s, *where)
        if totals.has_spans:
            samples.add("megascope_work_seconds_total", totals.work_ns / 1e9, *where, stage)
            samples.add("megascope_exposed_wait_seconds_total", totals.waited_ns / 1e9, *where)
        samples.add("megascope_straggler_ratio", ratio, *where, stage)
        samples.add("megascope_spans_total", rank.spans, *where)
        samples.add("megascope_lost_spans_total", rank.lost, *where, "overwritten")
        samples.add("megascope_lost_spans_total", rank.dropped, *where, "quota")
        samples.add("megascope_unslotted_spans_total", rank.reader.unslotted, *where)
        samples.add("megascope_lost_metadata_total", rank.lost_metadata, *where)
        if rank.died is not None or not rank.is_ended:
            samples.add("megascope_rank_alive", rank.died is None, *where)
        if rank.is_ended:  # what it did last is history
            return
        samples.add("megascope_in_flight_age_seconds", totals.in_flight_age_s, *where)
        samples.add("megascope_quiet_seconds", (time.monotonic_ns() - rank.changed_ns) / 1e9, *where)
        if totals.heartbeat_at is not None:
            samples.add("megascope_heartbeat_age_seconds", time.monotonic() - totals.heartbeat_at, *where)


def _of_done_steps(totals: RankTotals, step: int | None) -> dict[int, int]:
    """Work of the steps before the one that the rank is in, of which all is known by now."""
    return {one: took for one, took in totals.work_of_steps.items() if step is None or one < step}


def _stage(rank: RankDrain) -> int | None:
    """The pipeline stage of a rank; None without a pipeline."""
    places = rank.metadata.coordinates
    axis = stage_axis(places)
    return None if axis is None else places[axis]
