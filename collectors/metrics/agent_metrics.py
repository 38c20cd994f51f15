"""The metrics of one agent: told of every turn, read by scrapes of the last one, behind a port of their own."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from ...profiler.host import host_name
from ...profiler.opening import versions
from ..drains.run import RunDrain
from ..storage.quota import Quota
from .address import MetricsAddress
from .agent_families import AGENT_FAMILIES, MOST_RUNS
from .attempt_watch import AttemptWatch
from .endpoint import Endpoint
from .exposition import render
from .family import Samples

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""A port that is taken is tried again after so long: an agent that ends holds it a moment longer."""

MEASURE_S = 15.0
SHOW_S = 1.0


class AgentMetrics:
    """Watches an agent's attempts, and listens as soon as the port can be had."""

    def __init__(self, address: MetricsAddress, spool: Path) -> None:
        self._address, self._spool = address, spool
        self._watches: dict[tuple[str, int], AttemptWatch] = {}
        self._samples: Samples | None = None
        self._endpoint: Endpoint | None = None
        self._open_at = self._measure_at = self._show_at = 0.0
        self._problem = ""
        self._turns, self._turns_s = 0, 0.0
        self._process, self._version = psutil.Process(), versions().get("megascope", "")
        self._spool_bytes: int | None = None
        self._spool_free: int | None = None
        self._spool_disk: int | None = None
        self._open()

    @property
    def port(self) -> int | None:
        """The port that is listened on; None while it cannot be had."""
        return None if self._endpoint is None else self._endpoint.port

    def observe(self, run: str, attempt: int) -> AttemptWatch:
        """The watch of an attempt, a new one for an attempt that was not known."""
        return self._watches.setdefault((run, attempt), AttemptWatch(run, attempt))

    def timed(self, took_s: float) -> None:
        """A turn of the agent took so long."""
        self._turns, self._turns_s = self._turns + 1, self._turns_s + took_s

    def show(self, runs: Mapping[str, RunDrain], quota: Quota) -> None:
        """Take the values that scrapes are answered with from now on; at most once in `SHOW_S`, ends at once."""
        now = time.monotonic()
        is_over = any(attempt.is_over for run in runs.values() for attempt in run.attempts.values())
        if now < self._show_at and not is_over:
            return
        self._show_at = now + SHOW_S
        self._open()
        try:
            self._samples = self._taken(runs, quota)
        except Exception as error:  # metrics are no reason to stop an agent
            self._say(f"The metrics cannot be taken ({type(error).__name__}: {error}).")

    def close(self) -> None:
        """Stop listening."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def page(self, accept: str) -> tuple[bytes, str]:
        """What a scrape gets; called from other threads."""
        return render(lambda: self._samples, accept)

    def _open(self) -> None:
        if self._endpoint is not None or time.monotonic() < self._open_at:
            return
        self._open_at = time.monotonic() + RETRY_S
        try:
            self._endpoint = Endpoint(self._address, self.page)
        except (OSError, RuntimeError, ValueError) as error:  # a thread that cannot be started, a name that is none
            where, reason = f"{self._address.host}:{self._address.port}", getattr(error, "strerror", None) or error
            self._say(f"No metrics at {where} yet ({reason}): trying again. Is the port taken?")
            return
        log.info("Metrics at http://%s:%d/metrics", self._address.host, self._endpoint.port)

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("%s", problem)

    def _taken(self, runs: Mapping[str, RunDrain], quota: Quota) -> Samples:
        samples = Samples(AGENT_FAMILIES)
        self._forget(runs)
        by_run = {run: watch for (run, _), watch in sorted(self._watches.items())}
        newest = dict(itertools.islice(by_run.items(), MOST_RUNS))
        for run, watch in newest.items():
            attempt = runs[run].attempts.get(watch.attempt) if run in runs else None
            if attempt is not None:
                watch.look(attempt)
            watch.add_to(samples, attempt)
        for run, drain in list(runs.items())[:MOST_RUNS]:
            samples.add("megascope_store_writable", drain.problem == "", run)
        sampled = max(newest.values(), key=lambda watch: watch.hardware.seen_at, default=None)
        if sampled is not None:
            sampled.hardware.add_to(samples)
        self._add_own(samples, quota)
        return samples

    def _forget(self, runs: Mapping[str, RunDrain]) -> None:
        """Drop attempts that a newer one of their run has replaced, and the runs that ended first of too many."""
        live = {(run, number) for run, drain in runs.items() for number in drain.attempts}
        newest = dict(sorted(self._watches))
        for key in [key for key in self._watches if key not in live and newest[key[0]] != key[1]]:
            del self._watches[key]
        ended = [key for key in self._watches if key not in live]
        for key in ended[: max(0, len({run for run, _ in self._watches}) - MOST_RUNS)]:
            del self._watches[key]

    def _add_own(self, samples: Samples, quota: Quota) -> None:
        samples.add("megascope_agent_info", 1, host_name(), self._version)
        samples.add("megascope_agent_turn_age_seconds", 0.0)
        samples.add("megascope_agent_turn_seconds", self._turns_s, count=self._turns)
        used = self._process.cpu_times()
        samples.add("megascope_agent_cpu_seconds_total", used.user + used.system)
        samples.add("megascope_agent_resident_memory_bytes", self._process.memory_info().rss)
        if time.monotonic() >= self._measure_at:
            self._measure_at = time.monotonic() + MEASURE_S
            self._spool_bytes, self._spool_free, self._spool_disk = taken_bytes(self._spool), None, None
            with contextlib.suppress(OSError):
                self._spool_disk, _, self._spool_free = shutil.disk_usage(self._spool)
        samples.add("megascope_spool_bytes", self._spool_bytes)
        samples.add("megascope_spool_free_bytes", self._spool_free)
        samples.add("megascope_spool_disk_bytes", self._spool_disk)
        samples.add("megascope_store_bytes", quota.measured_bytes)
        samples.add("megascope_store_quota_bytes", quota.limit_bytes)


def taken_bytes(folder: Path) -> int:
    """Space that the files below a folder take on its disk, without their holes; what vanishes does not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118  (twice as fast as a Path)
            except OSError:
                continue
    return total
