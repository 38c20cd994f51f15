"""Stretches, bursts and stalls in rows of log-ratios, on rows whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.heatmap.detect import (
    Noise,
    find_bursts,
    find_raised,
    find_stalls,
    measure_noise,
    peak_levels,
    spread_of_others,
)
from megascope.heatmap.thresholds import Thresholds
from megascope.heatmap.verdict import Pattern


def rows(seed: int, count: int = 8, steps: int = 120, sigma: float = 0.08) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, sigma, (count, steps))


@pytest.mark.parametrize(
    ("first", "last", "pattern"), [(20, 119, Pattern.CHRONIC), (0, 119, Pattern.CHRONIC), (30, 60, Pattern.ONE_OFF)]
)
def test_the_stretch_is_found(first: int, last: int, pattern: Pattern) -> None:
    logs = rows(1)
    logs[5, first : last + 1] += math.log(1.5)
    noise = measure_noise(logs)
    assert noise is not None
    found = find_raised(5, logs[5], noise, float(peak_levels(logs)[5]))
    assert found is not None
    assert abs(found.first - first) <= 2
    assert abs(found.last - last) <= 2
    assert math.exp(found.effect) == pytest.approx(1.5, rel=0.05)
    assert found.pattern == pattern


def test_a_growing_delay_is_drifting() -> None:
    logs = rows(2)
    logs[3] += np.linspace(0, math.log(2), 120)
    noise = measure_noise(logs)
    assert noise is not None
    found = find_raised(3, logs[3], noise, float(peak_levels(logs)[3]))
    assert found is not None
    assert found.pattern == Pattern.DRIFTING


def test_missing_steps_do_not_move_the_stretch() -> None:
    logs = rows(3)
    logs[5, 20:] += 0.4
    logs[5, 40:60] = np.nan
    noise = measure_noise(logs)
    assert noise is not None
    found = find_raised(5, logs[5], noise, 0.4)
    assert found is not None
    assert (found.first, found.last) == (20, 119)


def test_autocorrelated_noise_is_not_taken_for_evidence() -> None:
    """The standard error over 120 steps follows the noise's memory: about sqrt((1 + m) / (1 - m)) of white noise."""
    rng = np.random.default_rng(4)
    logs = np.zeros((64, 400))
    for step in range(1, 400):
        logs[:, step] = 0.8 * logs[:, step - 1] + rng.normal(0, 0.06, 64)
    noise, white = measure_noise(logs), measure_noise(rng.permuted(logs, axis=1))
    assert noise is not None
    assert white is not None
    assert 2 < noise.standard_error(120) / white.standard_error(120) < 4
    means = np.median(logs[:, 200:320], axis=1)
    assert noise.standard_error(120) == pytest.approx(means.std(), rel=0.4)


def test_bursts_are_told_from_tails_that_all_ranks_have() -> None:
    logs = rows(5)
    for row in range(8):
        logs[row, row::30] += 1.0
    assert find_bursts(logs, Noise(0.08, 0.05, 15)) == []
    logs[5, ::5] += 1.0
    found = find_bursts(logs, Noise(0.08, 0.05, 15))
    assert [(one.row, one.pattern) for one in found] == [(5, Pattern.INTERMITTENT)]


@pytest.mark.parametrize(("period", "length"), [(15, 4), (10, 5), (6, 2)])
def test_few_long_bursts_are_found_as_many_short_ones_are(period: int, length: int) -> None:
    logs = rows(5)
    for row in (0, 1, 2, 3, 4, 6, 7):
        logs[row, row::30] += 1.0
    at = np.arange(logs.shape[1])
    logs[5, at % period < length] += 0.6
    [found] = find_bursts(logs, Noise(0.08, 0.05, 15))
    assert (found.row, found.pattern) == (5, Pattern.INTERMITTENT)
    assert found.burst_steps == pytest.approx(length, rel=0.2)


def test_one_long_bad_stretch_is_no_pattern_of_bursts() -> None:
    logs = rows(5)
    logs[5, 30:70] += 0.6
    assert find_bursts(logs, Noise(0.08, 0.05, 15)) == []


def test_a_stall_of_many_steps_is_found_in_its_one_cell() -> None:
    own, peers = np.full((4, 50), 10.0), np.full((4, 50), 10.0)
    own[2, 30] = 3000.0
    found = find_stalls(own, peers, np.full(50, 100.0), 10)
    assert [(one.row, one.first, one.last) for one in found] == [(2, 30, 30)]
    assert find_stalls(own, peers, np.full(50, np.nan), 10) == []


def test_the_spread_leaves_out_the_mirror_image_of_a_pair() -> None:
    levels = np.array([0.4, -0.4, 0.01, -0.01])
    assert spread_of_others(levels, 0, np.array([0, 0, 1, 1])) < 0.05
    assert spread_of_others(levels, 0, np.array([0, 0, 0, 0])) > 0.01


@given(st.integers(2, 20_000), st.integers(20, 5000))
def test_more_tries_need_more_evidence(ranks: int, steps: int) -> None:
    thresholds = Thresholds()
    whole = thresholds.needed_z(ranks, steps, steps, True)
    assert thresholds.needed_z(2 * ranks, steps, steps, True) > whole
    assert thresholds.needed_z(ranks, steps, steps // 2, True) > whole
    assert thresholds.needed_z(ranks, steps, steps // 2, False) > thresholds.needed_z(ranks, steps, steps // 2, True)


def test_too_little_data_has_no_noise() -> None:
    assert measure_noise(np.full((4, 20), np.nan)) is None
    assert measure_noise(np.zeros((2, 3))) is None


def test_what_is_usual_is_taken_from_a_rows_own_stage() -> None:
    """All of a restless stage have bursts, so none of them stands out; one of a quiet stage with as many does."""
    roles, noise = np.repeat([0, 1], [10, 9]), Noise(0.08, 0.05, 15)
    logs = np.random.default_rng(8).normal(0, 0.08, (19, 120))
    for row in range(10, 19):
        logs[row, row % 5 :: 5] += 0.6
    assert find_bursts(logs, noise)
    assert find_bursts(logs, noise, roles=roles) == []
    logs[3, ::5] += 0.6
    assert [one.row for one in find_bursts(logs, noise, roles=roles)] == [3]


def test_the_one_peer_of_a_rank_is_no_yardstick_by_itself() -> None:
    """Of two ranks of a stage one may be quiet by chance: what all others have counts too."""
    roles, noise = np.repeat([0, 1, 2, 3], 2), Noise(0.08, 0.05, 15)
    logs = np.random.default_rng(9).normal(0, 0.08, (8, 120))
    for row in range(1, 8):
        logs[row, row % 5 :: 5] += 0.6
    assert find_bursts(logs, noise, roles=roles) == []
