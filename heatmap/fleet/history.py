"""One attempt for the fleet's statistics: its verdict, its time by week, and what the accused machines cost it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from ...collectors.reading.attempts import UNDATED_NS
from ...collectors.reading.store import Attempt, Store
from ..mfu.parts import BoolArray
from ..mfu.steps import StepSeries, load_series
from ..peers import FloatArray
from ..stragglers import find_stragglers
from ..verdict import Culprit, Outcome, StragglerVerdict
from .lost import HARDWARE, LostBy, lost_to_machines
from .machines import Machines

MAX_HOSTS_NAMED = 2
"""Machines of a finding that is held against them: a link has two, and a group of many accuses none by itself."""

MS_PER_HOUR = 3.6e6
NS_PER_DAY = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class History:
    """An attempt: where it is stored, its verdict, its steps, its hosts, and ``lost`` [S], the share of each step.

    ``ranks`` is 0 where their number is not known. ``machine_names`` of hosts tells which machine a host was; where a
    host is not in it, its own name stands for that.
    """

    store: str
    attempt: Attempt
    verdict: StragglerVerdict
    series: StepSeries
    hosts: tuple[str, ...]
    ranks: int
    lost: FloatArray
    lost_by: LostBy
    machine_names: Mapping[str, str] = field(default_factory=dict)

    def machine_of(self, host: str) -> str:
        """Which machine a host was, whatever its name."""
        return self.machine_names.get(host, host)

    @property
    def machines(self) -> set[str]:
        """The machines that it ran on."""
        return {self.machine_of(host) for host in self.hosts}

    @property
    def is_judged(self) -> bool:
        """Whether a slow machine would have been seen, or was."""
        return self.verdict.verdict != Outcome.INSUFFICIENT

    @property
    def hours(self) -> float:
        """Time of all its steps."""
        return float(self.series.ms.sum()) / MS_PER_HOUR

    def culprits_of_hosts(self) -> list[Culprit]:
        """Accusations of hardware that name one machine, or two."""
        return [
            one
            for one in self.verdict.culprits
            if one.kind in HARDWARE and 0 < len(self.machines_in(one)) <= MAX_HOSTS_NAMED
        ]

    def machines_in(self, culprit: Culprit) -> set[str]:
        """The machines that an accusation names."""
        return {self.machine_of(host) for host in culprit.hosts}

    def lost_hours_to(self, culprit: Culprit) -> float:
        """Time of the job that is lost to one culprit: no more than to all."""
        whole = float((self.lost * self.series.ms).sum()) / MS_PER_HOUR
        return min(culprit.lost_share * self.hours, whole)

    def dated(self) -> BoolArray:
        """Which steps began at a moment that is known, [S]."""
        return np.asarray(self.series.start_ns >= UNDATED_NS)

    def weeks(self) -> dict[str, BoolArray]:
        """ISO weeks in UTC and which steps began in them, [S] bool; steps without a moment are in none."""
        monday = (self.series.start_ns // NS_PER_DAY + 3) // 7  # the first day of 1970 was a Thursday
        known = self.dated()
        firsts = {int(one): int(self.series.start_ns[known & (monday == one)][0]) for one in np.unique(monday[known])}
        return {week_of(moment): np.asarray(known & (monday == one)) for one, moment in firsts.items()}


def week_of(moment_ns: int) -> str:
    """The ISO week of a moment in UTC, such as 2026-W40; empty for no moment."""
    if moment_ns < UNDATED_NS:
        return ""
    year, week, _ = datetime.fromtimestamp(moment_ns / 1e9, UTC).isocalendar()
    return f"{year}-W{week:02d}"


def load_history(store: Store, attempt: Attempt, machines: Machines) -> History | None:
    """Judge an attempt; None where it has no step with a time."""
    series = load_series(store, attempt)
    series = series.part(np.isfinite(series.ms) & (series.ms > 0))
    if not len(series):
        return None
    verdict = find_stragglers(store, attempt)
    rows = store.query("SELECT host, count(DISTINCT rank) AS ranks FROM ranks GROUP BY host", attempt=attempt)
    hosts = tuple(sorted(str(row["host"]) for row in rows.to_pylist()))
    ranks = attempt.world_size or sum(int(row["ranks"]) for row in rows.to_pylist())
    names = {host: machines.of((str(store.root), attempt.run, attempt.attempt, host)) for host in hosts}
    return History(str(store.root), attempt, verdict, series, hosts, ranks, *lost_to_machines(verdict, series), names)
