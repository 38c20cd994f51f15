"""Every layout computes what one process computes, and one process computes what plain torch computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from megascope.profiler.null import NullRecorder
from megascope.trainer.config import Precision
from megascope.trainer.loop import Trainer, TrainResult
from support.forkrun import run_ranks
from support.plain_model import PlainResult, plain_training
from support.training import run_config, small_config

STEPS = 6
LAYOUTS = {
    "tp2": {"tp": 2},
    "pp2-v1": {"pp": 2, "parallel_block": True, "window": 8},
    "pp2-v2": {"pp": 2, "chunks": 2, "window": 8},
    "dp2": {"dp": 2, "parallel_block": True},
    "tp2-pp2-dp2-v2": {"tp": 2, "pp": 2, "dp": 2, "chunks": 2, "window": 8},
    "tp2-pp2-dp2-v2-parallel": {"tp": 2, "pp": 2, "dp": 2, "chunks": 2, "parallel_block": True},
}


@cache
def single_process(precision: Precision, parallel_block: bool, window: int | None) -> TrainResult:
    config = small_config(steps=STEPS, precision=precision, parallel_block=parallel_block, window=window)
    return run_config(config)[0]


def run_layout(layout: dict[str, Any], precision: Precision) -> tuple[list[TrainResult], TrainResult]:
    reference = single_process(precision, layout.get("parallel_block", False), layout.get("window"))
    return run_config(small_config(steps=STEPS, precision=precision, **layout)), reference


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.timeout(60)
def test_fp64_losses_and_gradient_norms_equal_one_process(layout: dict[str, Any]) -> None:
    results, reference = run_layout(layout, Precision.FP64)
    assert len(reference.losses) == STEPS
    for result in results:
        np.testing.assert_allclose(result.losses, reference.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, reference.grad_norms, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", list(LAYOUTS.values())[:5], ids=list(LAYOUTS)[:5])
@pytest.mark.timeout(60)
def test_fp32_losses_stay_within_8_units_in_the_last_place(layout: dict[str, Any]) -> None:
    results, reference = run_layout(layout, Precision.FP32)
    for result in results:
        unit = np.spacing(np.asarray(reference.losses, dtype=np.float32))
        assert np.all(np.abs(np.subtract(result.losses, reference.losses)) <= 8 * unit)


@pytest.mark.parametrize("parallel_block", [False, True])
@pytest.mark.parametrize("window", [None, 8])
def test_one_process_equals_plain_torch(parallel_block: bool, window: int | None) -> None:
    config = small_config(steps=STEPS, precision=Precision.FP64, parallel_block=parallel_block, window=window)
    plain: PlainResult = run_ranks(1, lambda: plain_training(config, torch.float64))[0]
    result = single_process(Precision.FP64, parallel_block, window)
    np.testing.assert_allclose(result.losses, plain.losses, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.grad_norms, plain.grad_norms, rtol=0, atol=1e-10)


@pytest.mark.timeout(60)
def test_overlap_changes_no_bit_and_the_order_of_axes_only_the_order_of_sums() -> None:
    layout: dict[str, Any] = {"pp": 2, "dp": 2, "chunks": 2, "steps": 5}
    expected = run_config(small_config(**layout))[0]
    waiting = run_config(small_config(**layout, parallel={"overlap": False, "recv_ahead": 0}))[0]
    assert waiting.losses == expected.losses
    assert waiting.grad_norms == expected.grad_norms
    reordered = run_config(small_config(**layout, parallel={"order": ("dp", "tp", "pp")}))[0]
    np.testing.assert_allclose(reordered.losses, expected.losses, rtol=1e-6)
    np.testing.assert_allclose(reordered.grad_norms, expected.grad_norms, rtol=1e-6)


@pytest.mark.timeout(60)
def test_a_padded_bucket_changes_nothing() -> None:
    """Three replicas do not divide the matrices: their buckets end in padding, which is in no sum."""
    config = small_config(steps=STEPS, precision=Precision.FP64, train={"batch": 12}, parallel={"dp": 3})

    def work() -> tuple[TrainResult, list[tuple[int, int]]]:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        sizes = [
            (bucket.shard_size * 3, sum(parameter.numel() for _, parameter in bucket.members))
            for bucket in trainer.optimizer.buckets
        ]
        return trainer.run(), sizes

    results = run_ranks(3, work)
    assert sum(padded > size for padded, size in results[0][1]) > 3
    reference = run_config(small_config(steps=STEPS, precision=Precision.FP64, train={"batch": 12}))[0]
    for result, _ in results:
        np.testing.assert_allclose(result.losses, reference.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, reference.grad_norms, rtol=0, atol=1e-10)


@pytest.mark.timeout(60)
def test_evaluation_gives_what_one_process_gives() -> None:
    job: dict[str, Any] = {"steps": 3, "precision": Precision.FP64, "train": {"eval_every": 2, "eval_batches": 3}}
    expected = run_config(small_config(**job))[0]
    assert list(expected.eval_losses) == [1]
    assert abs(expected.eval_losses[1] - expected.losses[2]) > 1e-4  # it is another text that is evaluated
    for result in run_config(small_config(tp=2, pp=2, dp=2, chunks=2, **job)):
        assert list(result.eval_losses) == [1]
        assert abs(result.eval_losses[1] - expected.eval_losses[1]) < 1e-10


@pytest.mark.timeout(60)
def test_evaluation_changes_no_bit_of_training() -> None:
    layout: dict[str, Any] = {"pp": 2, "chunks": 2, "steps": 5}
    evaluated = run_config(small_config(**layout, train={"eval_every": 2, "eval_batches": 1}))
    plain = run_config(small_config(**layout))
    for result, expected in zip(evaluated, plain, strict=True):
        assert len(result.eval_losses) == 2
        assert result.losses == expected.losses
        assert result.grad_norms == expected.grad_norms


def test_updates_smaller_than_the_grain_of_bf16_add_up_in_the_masters() -> None:
    """With bf16 masters none of them would move: numbers in [2^-6, 2^-5) lie 2^-13 apart."""
    rate, steps = 5e-6, 20
    train = {"learning_rate": rate, "min_learning_rate": rate, "warmup_steps": 0, "weight_decay": 0.0}
    config = small_config(precision=Precision.BF16, steps=steps, train=train)

    def work() -> tuple[bool, float, float, float]:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        buckets = [bucket for bucket in trainer.optimizer.buckets if not bucket.is_replicated]
        before = [(bucket.master.clone(), bucket.weights.clone()) for bucket in buckets]
        trainer.run()
        is_wide = all(state.dtype == torch.float32 for bucket in buckets for state in bucket.state())
        assert all(bucket.weights.dtype == torch.bfloat16 for bucket in buckets)
        moved, chosen, largest, changed = 0.0, 0, 0.0, 0
        for bucket, (master, weights) in zip(buckets, before, strict=True):
            in_range = (master.abs() >= 2**-6) & (master.abs() < 2**-5)
            distance = (bucket.master - master).abs()[in_range]
            moved, chosen = moved + float(distance.sum()), chosen + len(distance)
            largest = max(largest, float(distance.max()))
            changed += int((bucket.weights != weights)[in_range].sum())
        return is_wide, moved / chosen, largest, changed / chosen

    is_wide, mean, largest, changed = run_ranks(1, work)[0]
    assert is_wide
    assert largest < 20 * 2**-14  # one update alone, a twentieth of this at most, is rounded away
    assert mean > 2 * rate  # several have added up
    assert changed > 0.1


def test_bf16_learns_close_to_fp32() -> None:
    reference = single_process(Precision.FP32, False, None)
    result = run_config(small_config(steps=STEPS, tp=2, precision=Precision.BF16))[0]
    np.testing.assert_allclose(result.losses, reference.losses, rtol=0.01)
    assert result.losses != reference.losses
