"""LAMB and the adaptive clip against dense ones in plain torch, in layouts that cut every matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from megascope.trainer.config import Optimizer, Precision, TrainConfig
from megascope.trainer.loop import TrainResult
from megascope.trainer.optim import NORM_DECAY
from support.forkrun import run_ranks
from support.plain_model import PlainResult, plain_training
from support.training import run_config, small_config

STEPS = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    "tp2-pp2-dp2-v2": {"tp": 2, "pp": 2, "dp": 2, "chunks": 2},
    "dp2-zero2": {"dp": 2, "parallel": {"zero": 2}},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "tied-stages": {"pp": 2, "model": {"tied": True}},
    "pods": {"dp": 4, "parallel": {"pod": 2}},
    "tied-ring": {"tp": 2, "model": {"tied": True}, "parallel": {"ring": True}},
}
"""What else LAMB meets: a matrix on two stages, replicas in pods, and a ring."""


class DenseLamb(torch.optim.Optimizer):
    """LAMB as in You et al. 2020, algorithm 2, with bias correction; vectors are stepped without the norms' ratio."""

    def __init__(
        self, groups: Any, betas: tuple[float, float], eps: float, lr: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(groups, {"betas": betas, "eps": eps, "lr": lr, "weight_decay": weight_decay})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                self._step(weight, group)

    def _step(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        assert weight.grad is not None
        state = self.state[weight]
        first, second = group["betas"]
        m = state["m"] = first * state.get("m", 0) + (1 - first) * weight.grad
        v = state["v"] = second * state.get("v", 0) + (1 - second) * weight.grad**2
        unbiased = m / (1 - first**self.count)
        direction = unbiased / ((v / (1 - second**self.count)) ** 0.5 + group["eps"]) + group["weight_decay"] * weight
        ratio = weight.norm() / direction.norm() if weight.dim() > 1 else 1.0
        weight -= group["lr"] * ratio * direction


def assert_equal(config: TrainConfig, plain: PlainResult) -> list[TrainResult]:
    results = run_config(config)
    for result in results:
        np.testing.assert_allclose(result.losses, plain.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, plain.grad_norms, rtol=0, atol=1e-10)
    return results


def configuration(layout: dict[str, Any], **train: Any) -> TrainConfig:
    return small_config(precision=Precision.FP64, steps=STEPS, train=train, **layout)


def plain(config: TrainConfig, **arguments: Any) -> PlainResult:
    return run_ranks(1, lambda: plain_training(config, torch.float64, **arguments))[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *TOGETHER.values()], ids=[*LAYOUTS, *TOGETHER])
def test_lamb_equals_a_dense_one(layout: dict[str, Any]) -> None:
    settings = {"optimizer": Optimizer.LAMB, "learning_rate": 0.02, "min_learning_rate": 0.01, "microbatches": 2}
    config = configuration(layout, **settings)
    model = {name: value for name, value in layout.items() if name == "model"}
    expected = plain(configuration(model, **settings), optimizer_of=DenseLamb)
    results = assert_equal(config, expected)
    if config.model.tied or config.parallel.pod:
        return
    matrices = {0: 18, 1: 9}[config.parallel.pp > 1]  # four in each layer, and both tables
    for result in results:
        sums = result.traffic.get("dp_all_reduce")
        assert (sums is None) == (config.parallel.dp == 1)
        if sums is not None:
            assert (sums.count, sums.size_bytes) == (STEPS, STEPS * 2 * matrices * 8)


def test_lamb_is_not_adamw() -> None:
    lamb = run_config(configuration({}, optimizer=Optimizer.LAMB))[0]
    assert not np.allclose(lamb.losses[2:], run_config(configuration({}))[0].losses[2:], atol=1e-4)


def clip_at(factor: float, clip: float) -> Callable[[Sequence[float]], float]:
    """The adaptive clip written down anew: a decayed mean of what earlier norms were clipped to."""

    def limit(norms: Sequence[float]) -> float:
        clipped: list[float] = []
        for norm in [*norms, 0.0]:
            ages = range(len(clipped) - 1, -1, -1)
            weights = [NORM_DECAY**age for age in ages]
            total = sum(weight * value for weight, value in zip(weights, clipped, strict=True))
            bound = min(clip, factor * total / sum(weights)) if clipped else clip
            clipped.append(min(norm, bound))
        return bound

    return limit


@pytest.mark.timeout(120)
@pytest.mark.parametrize("layout", list(LAYOUTS.values())[:2], ids=list(LAYOUTS)[:2])
def test_the_adaptive_clip_equals_one_written_down_anew(layout: dict[str, Any]) -> None:
    settings = {"clip": 5.0, "clip_factor": 0.6}
    expected = plain(configuration({}, **settings), clip_at=clip_at(0.6, 5.0))
    for result in assert_equal(configuration(layout, **settings), expected):
        norms = result.traffic.get("world_all_reduce")
        assert norms is None or norms.count == STEPS  # nothing is sent for it
    fixed = plain(configuration({}, clip=5.0))
    assert not np.allclose(fixed.losses[2:], expected.losses[2:], atol=1e-6)  # it did act


def test_a_spike_does_not_raise_the_limit_for_the_next() -> None:
    limit = clip_at(2.0, 100.0)
    assert limit([1.0] * 10) == pytest.approx(2.0)
    assert limit([1.0] * 10 + [50.0]) < 2.3
