"""Results of a step: brought to the host without waiting, and timed where they were computed."""

from __future__ import annotations

import time

import pytest
import torch

from megascope.trainer.readback import Readback, StepResult
from support.fake_cuda import FakeCuda


def test_a_step_on_a_device_is_timed_there_however_early_the_host_enqueues_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host runs ahead: steps of 10, 20 and 30 ms are enqueued at once, with 5 ms of something else between."""
    monkeypatch.setattr("megascope.trainer.readback.empty", lambda shape, **_: torch.empty(shape))
    cuda = FakeCuda()
    readback = Readback(cuda)
    for step in range(3):
        readback.begin()
        cuda.current.launch(10.0 * (step + 1))
        readback.push(step, torch.tensor([float(step)]))
        cuda.current.launch(5.0)
    assert readback.ready() == []
    cuda.now_ms = 36.0
    assert readback.ready() == [StepResult(0, [0.0], 10_000_000), StepResult(1, [1.0], 20_000_000)]
    assert cuda.synchronizations == 2  # of events that were complete: nobody waited
    assert cuda.now_ms == 36.0
    assert readback.ready(wait=True) == [StepResult(2, [2.0], 30_000_000)]


def test_a_step_on_a_cpu_lasts_from_its_beginning_to_its_results() -> None:
    readback = Readback()
    readback.begin()
    time.sleep(0.02)
    readback.push(7, torch.tensor([1.5]))
    time.sleep(0.1)
    (result,) = readback.ready()
    assert (result.step, result.values) == (7, [1.5])
    assert 20_000_000 <= result.duration_ns < 100_000_000


def test_results_of_some_steps_are_waited_for_and_later_ones_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megascope.trainer.readback.empty", lambda shape, **_: torch.empty(shape))
    cuda = FakeCuda()
    readback = Readback(cuda)
    for step in range(4):
        readback.begin()
        cuda.current.launch(10.0)
        readback.push(step, torch.tensor([float(step)]))
    assert [one.step for one in readback.ready(until=-2)] == []
    assert [one.step for one in readback.ready(until=1)] == [0, 1]
    assert cuda.now_ms == 20.0
