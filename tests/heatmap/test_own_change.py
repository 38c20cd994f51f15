"""A rank against its own past in a job of few ranks: warned of where it changed alone, nobody where load did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.heatmap.own_change import find_own_change
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.stragglers import judge
from megascope.profiler.topology import Topology
from support.noisy_job import Job, Noise, Slow, observations

RANKS, STEPS = 8, 300

SHARED_CORES = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.03, drift_memory=0.3, bias=0.4)
"""Ranks that differ by up to 40 % at all times."""


def drawn(seed: int, sigma: float = 0.1, steps: int = STEPS) -> FloatArray:
    """Work [R, S] of unlike ranks under a load that moves all of them."""
    random = np.random.default_rng(seed)
    own, load = random.normal(0, 0.08, (RANKS, 1)), np.cumsum(random.normal(0, 0.05, steps))
    result: FloatArray = 20 * np.exp(own + load + random.normal(0, sigma, (RANKS, steps)))
    return result


@pytest.mark.parametrize("first", [80, 150, 220])
def test_a_tenth_more_since_a_step_is_seen_though_the_ranks_differ_by_as_much(first: int) -> None:
    work = drawn(1, sigma=0.06)
    work[5, first:] *= 1.1
    found = find_own_change(work)
    assert found is not None
    assert found.row == 5
    assert found.first == pytest.approx(first, abs=10)
    assert np.exp(found.effect) == pytest.approx(1.1, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sigma=st.floats(0.01, 0.4), steps=st.integers(10, 320))
def test_load_that_moves_all_ranks_is_no_change(seed: int, sigma: float, steps: int) -> None:
    assert find_own_change(drawn(seed, sigma, steps)) is None


def test_two_ranks_that_change_alike_are_no_single_one() -> None:
    work = drawn(2)
    work[[4, 5], 150:] *= 1.15
    assert find_own_change(work) is None


def test_what_has_passed_is_no_change() -> None:
    work = drawn(3)
    work[5, 100:180] *= 1.2
    assert find_own_change(work) is None


def test_a_rank_that_was_always_slow_has_not_changed() -> None:
    work = drawn(4)
    work[5] *= 1.5
    assert find_own_change(work) is None


def test_few_ranks_few_steps_and_unmeasured_ranks_are_not_judged() -> None:
    work = drawn(1)
    work[5, 150:] *= 1.2
    assert find_own_change(work) is not None
    assert find_own_change(work[2:]) is None
    assert find_own_change(work[:, 115:190]) is None
    work[3] = np.nan
    assert find_own_change(work) is None


def test_the_verdict_warns_of_it_and_accuses_nobody() -> None:
    slow = [Slow(5, name, 1.1, 120) for name in ("forward", "backward")]
    job = Job(mesh=Topology.of(pp=2, dp=2, tp=2), steps=STEPS, noise=SHARED_CORES, slow=slow)
    judged = judge(observations(job, 2))
    assert judged.findings == ()
    [warning] = judged.warnings
    assert (warning.rank, warning.segment) == (5, "backward and forward")
    assert warning.since_step == pytest.approx(120, abs=20)
    assert warning.ratio_to_own_baseline == pytest.approx(1.1, abs=0.03)


def test_jobs_of_few_ranks_without_a_change_warn_of_nobody() -> None:
    job = Job(mesh=Topology.of(pp=2, dp=2, tp=2), steps=STEPS, noise=SHARED_CORES)
    assert [judge(observations(job, seed)).warnings for seed in range(20)] == [()] * 20
