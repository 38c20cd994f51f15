"""Bursts and stalls that come back are found where nobody else has them, and are nothing where everybody does."""

from __future__ import annotations

import numpy as np
import pytest

from megascope.heatmap.detect import Noise, Raised, measure_noise
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.recurring import find_recurring, with_gaps
from megascope.heatmap.verdict import Pattern

ROWS, STEPS, MEAN_MS = 32, 100, 10.0


def found(ratios: FloatArray) -> list[tuple[int, int, int]]:
    noise = measure_noise(np.log(ratios))
    assert noise is not None
    peers = np.full_like(ratios, MEAN_MS)
    raised = find_recurring(np.log(ratios), ratios * MEAN_MS, peers, noise, np.full(STEPS, 100.0))
    assert all(one.pattern == Pattern.INTERMITTENT for one in raised)
    return [(one.row, one.first, one.last) for one in raised]


def calm(seed: int = 0) -> FloatArray:
    return np.asarray(np.random.default_rng(seed).lognormal(0, 0.02, (ROWS, STEPS)))


def test_two_bursts_are_enough_where_nobody_else_has_one() -> None:
    ratios = calm()
    ratios[5, 60:64] *= 1.4
    ratios[5, 75:79] *= 1.4
    assert found(ratios) == [(5, 60, 78)]


def test_three_stalls_are_enough_where_nobody_else_has_one() -> None:
    ratios = calm()
    ratios[7, [50, 54, 58]] *= 8
    assert found(ratios) == [(7, 50, 58)]


@pytest.mark.parametrize("steps", [[60, 61, 62, 63], [50, 54], [50]])
def test_once_is_not_again(steps: list[int]) -> None:
    ratios = calm()
    ratios[5, steps] *= 8
    assert found(ratios) == []


@pytest.mark.parametrize(("rows", "share"), [(16, 0.015), (64, 0.001), (64, 0.004)])
def test_what_a_few_have_by_chance_is_nothing(rows: int, share: float) -> None:
    """Stalls strewn evenly: most rows have none, and the few that have several are no more than chance gives."""
    named = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        ratios = np.asarray(rng.lognormal(0, 0.02, (rows, STEPS)))
        ratios[rng.random(ratios.shape) < share] *= 8
        named += bool(found(ratios))
    assert named <= 1


def test_what_everybody_has_is_chance() -> None:
    ratios, rng = calm(), np.random.default_rng(1)
    for row in range(ROWS):
        ratios[row, rng.choice(STEPS, 3, replace=False)] *= 8
    assert found(ratios) == []


@pytest.mark.parametrize("rows", [1, 11])
def test_few_rows_tell_nothing_about_chance(rows: int) -> None:
    ratios = calm()[:rows]
    ratios[0, [50, 54, 58]] *= 8
    assert found(ratios) == []


def test_jobs_without_trouble_have_none() -> None:
    assert [one for seed in range(50) if (one := found(calm(seed)))] == []


@pytest.mark.parametrize(
    ("quiet", "pattern"), [(slice(26, 32), Pattern.INTERMITTENT), (slice(26, 28), Pattern.CHRONIC), (None, "chronic")]
)
def test_a_stretch_with_a_gap_comes_and_goes(quiet: slice | None, pattern: str) -> None:
    logs = np.log(calm()[0])
    logs[20:] += 0.3
    if quiet is not None:
        logs[quiet] -= 0.3
    one = Raised(0, 20, STEPS - 1, 0.3, 50.0, 0.9, Pattern.CHRONIC, to_the_end=True)
    assert with_gaps(one, logs, Noise(0.02, 0.01, 12)).pattern == pattern


def test_no_gap_is_seen_in_noise_as_large_as_the_effect() -> None:
    logs = np.random.default_rng(3).normal(0.3, 0.3, STEPS)
    one = Raised(0, 0, STEPS - 1, 0.3, 50.0, 0.9, Pattern.CHRONIC, to_the_end=True)
    assert with_gaps(one, logs, Noise(0.3, 0.1, 12)) == one
