"""A gradient norm that is not finite ends the training before any weight is updated with it."""

from __future__ import annotations

import pytest
from torch import Tensor

from megascope.trainer.finite import NotFiniteError
from megascope.trainer.optim import ShardedOptimizer
from support.training import run_config, small_config


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_reaches_no_weight(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """The loss of the step is finite, the norm of the third one's gradients is not."""
    reduce, update = ShardedOptimizer._reduce_metrics, ShardedOptimizer._update
    calls: list[int] = []

    def poisoned(self: ShardedOptimizer, loss: Tensor | None, is_asked: bool) -> Tensor:
        metrics = reduce(self, loss, is_asked)
        calls.append(1)
        if len(calls) == 3:
            metrics[1] = value
        return metrics

    def noted(self: ShardedOptimizer, rate: float, scale: Tensor) -> None:
        assert len(calls) < 3, "the weights were updated"
        update(self, rate, scale)

    monkeypatch.setattr(ShardedOptimizer, "_reduce_metrics", poisoned)
    monkeypatch.setattr(ShardedOptimizer, "_update", noted)
    with pytest.raises(AssertionError, match="gradient norm of step 2 is not finite") as caught:
        run_config(small_config(steps=4))
    assert NotFiniteError.__name__ in str(caught.value)
