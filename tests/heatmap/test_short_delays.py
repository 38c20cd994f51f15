"""Delays that fill few columns: of windows, and of long runs. Found, or said not to be, but never called healthy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.heatmap.detect import peak_levels, search_windows
from megascope.heatmap.stragglers import Judgement, judge
from megascope.heatmap.thresholds import Thresholds
from megascope.heatmap.verdict import Outcome
from megascope.profiler.topology import Topology
from support.noisy_job import Job, Noise, Slow, observations
from support.windowed import windowed

MESH = Topology.of(pp=2, dp=8, tp=2)
CALM = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.02)


def of_windows(factor: float, first: int, last: int = 99, *, width: int = 10, steps: int = 100) -> Judgement:
    job = Job(mesh=MESH, steps=steps, chunks=1, noise=CALM, slow=[Slow(9, "forward", factor, first, last)])
    return judge(windowed(observations(job, 3), width))


def named(judgement: Judgement) -> set[int]:
    return {one.rank for one in judgement.findings}


@pytest.mark.parametrize(
    ("factor", "first", "last"), [(3.0, 60, 99), (2.0, 70, 99), (1.3, 33, 67), (1.3, 60, 99), (1.6, 80, 99)]
)
def test_a_delay_in_few_of_the_windows_is_found(factor: float, first: int, last: int) -> None:
    assert named(of_windows(factor, first, last)) == {9}


@pytest.mark.parametrize(("factor", "first", "last"), [(1.3, 80, 99), (2.0, 60, 79), (2.0, 61, 80), (3.0, 44, 58)])
def test_a_delay_in_too_few_windows_forbids_the_word_healthy_and_names_them(
    factor: float, first: int, last: int
) -> None:
    judgement = of_windows(factor, first, last)
    assert (judgement.outcome, judgement.findings) == (Outcome.INSUFFICIENT, ())
    [reason] = [one.reason for one in judgement.abstained if one.signal == "forward"]
    assert reason.startswith("rank 9 takes x")
    assert f"windows of steps {first // 10 * 10} to " in reason


@settings(deadline=None, max_examples=60)
@given(first=st.integers(10, 85), length=st.integers(15, 40), factor=st.sampled_from([1.3, 2.0]))
def test_what_single_steps_show_is_never_healthy_from_windows(first: int, length: int, factor: float) -> None:
    job = Job(mesh=MESH, steps=100, chunks=1, noise=CALM, slow=[Slow(9, "forward", factor, first, first + length - 1)])
    seen = observations(job, 3)
    if judge(seen).findings:
        assert judge(windowed(seen)).outcome != Outcome.HEALTHY


def test_one_window_of_hundred_steps_may_hide_a_delay() -> None:
    judgement = of_windows(2.0, 640, 669, width=100, steps=1100)
    assert (judgement.outcome, judgement.findings) == (Outcome.INSUFFICIENT, ())
    assert any("the window of steps 600 to 699" in one.reason for one in judgement.abstained)


def test_a_single_step_that_stalls_hides_no_delay() -> None:
    judgement = of_windows(4.0, 55, 55)
    assert (judgement.outcome, judgement.findings) == (Outcome.HEALTHY, ())
    assert any("fewer than 39 steps" in one.reason for one in judgement.abstained if one.signal == "short-trouble")


@pytest.mark.parametrize("noise", [CALM, Noise()])
def test_healthy_jobs_seen_through_windows_name_nobody(noise: Noise) -> None:
    job = Job(mesh=MESH, steps=100, chunks=1, noise=noise)
    judged = [judge(windowed(observations(job, seed))) for seed in range(30)]
    assert [one.findings for one in judged if one.findings] == []
    if noise is CALM:
        assert [one.outcome for one in judged] == [Outcome.HEALTHY] * 30


def test_the_last_steps_of_a_long_run_are_searched() -> None:
    job = Job(mesh=Topology.of(dp=8), steps=1000, noise=CALM, chunks=1, slow=[Slow(3, "forward", 2.0, 950)])
    [found] = judge(observations(job, 1)).findings
    assert (found.rank, found.steps[1]) == (3, 999)
    assert abs(found.steps[0] - 950) <= 2


@settings(deadline=None)
@given(st.integers(15, 3000), st.integers(2, 15))
def test_no_window_hides_the_shortest_stretch(steps: int, shortest: int) -> None:
    assert min(search_windows(steps, shortest)) <= shortest
    logs = np.zeros((2, steps))
    logs[1, steps - shortest :] = 0.5
    levels = peak_levels(logs, min(search_windows(steps, shortest)), math.log(Thresholds().min_ratio))
    assert math.isnan(levels[0])
    assert levels[1] == 0.5


@pytest.mark.parametrize("sigma", [0.03, 0.2])
def test_levels_that_are_not_high_enough_are_left_out_and_others_are_exact(sigma: float) -> None:
    logs = np.random.default_rng(1).normal(0, sigma, (500, 120))
    logs[np.random.default_rng(2).random(logs.shape) < 0.1] = np.nan
    logs[77, 100:] += 0.4
    for window in search_windows(120, 2):
        every, high = peak_levels(logs, window), peak_levels(logs, window, math.log(1.1))
        np.testing.assert_array_equal(high, np.where(every >= math.log(1.1), every, np.nan))
        assert np.isfinite(high[77])
