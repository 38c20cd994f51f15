"""Costs from a model and a cluster, layouts as text, and settings from files and flags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megascope.profiler.errors import UsageError
from megascope.trainer.simulator.config import (
    ClusterConfig,
    SimulatedModel,
    SimulationConfig,
    costs_of,
    load_simulation,
    parse_layout,
)

FLEET = {"pp": 8, "dp": 192, "tp": 8}


def test_tp_is_innermost_whatever_the_order_of_the_text() -> None:
    assert list(parse_layout("tp=8,pp=8,dp=192").items()) == [("pp", 8), ("dp", 192), ("tp", 8)]
    assert list(parse_layout("dp=4,ep=2,cp=3,tp=2")) == ["dp", "ep", "cp", "tp"]


@pytest.mark.parametrize("text", ["tp=8,pp", "tp=x", "tp=2,tp=2", "tp=-1", ""])
def test_a_layout_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give axes and sizes"):
        parse_layout(text)


def test_compute_is_the_flops_of_the_model() -> None:
    """Forwards and backwards of all ranks for one micro-batch make the training FLOPs of its tokens."""
    config = SimulationConfig()
    costs = costs_of(config, FLEET, microbatches=32, chunks=2)
    stages = 16
    assert len(costs.forward_ns) == len(costs.backward_ns) == stages
    spent = (sum(costs.forward_ns) + sum(costs.backward_ns)) * 8 * 989e12 * config.cluster.efficiency / 1e9
    assert spent == pytest.approx(config.model.flops_per_token() * 2048)
    assert costs.forward_ns[-1] > costs.forward_ns[0] == costs.forward_ns[1]
    assert costs.tokens_per_step == 2048 * 32 * 192
    assert costs.tp_pairs == 12  # two of each a layer in a forward, six layers


def test_transfers_take_the_wire_that_they_run_over() -> None:
    config = SimulationConfig()
    inside, across = (costs_of(config, {"pp": 8, "dp": 2, "tp": tp}, microbatches=8) for tp in (8, 16))
    activation = 2048 * 12288 * 2
    assert inside.tp_bytes == activation
    assert inside.tp_ns == pytest.approx(3 * 3000 + activation * 7 / 8 / 450)
    assert across.tp_ns == pytest.approx(4 * 10000 + activation * 15 / 16 / 50)
    assert inside.p2p_network_ns == pytest.approx(10000 + activation / 8 / 50)
    weights = 12 * 12 * 12288**2 // 8
    assert inside.reduce_scatter_ns == pytest.approx(10000 + 4 * weights / 2 / 50)
    assert inside.all_gather_ns == pytest.approx(10000 + 2 * weights / 2 / 50)
    alone = costs_of(config, {"pp": 8}, microbatches=8)
    assert alone.tp_ns == alone.reduce_scatter_ns == 0
    one_host = costs_of(config, {"dp": 8}, microbatches=8)
    assert one_host.norm_ns == 2 * 3 * 3000


def test_settings_come_from_a_file_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("[model]\nlayers = 48\nwidth = 4096\n[cluster]\nnetwork_gbits = 200.0\ngpus_per_host = 4\n")
    config = load_simulation(path, ["--model.layers", "24", "--cluster.nvlink-gbytes", "300"])
    assert (config.model.layers, config.model.width) == (24, 4096)
    assert config.cluster == ClusterConfig(network_gbits=200.0, gpus_per_host=4, nvlink_gbytes=300.0)
    assert load_simulation(None, ["--model.layers", "24"]).model == SimulatedModel(layers=24, width=12288)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model.layer", "4"], "layer"),
        (["--cluster.efficiency", "0"], "cluster.efficiency is 0.0, but it must be above 0"),
        (["--cluster.data-ms", "-1"], "cluster.data_ms is -1.0, but it must be at least 0"),
        (["--model.layers", "0"], "model.layers is 0"),
        (["--model.layers", "ten"], "not a whole number"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_simulation(None, flags)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no configuration file"):
        load_simulation(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n")
    with pytest.raises(UsageError, match="Cannot read the configuration"):
        load_simulation(broken)
    with pytest.raises(UsageError, match="96 layers cannot be cut into pp 7"):
        costs_of(SimulationConfig(), {"pp": 7}, microbatches=8)


def test_a_window_of_attention_costs_less() -> None:
    config = SimulationConfig()
    short = replace(config, model=replace(config.model, window=128))
    costs = [np.sum(costs_of(one, FLEET, microbatches=1).forward_ns) for one in (config, short)]
    assert costs[1] < costs[0]
