"""ZeRO: what replicas share changes no result, frees the memory that it promises, and costs the traffic it must."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

from megascope.profiler.null import NullRecorder
from megascope.trainer.bucket import Bucket
from megascope.trainer.config import Order, Precision, Recompute, TrainConfig
from megascope.trainer.flat import REDUCED_AT_ONCE
from megascope.trainer.loop import Trainer
from megascope.trainer.schedule import compute_order
from support.forkrun import run_ranks
from support.training import run_config, small_config

STEPS = 4
LAYOUT: dict[str, Any] = {"pp": 2, "dp": 2, "chunks": 2}


def configuration(zero: int, **settings: Any) -> TrainConfig:
    return small_config(steps=STEPS, **{**LAYOUT, **settings}, parallel={"zero": zero})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("zero", [2, 3])
def test_losses_and_norms_equal_one_process(zero: int) -> None:
    reference = run_config(small_config(precision=Precision.FP64, steps=STEPS))[0]
    for result in run_config(configuration(zero, precision=Precision.FP64)):
        np.testing.assert_allclose(result.losses, reference.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, reference.grad_norms, rtol=0, atol=1e-10)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "dp": 2, "model": {"tied": True, "dropout": 0.1}, "train": {"recompute": Recompute.FULL}},
        {"dp": 4, "parallel": {"pod": 2}, "train": {"microbatches": 2}},
    ],
    ids=["tied-dropout-recomputed", "pods"],
)
def test_shared_weights_beside_other_techniques(layout: dict[str, Any]) -> None:
    alone = {name: value for name, value in layout.items() if name == "model"}
    reference = run_config(small_config(precision=Precision.FP64, steps=2, **alone))[0]
    config = small_config(precision=Precision.FP64, steps=2, **layout)
    for result in run_config(replace(config, parallel=replace(config.parallel, zero=3))):
        np.testing.assert_allclose(result.losses, reference.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, reference.grad_norms, rtol=0, atol=1e-10)


@pytest.mark.timeout(120)
def test_bf16_gradients_are_summed_in_float32() -> None:
    """At every stage of ZeRO the same: a micro-batch's gradient is rounded to bf16 once, and no sum is."""
    losses = [run_config(configuration(zero, precision=Precision.BF16))[0].losses for zero in (1, 2, 3)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)
    assert losses[1] == losses[2]


# -- traffic -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_gradients_travel_once_a_microbatch_and_weights_whenever_a_chunk_is_used_anew() -> None:
    plain, shared, sharded = (run_config(configuration(zero)) for zero in (1, 2, 3))
    config = configuration(1)
    count = config.train.microbatches
    for rank in range(4):
        before, gradients, weights = (run[rank].traffic for run in (plain, shared, sharded))
        for segment in ("dp_reduce_scatter", "dp_all_gather"):
            assert gradients[segment].count == before[segment].count * (count if "reduce" in segment else 1)
            assert gradients[segment].size_bytes == before[segment].size_bytes * (count if "reduce" in segment else 1)
        assert weights["dp_reduce_scatter"] == gradients["dp_reduce_scatter"]
        others = {name: traffic for name, traffic in before.items() if not name.startswith("dp_")}
        assert others == {name: traffic for name, traffic in weights.items() if not name.startswith("dp_")}
    assert [run.traffic["dp_all_gather"].count for run in sharded] == [
        STEPS * sum(uses * buckets for uses, buckets in zip(uses_of_chunks(stage), bucket_counts(stage), strict=True))
        for stage in (0, 0, 1, 1)
    ]


def uses_of_chunks(stage: int) -> list[int]:
    """How often in a step a stage computes with each chunk's weights anew."""
    order = [action.chunk for action in compute_order(2, stage, 2, 4, Order.ONE_F_ONE_B)]
    runs = [chunk for chunk, _ in groupby(order)]
    return [runs.count(chunk) for chunk in range(2)]


def bucket_counts(stage: int) -> list[int]:
    """Buckets of each chunk: a layer's matrices are 32 and 16 KiB, which the embedding joins; the output's; norms."""
    return [3, 3 + (stage == 1)]


# -- memory --------------------------------------------------------------------------------------------------------


def live_bytes() -> int:
    """Bytes of all tensors that exist in this process."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            storage = thing.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def trained(zero: int) -> tuple[int, int, list[int], list[int]]:
    """Of one rank, trained: bytes of all tensors, of a whole set of gradients, of each bucket, and of live gradients

    whenever a reduction began.
    """
    before = live_bytes()
    trainer = Trainer(configuration(zero), NullRecorder(), torch.device("cpu"))
    buckets, seen = trainer.optimizer.buckets, []
    channel = buckets[0].channel
    reduce_scatter = channel.reduce_scatter

    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(sum(bucket.gradients.nbytes for bucket in buckets if bucket.gradients is not None))
        return reduce_scatter(*arguments, **options)

    channel.reduce_scatter = noted  # type: ignore[method-assign]
    trainer.run()
    sizes = [bucket.shard_size * channel.size * 4 for bucket in buckets]
    return live_bytes() - before, sum(sizes), sizes, seen


@pytest.mark.timeout(120)
def test_what_is_shared_is_not_kept() -> None:
    plain, shared, sharded = (run_ranks(4, lambda zero=zero: trained(zero)) for zero in (1, 2, 3))  # type: ignore[misc]
    for first, second, third in zip(plain, shared, sharded, strict=True):
        whole = first[1]
        assert first[0] - second[0] == whole  # the gradients, in float32
        assert second[0] - third[0] == whole  # the weights, in float32 too
        assert set(first[3]) == {whole}
        # On their way, one being filled, and the norms', which the whole backward fills; in each of two chunks at most.
        norms = sum(sorted(first[2])[:2])
        assert max(second[3]) <= (REDUCED_AT_ONCE + 1) * max(first[2]) + norms
        assert max(second[3]) < whole


def test_weights_that_are_freed_come_back_as_the_masters() -> None:
    config = small_config(steps=1, dp=2, parallel={"zero": 3})

    def work() -> bool:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        flat = trainer.optimizer.flats[0]
        assert all(bucket.needs_gather() for bucket in flat.buckets)
        flat.acquire()
        return all(_own_part_is_master(bucket) for bucket in flat.buckets)

    assert run_ranks(2, work) == [True, True]


def _own_part_is_master(bucket: Bucket) -> bool:
    low = bucket.channel.index * bucket.shard_size
    return torch.equal(bucket.weights[low : low + bucket.shard_size], bucket.master)


def test_one_replica_shares_nothing() -> None:
    plain, shared = (run_config(small_config(steps=2, parallel={"zero": zero}))[0] for zero in (1, 3))
    assert plain == shared
