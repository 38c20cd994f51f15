"""The overhead of recording, from shadow steps: right for a known cost, honest about noise, silent without data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.agent.agent import Agent
from megascope.collectors.overhead import compare_steps, median_interval, recording_overhead
from megascope.collectors.reading.store import Store
from megascope.profiler.cadence import Cadence
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from support.collecting import drain_all


def _steps(
    cadence: Cadence, count: int, cost: float, noise: float, seed: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Durations of timed and of shadow steps; the job slows down by half on the way."""
    random = np.random.default_rng(seed)
    durations = {s: (100 + 50 * s / count) * (1 + noise * random.standard_normal()) for s in range(count)}
    timed = {step: ns * (1 + cost) for step, ns in durations.items() if cadence.is_timed(step)}
    return timed, {step: ns for step, ns in durations.items() if not cadence.is_timed(step)}


@pytest.mark.parametrize("cadence", [Cadence("run", 1, 20), Cadence("run", 10), Cadence("run", 2, 8)])
def test_a_known_cost_is_found_under_drift(cadence: Cadence) -> None:
    excess = compare_steps(*_steps(cadence, 2000, 0.004, 0.0, 0))
    middle, low, high = median_interval(excess)
    assert middle == pytest.approx(0.4, abs=0.02)
    assert low is not None
    assert high is not None
    assert low <= 0.4 <= high or high - low < 0.02
    assert len(excess) > 80


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(200):
        _, low, high = median_interval(compare_steps(*_steps(Cadence(str(seed), 1, 20), 600, 0.01, 0.02, seed)))
        assert low is not None
        assert high is not None
        hits += low <= 1.0 <= high
    assert hits >= 180  # 95 % is 190; a binomial of 200 falls below 180 once in 600


def test_five_values_have_no_interval() -> None:
    assert median_interval([1.0] * 5) == (None, None, None)
    assert median_interval([3, 1, 2, 6, 5, 4]) == (3.5, 1, 6)
    assert median_interval(list(range(1, 26)))[1:] == (8, 18)  # the table of order statistics for n = 25


def test_steps_without_neighbours_on_both_sides_are_left_out() -> None:
    assert compare_steps({1: 2.0, 2: 2.0}, {0: 1.0}) == []
    assert compare_steps({1: 2.0, 3: 4.0, 4: 100.0}, {2: 1.0}) == [200.0]
    assert compare_steps({}, {2: 1.0}) == []


@pytest.fixture
def shadowed(spool: Path) -> Callable[[int], Recorder]:
    def opened(every: int) -> Recorder:
        recorder = open_recorder(
            RecorderSettings(run="run", attempt=0, rank=0, world_size=1, spool=spool, cadence=Cadence("run", 1, every))
        )
        assert isinstance(recorder, Recorder)
        return recorder

    return opened


def test_shadow_steps_reach_the_store_and_are_no_missing_data(
    shadowed: Callable[[int], Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    recorder = shadowed(5)
    work = recorder.segment("work")
    for step in range(60):
        recorder.step(step)
        for number in range(10):
            recorder.end(recorder.begin(work, number))
        time.sleep(0.001)
    recorder.close("finished")
    drain_all(agent())
    cadence = Cadence("run", 1, 5)
    with Store(store_root) as store:
        attempt = store.attempt()
        rows = store.query("SELECT step, shadow FROM steps ORDER BY step", attempt=attempt).to_pylist()
        assert [row["shadow"] for row in rows] == [not cadence.is_timed(step) for step in range(60)]
        counted = store.query("SELECT step, count(*) AS n FROM events GROUP BY step", attempt=attempt).to_pylist()
        assert {row["step"]: row["n"] for row in counted} == {s: 10 for s in range(60) if cadence.is_timed(s)}
        found = recording_overhead(store, attempt)
        health = store.query(
            "SELECT * FROM health WHERE metric LIKE 'recording_overhead%'", attempt=attempt
        ).to_pylist()
    assert {row["metric"].removeprefix("recording_overhead_percent"): row["value"] for row in health} == {
        "": found.percent, "_low": found.low, "_high": found.high,
    }  # fmt: skip
    assert {row["device"] for row in health} == {None}
    assert found.steps == 11
    assert found.percent is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.percent <= found.high
    assert found.spans_per_step == 10
    assert found.span_ns is not None
    assert found.step_ns is not None
    assert 50 < found.span_ns < 100_000
    assert found.calibrated_percent == pytest.approx(100 * found.span_ns * 10 / found.step_ns)


def test_without_shadow_steps_only_the_calibrated_cost_is_told(
    shadowed: Callable[[int], Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    recorder = shadowed(0)
    recorder.step(0)
    recorder.end(recorder.begin(recorder.segment("work")))
    recorder.close("finished")
    drain_all(agent())
    with Store(store_root) as store:
        found = recording_overhead(store, store.attempt())
    assert (found.percent, found.low, found.high, found.steps) == (None, None, None, 0)
    assert found.calibrated_percent is not None
