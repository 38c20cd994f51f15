"""Tied embeddings, dropout and uneven stages: every layout computes what one process computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from megascope.profiler.null import NullRecorder
from megascope.trainer.attention import window_mask, windowed
from megascope.trainer.config import ModelConfig, Precision
from megascope.trainer.data.shuffle import splitmix64
from megascope.trainer.dropout import Dropout, mix
from megascope.trainer.loop import Trainer, TrainResult
from megascope.trainer.model import chunk_specs, layer_numbers
from support.forkrun import run_ranks
from support.plain_model import plain_training
from support.training import run_config, small_config

STEPS = 4
TIED_DROPOUT = {"tied": True, "dropout": 0.2}


def run(model: dict[str, Any], **layout: Any) -> list[TrainResult]:
    return run_config(small_config(precision=Precision.FP64, steps=STEPS, model=model, **layout))


def assert_equal(results: list[TrainResult], expected: TrainResult) -> None:
    assert len(expected.losses) == STEPS
    for result in results:
        np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-10)
        np.testing.assert_allclose(result.grad_norms, expected.grad_norms, rtol=0, atol=1e-10)


# -- against one process -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def single() -> TrainResult:
    return run(TIED_DROPOUT)[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "pp": 2, "dp": 2, "chunks": 2},
        {"pp": 2, "parallel": {"stage_layers": (1, 3)}},
        {"pp": 2, "dp": 2, "chunks": 2, "parallel": {"stage_layers": (1, 1, 1, 1), "zero": 2}},
    ],
    ids=["tp2-pp2-dp2-v2", "uneven", "zero2"],
)
def test_tied_embeddings_and_dropout_in_any_layout(single: TrainResult, layout: dict[str, Any]) -> None:
    assert_equal(run(TIED_DROPOUT, **layout), single)


def test_both_change_the_result(single: TrainResult) -> None:
    assert single.losses != run({"tied": True})[0].losses != run({})[0].losses


def test_one_process_with_tied_embeddings_equals_plain_torch() -> None:
    config = small_config(precision=Precision.FP64, steps=STEPS, model={"tied": True})
    plain = run_ranks(1, lambda: plain_training(config, torch.float64))[0]
    assert_equal(run_config(config), TrainResult(0, plain.losses, plain.grad_norms))


@pytest.mark.timeout(120)
def test_the_copies_of_a_tied_matrix_stay_equal_and_its_gradient_travels_once_a_step() -> None:
    config = small_config(steps=STEPS, pp=2, dp=2, model={"tied": True})

    def work() -> tuple[TrainResult, dict[str, torch.Tensor]]:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        result = trainer.run()
        return result, {b.members[0][0].name: b.master for b in trainer.optimizer.buckets if b.copies > 1}

    results = run_ranks(4, work)
    for result, copies in results:
        traffic = result.traffic["pp_ends_all_reduce"]
        elements = config.model.vocabulary * config.model.width
        assert (traffic.count, traffic.size_bytes) == (STEPS, STEPS * elements // 2 * 4)
        assert list(copies) == ["embedding.weight"]
    for replica in range(2):  # ranks of the pipeline are 2 apart
        first, last = (results[rank][1]["embedding.weight"] for rank in (replica, replica + 2))
        assert torch.equal(first, last)


# -- dropout -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_the_hash_is_that_of_the_batches(values: list[int]) -> None:
    numbers = np.array(values, dtype=np.uint64)
    assert np.array_equal(
        mix(torch.from_numpy(numbers.astype(np.int64))).numpy().astype(np.uint64), splitmix64(numbers)
    )


def kept(dropout: Dropout, sequences: range, positions: range, site: str = "here", step: int = 3) -> torch.Tensor:
    dropout.place(step, sequences.start, is_training=True)
    shape = torch.Size((len(positions), len(sequences), 8))
    return dropout.kept(shape, site, positions.start, torch.device("cpu"))


@given(st.integers(0, 50), st.integers(1, 3), st.integers(0, 20), st.integers(1, 12))
def test_a_mask_does_not_depend_on_how_the_batch_is_cut(first: int, rows: int, start: int, length: int) -> None:
    dropout = Dropout(0.4, seed=1, sequence=32, width=8)
    whole = kept(dropout, range(60), range(32))
    part = kept(dropout, range(first, first + rows), range(start, min(32, start + length)))
    assert torch.equal(part, whole[start : start + length, first : first + rows])


def test_masks_differ_by_step_site_and_seed_and_drop_the_configured_share() -> None:
    masks = [
        kept(Dropout(0.3, seed=seed, sequence=64, width=8), range(64), range(64), site, step)
        for seed, site, step in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]
    ]
    for mask in masks:
        assert mask.double().mean().item() == pytest.approx(0.7, abs=0.01)  # five standard deviations
    for other in masks[1:]:
        agreeing = (masks[0] == other).double().mean().item()
        assert agreeing == pytest.approx(0.7**2 + 0.3**2, abs=0.015)


def test_dropout_keeps_the_mean_and_evaluation_drops_nothing() -> None:
    dropout = Dropout(0.25, seed=0, sequence=64, width=8)
    x = torch.ones(64, 64, 8)
    dropout.place(0, 0, is_training=True)
    dropped = dropout(x, "here", 0)
    assert set(dropped.flatten().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)
    dropout.place(0, 0, is_training=False)
    assert dropout(x, "here", 0) is x


# -- sliding window ------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 5))
def test_a_window_in_blocks_is_the_one_with_a_mask(sequence: int, window: int, heads: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = 2 * window + sequence
    query, key, value = torch.randn(3, 2, heads, size, 4, dtype=torch.float64, generator=generator)
    blocks = windowed(query, key, value, window_mask(2 * window, window, query.device)[window:])
    whole = functional.scaled_dot_product_attention(query, key, value, window_mask(size, window, query.device))
    torch.testing.assert_close(blocks, whole, rtol=0, atol=1e-12)


# -- uneven stages -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans())
def test_stages_hold_every_layer_once(counts: list[int], tied: bool) -> None:
    model = ModelConfig(layers=sum(counts), tied=tied)
    ranges = [layer_numbers(model.layers, stage, len(counts), counts) for stage in range(len(counts))]
    assert [len(numbers) for numbers in ranges] == counts
    assert [number for numbers in ranges for number in numbers] == list(range(model.layers))
    stages = [chunk_specs(model, stage, len(counts), counts) for stage in range(len(counts))]
    names = [spec.name for specs in stages for spec in specs]
    whole = [spec.name for spec in chunk_specs(model, 0, 1)]
    copies = [spec for specs in stages for spec in specs if spec.copies > 1]
    assert len(copies) == (2 if tied and len(counts) > 1 else 0)
    assert sorted(names) == sorted(whole + [spec.name for spec in copies[1:]])
