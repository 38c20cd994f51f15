"""Communication that is cut, chained or coupled: the same result, and messages that follow from the layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.trainer.config import Precision, TrainConfig
from megascope.trainer.loop import TrainResult
from megascope.trainer.topology import pods, ring_edges
from support.training import run_config, small_config

STEPS = 3


def configuration(**settings: Any) -> TrainConfig:
    return small_config(precision=Precision.FP64, steps=STEPS, **settings)


@pytest.fixture(scope="module")
def single() -> dict[bool, TrainResult]:
    return {block: run_config(configuration(parallel_block=block))[0] for block in (False, True)}


def assert_equal(results: list[TrainResult], expected: TrainResult) -> None:
    for result in results:
        np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, expected.grad_norms, rtol=0, atol=1e-10)


# -- tensor-parallel ring ------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout", [{"tp": 4}, {"tp": 2, "pp": 2, "parallel_block": True}], ids=["tp4", "tp2-pp2-parallel"]
)
def test_the_ring_carries_what_the_collectives_of_layers_carried(
    layout: dict[str, Any], single: dict[bool, TrainResult]
) -> None:
    """n - 1 messages of a part in place of each gather or scatter, forward and backward; other collectives stay."""
    config = configuration(**layout, parallel={"ring": True})
    model, tp = config.model, config.parallel.tp
    results = run_config(config)
    assert_equal(results, single[model.parallel_block])
    for rank, result in enumerate(results):
        collectives = run_traffic(configuration(**layout), rank)
        per_layer = 2 * (1 if model.parallel_block else 2) * 2
        replaced = STEPS * config.train.microbatches * per_layer * model.layers // config.parallel.pp
        part = model.sequence // tp * config.microbatch_sequences * model.width * 8
        for segment in ("send_ring", "recv_ring"):
            traffic = result.traffic[segment]
            assert (traffic.count, traffic.size_bytes) == (replaced * (tp - 1), replaced * (tp - 1) * part)
        left = [result.traffic[name].count if name in result.traffic else 0 for name in RING_REPLACES]
        assert sum(left) == sum(collectives[name].count for name in RING_REPLACES) - replaced
        unchanged = {
            name: t for name, t in result.traffic.items() if name not in (*RING_REPLACES, "send_ring", "recv_ring")
        }
        assert unchanged == {name: t for name, t in collectives.items() if name not in RING_REPLACES}


RING_REPLACES = ("tp_all_gather", "tp_reduce_scatter")
_runs: dict[TrainConfig, list[TrainResult]] = {}


def run_traffic(config: TrainConfig, rank: int) -> dict[str, Any]:
    if config not in _runs:
        _runs[config] = run_config(config)
    return _runs[config][rank].traffic


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_every_rank_sends_and_receives_on_one_edge_of_its_ring(tp: int, dp: int, pp: int) -> None:
    topology = Topology.of(pp=pp, dp=dp, tp=tp)
    edges = ring_edges(topology)
    ranks = list(range(topology.world_size)) if tp > 1 else []
    assert sorted(edge.source for edge in edges) == sorted(edge.destination for edge in edges) == ranks
    for edge in edges:
        assert edge.destination in topology.group("tp", edge.source)


# -- two levels of data parallelism --------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize("zero", [1, 2])
def test_pods_reduce_inside_and_then_across(zero: int, single: dict[bool, TrainResult]) -> None:
    """Across pods goes half of what goes inside, with two replicas in a pod, and the result is the same."""
    layout: dict[str, Any] = {"dp": 4, "train": {"microbatches": 2}}
    results = run_config(configuration(**layout, parallel={"pod": 2, "zero": zero}))
    flat = run_config(configuration(**layout, parallel={"zero": zero}))
    assert_equal(results, single[False])
    for result, plain in zip(results, flat, strict=True):
        for name in ("reduce_scatter", "all_gather"):
            inside, across = (result.traffic[f"dp_{level}_{name}"] for level in ("pod", "across"))
            assert inside == plain.traffic[f"dp_{name}"]
            assert across.count == inside.count
            assert across.size_bytes * 2 == inside.size_bytes
        assert not {"dp_reduce_scatter", "dp_all_gather"} & result.traffic.keys()


@given(st.integers(1, 6), st.integers(1, 6))
def test_every_replica_is_in_one_pod_and_meets_one_of_each_other(count: int, size: int) -> None:
    line = tuple(range(100, 100 + count * size))
    inner, outer = pods(line, size)
    assert sorted(rank for ranks in inner for rank in ranks) == list(line)
    assert sorted(rank for ranks in outer for rank in ranks) == list(line)
    for one in inner:
        assert len(one) == size
        for other in outer:
            assert len(set(one) & set(other)) == 1


# -- pipeline messages ---------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_coupled_messages_change_no_bit(schedule: str) -> None:
    layout: dict[str, Any] = {"pp": 2, "dp": 2, "parallel": {"schedule": schedule}}
    expected = run_config(configuration(**layout))
    layout["parallel"] = {"schedule": schedule, "overlap_p2p": False, "overlap": False}
    for result, plain in zip(run_config(configuration(**layout)), expected, strict=True):
        assert (result.losses, result.grad_norms, result.traffic) == (plain.losses, plain.grad_norms, plain.traffic)


@pytest.mark.timeout(120)
def test_gpipe_computes_what_1f1b_computes(single: dict[bool, TrainResult]) -> None:
    results = run_config(configuration(pp=2, parallel={"schedule": "gpipe"}, train={"eval_every": 2}))
    assert_equal(results, single[False])
    assert results[0].eval_losses.keys() == {1}
    assert not torch.tensor(results[0].eval_losses[1]).isnan()
