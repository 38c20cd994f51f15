"""Attempts that are judged already, for the fleet's statistics."""

from __future__ import annotations

import numpy as np

from megascope.collectors.reading.attempts import Attempt
from megascope.heatmap.fleet.history import History
from megascope.heatmap.fleet.lost import LostBy, lost_shares
from megascope.heatmap.mfu.steps import StepSeries
from megascope.heatmap.verdict import Cause, Culprit, CulpritKind, Outcome, Pattern, Severity, StragglerVerdict

WEEK_NS = 7 * 86_400 * 10**9
START_NS = 1_790_000_000 * 10**9  # a Monday, 2026-09-21


def culprit(
    host: str, lost: float, steps: tuple[int, int] = (0, 99), kind: CulpritKind = CulpritKind.RANK
) -> Culprit:  # fmt: skip
    hosts = tuple(host.split("+")) if host else ()
    return Culprit(
        (0,), hosts, 0.9, Severity.LOW, kind, Cause.SLOW_COMPUTE, "forward", 1.3, steps, Pattern.CHRONIC, lost, ()
    )


def history(
    number: int, hosts: list[str], *culprits: Culprit, verdict: Outcome | None = None, ms: float = 1000.0
) -> History:
    steps = np.arange(100)
    series = StepSeries(
        steps, START_NS + steps * int(ms * 1e6), np.full(100, ms), np.full(100, 0.4), np.full(100, 1e6), steps >= 0
    )
    found = verdict or (Outcome.FINDINGS if culprits else Outcome.HEALTHY)
    return History(
        "store", Attempt(f"run{number}", 0), StragglerVerdict(f"run{number}", 0, None, found, culprits), series,
        tuple(hosts), len(hosts), lost_shares(series, culprits), LostBy.LOST_SHARE,
    )  # fmt: skip


def hosts_of(count: int) -> list[str]:
    return [f"node{number:04d}" for number in range(count)]
