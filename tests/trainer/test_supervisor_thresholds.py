"""Thresholds of the detectors, as a command line changes them: what makes no sense is refused in a sentence."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.trainer.supervisor.detectors import grad_spikes, missed_heartbeats
from megascope.trainer.supervisor.signs import Beat, StepRecord
from megascope.trainer.supervisor.thresholds import MOST_STEPS, THRESHOLDS, Thresholds, thresholds_of


def test_without_changes_they_are_the_table() -> None:
    assert thresholds_of(()) == THRESHOLDS


@given(st.sampled_from([one.name for one in fields(Thresholds) if isinstance(one.default, int)]),
       st.integers(2, MOST_STEPS))  # fmt: skip
def test_each_count_can_be_changed(name: str, value: int) -> None:
    assert thresholds_of([f"{name.replace('_', '-')}={value}"]) == replace(THRESHOLDS, **{name: value})


def test_a_changed_threshold_is_the_one_that_a_detector_has() -> None:
    limits = thresholds_of(["grad_factor=5", "heartbeat_s=2.5"])
    steps = [StepRecord(number, 1e8, grad_norm=1.0) for number in range(20)]
    for norm, count in ((4.9, 0), (5.1, 1)):
        assert len(grad_spikes([*steps, StepRecord(20, 1e8, grad_norm=norm)], limits)) == count
    beats = [Beat(0, "a", 3 * 10**9), Beat(1, "b", 0)]
    assert len(missed_heartbeats(beats, limits)) == 1
    assert missed_heartbeats(beats) == []


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["grad_factor"], "'grad_factor' is none, or given twice: give NAME=VALUE, NAME one of heartbeat_s, slow_f"),
        (["grads=2"], "'grads=2' is none"),
        (["grad_factor=2", "grad-factor=3"], "given twice"),
        (["grad_factor=many"], "has no value that can be used: give a number."),
        (["slow_steps=2.5"], "give a whole number"),
        (["grad_factor=1"], "grad_factor is 1.0: give a factor above 1."),
        (["heartbeat_s=0"], "heartbeat_s is 0.0: give a number above 0."),
        (["heartbeat_s=nan"], "heartbeat_s is nan"),
        (["storage_s=inf"], "storage_s is inf"),
        (["slow_steps=0"], "slow_steps is 0: give 1 to 150 steps."),
        (["baseline_steps=1"], "baseline_steps is 1: give 2 to 150 steps."),
        (["loss_steps=151"], "loss_steps is 151"),
        (["throughput_share=1"], "throughput_share is 1.0: give less than 1."),
    ],
)
def test_what_makes_no_sense_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        thresholds_of(texts)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
