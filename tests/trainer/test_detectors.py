"""Detectors of trouble: each speaks on what it is for, and on a healthy job none does."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megascope.trainer.supervisor.detectors import (
    ECC_METRIC,
    XID_METRIC,
    device_errors,
    grad_spikes,
    loss_divergence,
    missed_heartbeats,
    not_finite,
    off_baseline,
    signs_of,
    slow_ranks,
    storage_stalls,
    throughput_decline,
)
from megascope.trainer.supervisor.signs import Beat, Detector, DeviceReading, StepRecord
from megascope.trainer.supervisor.thresholds import Thresholds

MS = 1e6


def step(number: int, duration_ms: float | None = 100.0, **more: object) -> StepRecord:
    duration_ns = None if duration_ms is None else duration_ms * MS
    by_rank = {} if duration_ns is None else {rank: duration_ns * (1 + rank / 1000) for rank in range(4)}
    record = StepRecord(number, duration_ns, loss=3.0, grad_norm=1.0, tokens=1000, by_rank_ns=by_rank)
    return replace(record, **more)  # type: ignore[arg-type]


def steps(durations: Sequence[float]) -> list[StepRecord]:
    return [step(number, duration) for number, duration in enumerate(durations)]


def beat(rank: int, age_s: float = 0.0, **more: object) -> Beat:
    return replace(Beat(rank, f"node-{rank // 2}", 10**18 - int(age_s * 1e9)), **more)  # type: ignore[arg-type]


def test_a_rank_that_is_slow_for_three_steps_is_told() -> None:
    slow = [step(number, 100.5 / MS, by_rank_ns={1: 101.0, 3: 160.0}) for number in range(3)]
    (sign,) = slow_ranks(slow)
    assert (sign.detector, sign.ranks, sign.step) == (Detector.SLOW_RANK, (3,), 2)
    assert sign.value == pytest.approx(160 / 100.5)
    assert "rank 3 took 1.59 times the median of all ranks or more for 3 steps" in sign.sentence


def test_two_slow_steps_are_not_enough() -> None:
    slow = [step(number, 100 / MS, by_rank_ns={0: 100.0, 1: 100.0, 2: 100.0, 3: 160.0}) for number in range(2)]
    assert slow_ranks([*slow, step(2)]) == []
    assert slow_ranks(slow) == []


@pytest.mark.parametrize(
    ("after", "speaks"), [((160, 160, 160), True), ((160, 110, 160), False), ((140, 140, 140), False)]
)
def test_steps_are_held_against_those_before(after: tuple[float, ...], speaks: bool) -> None:
    found = off_baseline(steps([*[100.0] * 20, *after]))
    assert [sign.detector for sign in found] == [Detector.OFF_BASELINE] * speaks


def test_a_noisy_baseline_asks_for_more() -> None:
    noisy = [60.0 if number % 2 else 140.0 for number in range(20)]
    assert off_baseline(steps([*noisy, 200, 200, 200])) == []
    assert off_baseline(steps([*noisy, 400, 400, 400])) != []


def test_a_short_baseline_says_nothing() -> None:
    assert off_baseline(steps([*[100.0] * 9, 500, 500, 500])) == []
    assert off_baseline(steps([*[100.0] * 10, 500, 500, 500])) != []


def test_throughput_that_falls_is_told() -> None:
    (sign,) = throughput_decline(steps([*[100.0] * 20, *[150.0] * 10]))
    assert sign.value == pytest.approx(2 / 3)
    assert "6,667 tokens/s over the last 10 steps, 10,000 at best before (67%)" in sign.sentence
    assert throughput_decline(steps([*[100.0] * 20, *[140.0] * 10])) == []


def test_a_gradient_norm_over_three_times_its_mean_is_told() -> None:
    calm = [step(number, grad_norm=1.0 + number % 2) for number in range(20)]
    (sign,) = grad_spikes([*calm, step(20, grad_norm=4.6)])
    assert sign.step == 20
    assert sign.value == pytest.approx(4.6 / 1.5)
    assert grad_spikes([*calm, step(20, grad_norm=4.4)]) == []
    found = grad_spikes([*calm, step(20, grad_norm=9.0), step(21), step(22, grad_norm=1.0), step(23, grad_norm=12.0)])
    assert [one.step for one in found] == [20, 23]
    assert grad_spikes([*calm, step(20, grad_norm=None)]) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_the_first_step_and_rank_without_a_finite_value_are_told(name: str, value: float) -> None:
    later = step(6, **{name: value, "first_bad_rank": 0})
    (sign,) = not_finite([step(4), step(5, **{name: value, "first_bad_rank": 3}), later])
    assert (sign.step, sign.ranks) == (5, (3,))
    assert "step 5" in sign.sentence
    assert "first on rank 3" in sign.sentence


def test_a_loss_that_is_missing_is_no_sign() -> None:
    assert not_finite([step(0, loss=None, grad_norm=None)]) == []


def test_a_loss_that_rises_and_stays_up_is_told() -> None:
    falling = [step(number, loss=5.0 - number / 20) for number in range(40)]
    rising = [step(40 + number, loss=3.0 + number / 5) for number in range(10)]
    (sign,) = loss_divergence([*falling, *rising])
    assert sign.detector is Detector.DIVERGENCE
    assert loss_divergence([*falling, step(40, loss=9.0), step(41, loss=3.0)]) == []


def test_ranks_that_fall_silent_while_others_speak_are_told() -> None:
    (sign,) = missed_heartbeats([beat(0), beat(1, 3.0), beat(2, 16.0), beat(3, 20.0)])
    assert (sign.ranks, sign.hosts) == ((2, 3), ("node-1",))
    assert sign.sentence == "ranks 2, 3 on node-1 gave no heartbeat for 20 s, while others did"
    assert missed_heartbeats([beat(rank, 100.0) for rank in range(4)]) == []
    assert missed_heartbeats([]) == []


def test_storage_that_takes_too_long_is_told() -> None:
    stuck = beat(2, storage="checkpoint_write", storage_age_s=61.0)
    (sign,) = storage_stalls([beat(0, storage="data_read", storage_age_s=59.0), stuck])
    assert (sign.ranks, sign.hosts, sign.value) == ((2,), ("node-1",), 61.0)
    assert "checkpoint_write has been in flight for 61 s on rank 2" in sign.sentence


def test_memory_errors_that_become_more_are_told() -> None:
    def reading(value: float, moment: int, device: str = "GPU-1") -> DeviceReading:
        return DeviceReading("node-1", device, moment, ECC_METRIC, value)

    (sign,) = device_errors([reading(3, 2), reading(1, 1), reading(5, 1, "GPU-2")])
    assert (sign.detector, sign.hosts, sign.value) == (Detector.ECC, ("node-1",), 2)
    assert device_errors([reading(3, 1), reading(3, 2)]) == []


@pytest.mark.parametrize(
    ("xid", "speaks"), [(79, True), (48, True), (999, True), (13, False), (31, False), (69, False)]
)
def test_xids_that_no_program_causes_are_told(xid: int, speaks: bool) -> None:
    found = device_errors([DeviceReading("node-1", "0000:9b:00", 1, XID_METRIC, xid)])
    again = device_errors([DeviceReading("node-1", "0000:9b:00", moment, XID_METRIC, xid) for moment in (2, 1)])
    assert found == again
    assert [sign.detector for sign in found] == [Detector.XID] * speaks
    assert not speaks or found[0].hosts == ("node-1",)


@given(st.integers(0, 10_000), st.integers(30, 200))
def test_a_healthy_job_gives_no_sign(seed: int, count: int) -> None:
    draw = random.Random(seed)
    healthy = []
    for number in range(count):
        base = 100 * draw.gauss(1, 0.05)
        by_rank = {rank: base * draw.gauss(1, 0.03) * MS for rank in range(8)}
        loss, norm = 2 + 3 / (1 + number / 20) + draw.gauss(0, 0.05), max(0.2, draw.gauss(1, 0.15))
        record = StepRecord(number, base * MS, loss=loss, grad_norm=norm, tokens=1000, by_rank_ns=by_rank)
        healthy.append(record)
    beats = [beat(rank, draw.uniform(0, 5)) for rank in range(8)]
    assert list(signs_of(healthy, beats)) == []


durations = st.one_of(st.none(), st.floats(0, 1e12))
numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@example([(None, 3.0, norm, 1) for norm in (6.3e303, 1.7976299654662702e308, 0.0)])
@given(st.lists(st.tuples(durations, numbers, numbers, st.one_of(st.none(), st.integers(0, 10**9))), max_size=40))
def test_no_detector_fails_whatever_is_missing(rows: list[tuple[float | None, ...]]) -> None:
    records = [
        StepRecord(number, row[0], loss=row[1], grad_norm=row[2], tokens=None if row[3] is None else int(row[3]))
        for number, row in enumerate(rows)
    ]
    for sign in signs_of(records, limits=Thresholds(baseline_steps=4, throughput_steps=2, grad_steps=4, loss_steps=2)):
        assert sign.sentence
