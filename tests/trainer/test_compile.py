"""torch.compile of what lies between the collectives: it is applied there, and changes no result."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch._dynamo

from megascope.profiler.null import NullRecorder
from megascope.trainer.config import TrainConfig
from megascope.trainer.loop import Trainer
from support.forkrun import run_ranks
from support.training import run_config, small_config


def configuration(is_compiled: bool) -> TrainConfig:
    train = {"compile": is_compiled, "eval_every": 2, "eval_batches": 1}
    return small_config(tp=2, steps=3, window=8, train=train)


@pytest.mark.timeout(200)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's tracer warns of itself
def test_compiled_layers_compute_the_same() -> None:
    """With the tracer and its differentiation, and without the code generator, whose start takes minutes of CPU."""
    expected = run_config(configuration(False))[0]

    def work() -> tuple[list[float], dict[int, float], int]:
        torch.compile = partial(torch.compile, backend="aot_eager")
        result = Trainer(configuration(True), NullRecorder(), torch.device("cpu")).run()
        return result.losses, result.eval_losses, torch._dynamo.utils.counters["stats"]["unique_graphs"]

    for losses, eval_losses, graphs in run_ranks(2, work, timeout_s=180):
        np.testing.assert_allclose(losses, expected.losses, rtol=1e-6)
        assert eval_losses == pytest.approx(expected.eval_losses, rel=1e-6)
        assert graphs >= 2  # attention and activation
