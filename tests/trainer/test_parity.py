"""Every layout computes what one process computes, and one process computes what plain torch computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from megascope.trainer.config import Precision
from megascope.trainer.loop import TrainResult
from support.forkrun import run_ranks
from support.plain_model import PlainResult, plain_training
from support.training import run_config, small_config

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
    return run_config(small_config(precision=precision, parallel_block=parallel_block, window=window))[0]


def run_layout(layout: dict[str, Any], precision: Precision) -> tuple[list[TrainResult], TrainResult]:
    reference = single_process(precision, layout.get("parallel_block", False), layout.get("window"))
    return run_config(small_config(precision=precision, **layout)), reference


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.timeout(60)
def test_fp64_losses_and_gradient_norms_equal_one_process(layout: dict[str, Any]) -> None:
    results, reference = run_layout(layout, Precision.FP64)
    assert len(reference.losses) == 10
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
    config = small_config(precision=Precision.FP64, parallel_block=parallel_block, window=window)
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


def test_bf16_learns_close_to_fp32() -> None:
    reference = single_process(Precision.FP32, False, None)
    result = run_config(small_config(tp=2, precision=Precision.BF16))[0]
    np.testing.assert_allclose(result.losses, reference.losses, rtol=0.01)
    assert result.losses != reference.losses
