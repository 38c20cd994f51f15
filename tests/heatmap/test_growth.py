"""Steps that became longer over the run with nobody to blame: not healthy; noise and passing trouble are no growth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.heatmap.growth import find_growth, find_longer
from megascope.heatmap.stragglers import judge
from megascope.heatmap.verdict import Outcome
from megascope.profiler.topology import Topology
from support.noisy_job import Job, Noise, observations

CALM = Noise(span_sigma=0.05, tail_share=0.0, drift_sigma=0.02, bias=0.02)


def steps_ms(seed: int, count: int, sigma: float = 0.03) -> np.ndarray:
    return 100 * np.exp(sigma * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize("since", [40, 60, 150])
def test_growth_and_its_beginning_are_found(since: int) -> None:
    took = steps_ms(1, 200)
    took[since:] *= 1.2
    found = find_growth(took, np.arange(10, 210))
    assert found is not None
    assert found.ratio == pytest.approx(1.2, rel=0.05)
    assert abs(found.since - since - 10) <= 3
    assert "x1.2" in found.note.reason


def test_a_slow_growth_is_found() -> None:
    found = find_growth(steps_ms(2, 200) * np.linspace(1, 1.4, 200), np.arange(200))
    assert found is not None
    assert found.ratio == pytest.approx(1.36, rel=0.05)


@given(st.integers(0, 10_000), st.integers(9, 300), st.sampled_from([0.01, 0.1, 0.4]))
def test_noise_is_no_growth(seed: int, count: int, sigma: float) -> None:
    found = find_growth(steps_ms(seed, count, sigma), np.arange(count))
    assert found is None or count < 30


@pytest.mark.parametrize("every", [2, 3])
def test_growth_is_found_beside_a_step_that_takes_longer_again_and_again(every: int) -> None:
    took = steps_ms(3, 160)
    took[::every] *= 1.3
    took[60:] *= 1.36
    assert find_growth(took, np.arange(160)) is not None


def test_passing_trouble_and_checkpoints_are_no_growth() -> None:
    took = steps_ms(3, 200)
    took[80:120] *= 3
    took[9::10] *= 4
    assert find_growth(took, np.arange(200)) is None
    assert find_growth(np.full(200, np.nan), np.arange(200)) is None
    assert find_growth(took[:8], np.arange(8)) is None


def test_a_job_that_became_slower_for_no_known_reason_is_not_healthy() -> None:
    seen = observations(Job(mesh=Topology.of(dp=8), chunks=1, noise=CALM), 1)
    assert judge(seen).outcome == Outcome.HEALTHY
    factor = np.where(seen.steps >= 70, 1.3, 1.0)
    judged = judge(replace(seen, step_ms=seen.step_ms * factor))
    assert (judged.outcome, judged.findings) == (Outcome.INSUFFICIENT, ())
    assert any(
        one.signal == "step-time"
        and "longer from about step 7" in one.reason
        and "nothing that was judged" in one.reason
        for one in judged.abstained
    )


@pytest.mark.parametrize(("first", "last"), [(30, 49), (15, 74), (70, 85)])
def test_a_stretch_of_longer_steps_is_told(first: int, last: int) -> None:
    took = steps_ms(4, 100)
    took[first : last + 1] *= 1.25
    found = find_longer(took, np.arange(5, 105))
    assert found is not None
    assert f"steps {first + 5} to {last + 5} took x1.2" in found.reason


@given(st.integers(0, 10_000), st.integers(9, 300), st.sampled_from([0.01, 0.05, 0.1, 0.3]))
def test_noise_is_no_stretch_of_longer_steps(seed: int, count: int, sigma: float) -> None:
    assert find_longer(steps_ms(seed, count, sigma), np.arange(count)) is None


def test_single_long_steps_are_no_stretch() -> None:
    took = steps_ms(3, 200)
    took[9::10] *= 4
    took[50:53] *= 5
    assert find_longer(took, np.arange(200)) is None
    assert find_longer(np.full(200, np.nan), np.arange(200)) is None


def test_a_job_with_a_stretch_of_longer_steps_that_nobody_explains_is_not_healthy() -> None:
    seen = observations(Job(mesh=Topology.of(dp=8), chunks=1, noise=CALM), 1)
    factor = np.where((seen.steps >= 20) & (seen.steps < 50), 1.4, 1.0)
    assert judge(replace(seen, step_ms=seen.step_ms * factor)).outcome == Outcome.INSUFFICIENT
