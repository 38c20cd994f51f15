"""Recomputation: no bit of the result changes, less is kept, and only what is repeated is sent again."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from megascope.profiler.null import NullRecorder
from megascope.trainer.config import Recompute, TrainConfig
from megascope.trainer.loop import Trainer, TrainResult
from support.forkrun import run_ranks
from support.training import run_config, small_config

STEPS = 3
KINDS = (Recompute.SELECTIVE, Recompute.FULL)


def configuration(
    recompute: Recompute, parallel_block: bool = False, dropout: float = 0.0, **layout: Any
) -> TrainConfig:
    train, model = {"recompute": recompute}, {"dropout": dropout}
    return small_config(steps=STEPS, parallel_block=parallel_block, train=train, model=model, **layout)


@cache
def trained(recompute: Recompute, parallel_block: bool, dropout: float = 0.0) -> list[TrainResult]:
    return run_config(configuration(recompute, parallel_block, dropout, tp=2))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("parallel_block", [False, True])
@pytest.mark.parametrize("recompute", KINDS)
def test_no_bit_of_the_result_changes(recompute: Recompute, parallel_block: bool) -> None:
    """Dropout included, which is there with the serial block: a mask is the same the second time."""
    dropout = 0.0 if parallel_block else 0.1
    expected = trained(Recompute.NONE, parallel_block, dropout)
    for result, plain in zip(trained(recompute, parallel_block, dropout), expected, strict=True):
        assert (result.losses, result.grad_norms) == (plain.losses, plain.grad_norms)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("parallel_block", [False, True])
def test_a_ring_recomputes_too(parallel_block: bool) -> None:
    plain, again = (
        run_config(
            small_config(
                steps=STEPS, tp=2, parallel_block=parallel_block, train={"recompute": kind}, parallel={"ring": True}
            )
        )
        for kind in (Recompute.NONE, Recompute.FULL)
    )
    assert [(one.losses, one.grad_norms) for one in again] == [(one.losses, one.grad_norms) for one in plain]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("parallel_block", "dropout", "gathers", "scatters"), [(False, 0.1, 2, 2), (True, 0.0, 1, 0)])
def test_only_full_recomputation_repeats_communication(
    parallel_block: bool, dropout: float, gathers: int, scatters: int
) -> None:
    """All of a layer's up to its last saved tensor: a dropout's mask, or else the input of the last multiplication."""
    before = trained(Recompute.NONE, parallel_block, dropout)[0].traffic
    assert trained(Recompute.SELECTIVE, parallel_block, dropout)[0].traffic == before
    config, after = configuration(Recompute.FULL), trained(Recompute.FULL, parallel_block, dropout)[0].traffic
    layers = config.model.layers * config.train.microbatches * STEPS
    more = {name: after[name].count - traffic.count for name, traffic in before.items()}
    expected = {"tp_all_gather": layers * gathers, "tp_reduce_scatter": layers * scatters}
    assert more == {**dict.fromkeys(before, 0), **expected}


def kept_bytes(recompute: Recompute) -> int:
    """Net bytes that a forward of the whole model leaves allocated for its backward, in one process."""

    def work() -> int:
        config = configuration(recompute)
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        (chunk,) = trainer.pipeline._chunks
        tokens = torch.zeros(config.model.sequence, config.microbatch_sequences, dtype=torch.int64)
        torch.autograd.backward(chunk.loss(chunk(tokens), tokens))  # what is cached from the first time on
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            loss = chunk.loss(chunk(tokens), tokens)
        assert loss.requires_grad
        return sum(event.self_cpu_memory_usage for event in profiled.key_averages())

    return int(run_ranks(1, work)[0])


@pytest.mark.timeout(120)
def test_what_is_recomputed_is_not_kept() -> None:
    none, selective, full = map(kept_bytes, (Recompute.NONE, *KINDS))
    config = configuration(Recompute.NONE)
    activation = config.model.sequence * config.microbatch_sequences * config.model.width * 4
    layers = config.model.layers
    # Of each layer: the activation's output, four times the width, and the attention's, with the turned q and k.
    assert none - selective > layers * 6 * activation
    # A layer keeps its input alone; the normalised inputs, projections and branches of all layers are gone.
    assert none - full > layers * 14 * activation
    assert full > layers * activation
