"""A short burst accuses a rank that is slow in all its compute, alone among many; not at one segment, nor of many."""

from __future__ import annotations

import numpy as np
import pytest

from megascope.heatmap.detect import Noise as Deviations
from megascope.heatmap.recurring import find_brief
from megascope.heatmap.stragglers import judge
from megascope.heatmap.verdict import Pattern
from megascope.profiler.topology import Topology
from megascope.scoring.runs import run_trial
from megascope.scoring.trials import Trial, looks_like
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.noise import MeasuredNoise
from support.noisy_job import Job, Noise, Slow, observations

CALM = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.02)
MESH = Topology.of(pp=2, dp=16)


def named(ranks: list[int], segments: tuple[str, ...], first: int, last: int, factor: float = 1.8) -> set[int]:
    slow = [Slow(rank, name, factor, first, last) for rank in ranks for name in segments]
    judged = judge(observations(Job(mesh=MESH, chunks=1, noise=CALM, slow=slow), 5))
    assert all(one.steps == (first, last) and one.pattern == Pattern.ONE_OFF for one in judged.findings)
    return {one.rank for one in judged.findings}


@pytest.mark.parametrize(("first", "last"), [(50, 53), (50, 54), (115, 119)])
def test_one_burst_in_all_compute_is_named(first: int, last: int) -> None:
    assert named([9], ("forward", "backward"), first, last) == {9}


def test_too_little_is_not_named() -> None:
    assert named([9], ("forward",), 50, 54) == set()
    assert named([9], ("forward", "backward"), 50, 52) == set()
    assert named([9], ("forward", "backward"), 50, 54, factor=1.2) == set()


def test_what_several_ranks_have_is_usual() -> None:
    assert named([3, 9], ("forward", "backward"), 50, 54) == {3, 9}
    assert named([3, 7, 9], ("forward", "backward"), 50, 54) == set()


def test_bursts_of_one_row_are_one_stretch_that_comes_and_goes() -> None:
    logs = np.zeros((16, 60))
    logs[4, 10:14] = logs[4, 40:45] = np.log(1.5)
    [one] = find_brief(logs, Deviations(0.01, 0.01, 8))
    assert (one.row, one.first, one.last, one.pattern, one.burst_steps) == (4, 10, 44, Pattern.INTERMITTENT, 4.5)


@pytest.mark.parametrize("on_rollups", [False, True])
def test_a_single_burst_of_a_simulated_job_is_named(on_rollups: bool) -> None:
    fault = "throttling:rank=13:factor=1.7:period=40:duty=0.12:steps=62-"
    layout = (("pp", 2), ("dp", 16), ("tp", 2))
    outcome = run_trial(Trial("throttling", fault, layout, 77, False, on_rollups=on_rollups), MeasuredNoise())
    assert outcome.failure is None
    assert (outcome.comparison.found, outcome.comparison.wrong) == (True, ())


@pytest.mark.parametrize(
    ("steps", "is_alone"), [("81-", True), ("80-", False), ("70-89", False), ("70-88", True), ("0-", False)]
)
def test_throttling_that_comes_back_not_once_is_a_slow_device_as_well(steps: str, is_alone: bool) -> None:
    fault = parse_fault(f"throttling:rank=1:factor=1.5:period=15:duty=0.33:steps={steps}")
    assert looks_like(fault, 100) == ({"slow-gpu"} if is_alone else set())


@pytest.mark.parametrize(
    ("steps", "on_rollups", "is_one_stretch"),
    [
        ("70-", True, True),
        ("70-", False, False),
        ("69-", True, False),
        ("65-", True, False),
        ("60-89", True, True),
        ("60-90", True, False),
    ],
)
def test_throttling_within_two_windows_is_a_slow_device_as_well_on_rollups(
    steps: str, on_rollups: bool, is_one_stretch: bool
) -> None:
    """Steps 70 to 73 and 85 to 88 are four in each of two windows, as steps 76 to 83 are."""
    fault = parse_fault(f"throttling:rank=1:factor=1.8:period=15:duty=0.3:steps={steps}")
    assert looks_like(fault, 100, on_rollups=on_rollups) == ({"slow-gpu"} if is_one_stretch else set())
