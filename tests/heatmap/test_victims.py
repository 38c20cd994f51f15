"""Whether others wait for a rank, in just the steps in which it takes longer: what tells work from waiting."""

from __future__ import annotations

import numpy as np
import pytest

from megascope.heatmap.compare import Comparison
from megascope.heatmap.detect import Noise, Raised
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.verdict import Pattern
from megascope.heatmap.victims import others_wait

RANKS, STEPS, ROW = 8, 60, 2
STALLS = [40, 44, 48, 52]
ONE = Raised(ROW, 40, 52, 4.0, 9.0, 0.3, Pattern.INTERMITTENT)


def stalling(stalls: list[int]) -> tuple[Comparison, FloatArray]:
    """One rank's work stalls for 300 ms; what the others then wait is returned beside."""
    rng = np.random.default_rng(0)
    own = rng.normal(3.0, 0.01, (RANKS, STEPS))
    own[ROW, stalls] += 300.0
    waits = rng.normal(50.0, 5.0, (RANKS, STEPS))
    waits[:, stalls] += 300.0
    waits[ROW, stalls] -= 300.0
    peers = np.full_like(own, 3.0)
    none = np.zeros(RANKS, bool)
    return Comparison(own, peers, np.log(own / peers), Noise(0.01, 0.01, 7), (ONE,), none), waits


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_the_others_wait_for_who_stalls(share: float) -> None:
    comparison, waits = stalling(STALLS)
    assert others_wait(ONE, comparison, np.zeros(RANKS, np.int64), 50.0 + share * (waits - 50.0))


def test_who_only_waits_makes_nobody_wait() -> None:
    comparison, _ = stalling(STALLS)
    waits = np.random.default_rng(1).normal(50.0, 5.0, (RANKS, STEPS))
    assert not others_wait(ONE, comparison, np.zeros(RANKS, np.int64), waits)


def test_waiting_at_other_times_is_not_for_it() -> None:
    comparison, _ = stalling(STALLS)
    _, waits = stalling([10, 14, 18, 22])
    assert not others_wait(ONE, comparison, np.zeros(RANKS, np.int64), waits)


def test_twice_may_be_chance_and_unknown_waiting_tells_nothing() -> None:
    comparison, waits = stalling(STALLS[:2])
    roles = np.zeros(RANKS, np.int64)
    assert not others_wait(ONE, comparison, roles, waits)
    comparison, waits = stalling(STALLS)
    assert not others_wait(ONE, comparison, roles, np.full_like(waits, np.nan))
