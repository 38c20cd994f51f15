"""Rollups of simulated jobs: what a mean over ten steps does not tell, their histograms do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, Outcome, Pattern, StragglerVerdict
from megascope.scoring.runs import ROLLUPS
from megascope.scoring.trials import Trial
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.noise import MeasuredNoise
from megascope.trainer.simulator.writing import simulate

LAYOUT = (("pp", 2), ("dp", 16), ("tp", 2))


def judged(root: Path, fault: str) -> StragglerVerdict:
    job = replace(Trial("", fault, LAYOUT, 11, looks_at_hangs=False).job(), noise=MeasuredNoise())
    simulate(job, root / "store", ROLLUPS, faults=[parse_fault(fault)])
    with Store(root / "store") as store:
        return find_stragglers(store, store.attempt())


@pytest.mark.parametrize("fault", ["factor=1.6:period=10", "factor=1.3:period=6:duty=0.4:steps=31-70"])
def test_bursts_shorter_than_a_window_are_throttling(tmp_path: Path, fault: str) -> None:
    [culprit] = judged(tmp_path, f"throttling:rank=9:{fault}").culprits
    assert (culprit.ranks, culprit.cause, culprit.pattern) == ((9,), Cause.THROTTLING, Pattern.INTERMITTENT)


@pytest.mark.parametrize(
    ("fault", "pattern"),
    [("factor=1.2:steps=55-70", Pattern.ONE_OFF), ("factor=1.1:steps=83-", Pattern.CHRONIC), ("factor=2", "chronic")],
)
def test_short_delays_are_slow_from_end_to_end(tmp_path: Path, fault: str, pattern: str) -> None:
    """Sixteen steps fill one window and a part of another: not enough for means, all of the steps for histograms."""
    [culprit] = judged(tmp_path, f"slow-gpu:rank=9:{fault}").culprits
    assert (culprit.ranks, culprit.cause, culprit.pattern) == ((9,), Cause.SLOW_COMPUTE, pattern)
    assert abs(culprit.steps[0] - (parse_fault(f"slow-gpu:rank=9:{fault}").first_step or 10)) < 10


def test_stalls_that_come_back_are_found_in_two_windows(tmp_path: Path) -> None:
    [culprit] = judged(tmp_path, "data-stall:rank=5:delay_ms=400:every=4:steps=53-67").culprits
    assert (culprit.ranks, culprit.cause, culprit.pattern) == ((5,), Cause.DATA_STALL, Pattern.INTERMITTENT)


def test_one_step_that_stalls_accuses_nobody(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "slow-gpu:rank=9:factor=4:steps=44-44")
    assert (verdict.culprits, verdict.verdict) == ((), Outcome.HEALTHY)
