"""The smaller parts: data, corpus, FLOPs, learning rate, masks and positions, edges of the mesh."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.topology import Topology
from megascope.trainer.attention import rotary_table, rotate, window_mask
from megascope.trainer.config import (
    DataConfig,
    OptimizationConfig,
    Sampling,
    Tokenizer,
    load_config,
)
from megascope.trainer.data.batches import Batches, Split
from megascope.trainer.data.corpus import encode, read_text, standard_library_sources, train_tokenizer
from megascope.trainer.data.shuffle import splitmix64
from megascope.trainer.loop import progress_line
from megascope.trainer.optim import learning_rate
from megascope.trainer.topology import Edge, EdgeKind, pipeline_edges
from support.training import run_config, small_config, text_file

ROOT = Path(__file__).resolve().parents[2]


# -- text and batches ----------------------------------------------------------------------------------------------


def test_the_default_text_is_python_s_own_sources() -> None:
    paths = list(standard_library_sources())
    assert len(paths) > 100
    assert paths[0].read_bytes()[:50] == read_text(DataConfig(limit_bytes=50))
    assert not any("site-packages" in path.parts for path in paths)


def test_a_text_is_read_as_bytes_up_to_its_limit(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    config = DataConfig(text=path, limit_bytes=1000)
    assert encode(read_text(config), config, None).tolist() == list(path.read_bytes()[:1000])


def test_an_empty_or_missing_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(MegascopeError, match=r"There is no text in .*empty.txt"):
        read_text(DataConfig(text=tmp_path / "empty.txt"))
    with pytest.raises(
        MegascopeError, match=r"Cannot read the text .*none.txt \(No such file or directory\): check data.text"
    ):
        read_text(DataConfig(text=tmp_path / "none.txt"))


@given(st.integers(0, 1000), st.integers(1, 4))
def test_batches_do_not_depend_on_how_they_are_cut(number: int, parts: int) -> None:
    batches = Batches(np.arange(5000, dtype=np.uint16), small_config())
    whole = batches.rows(Split.TRAIN, number, 0, 8)
    size = 8 // parts
    cut = [batches.rows(Split.TRAIN, number, first, first + size) for first in range(0, size * parts, size)]
    assert np.array_equal(np.concatenate(cut), whole[: size * parts])
    assert np.array_equal(whole[:, 1:] - whole[:, :-1], np.ones((8, 32)))


def test_training_never_sees_the_evaluation_part() -> None:
    batches = Batches(np.arange(5000, dtype=np.uint16), small_config())
    border = 5000 - 250
    at_random = Batches(np.arange(5000, dtype=np.uint16), small_config(data={"sampling": Sampling.PLACES}))
    assert max(at_random.rows(Split.TRAIN, number, 0, 8).max() for number in range(3000)) == border - 1
    assert max(batches.rows(Split.TRAIN, number, 0, 8).max() for number in range(3000)) == (border - 1) // 32 * 32
    rows = [batches.rows(Split.EVAL, number, 0, 8) for number in range(500)]
    assert (min(part.min() for part in rows), max(part.max() for part in rows)) == (border, 4999)


def test_another_seed_gives_other_batches() -> None:
    tokens = np.arange(5000, dtype=np.uint16)
    first = Batches(tokens, small_config()).rows(Split.TRAIN, 0, 0, 8)
    second = Batches(tokens, small_config(train={"seed": 1})).rows(Split.TRAIN, 0, 0, 8)
    assert not np.array_equal(first, second)


def test_a_text_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(MegascopeError, match="has 10 tokens for training, fewer than one sequence of 33"):
        Batches(np.zeros(10, dtype=np.uint8), small_config())
    with pytest.raises(MegascopeError, match="has 5 tokens for evaluation"):
        Batches(np.zeros(100, dtype=np.uint8), small_config(train={"eval_every": 1}))


def test_splitmix64_is_the_published_generator() -> None:
    """First outputs of the reference implementation for the seed 1234567."""
    increment = 0x9E3779B97F4A7C15
    states = [(1234567 + number * increment) % 2**64 for number in range(3)]
    assert splitmix64(np.array(states, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="needs the extra bpe")
@pytest.mark.timeout(60)
def test_byte_pair_encoding_trains(tmp_path: Path) -> None:
    text = b"the cat sat on the mat\n" * 200
    tokenizer = train_tokenizer(text, 280)
    config = DataConfig(tokenizer=Tokenizer.BPE)
    tokens = encode(text, config, tokenizer)
    assert len(tokens) < len(text) / 2
    assert tokens.max() < 280
    (tmp_path / "text.txt").write_bytes(text)
    config = replace(config, text=tmp_path / "text.txt")
    job = small_config(dp=2, steps=2)
    job = replace(job, data=config, model=replace(job.model, vocabulary=280))
    results = run_config(job)
    assert results[0].losses == results[1].losses
    assert len(results[0].losses) == 2


def test_without_tokenizers_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"pip install 'megascope\[bpe\]'"):
        train_tokenizer(b"text", 300)


# -- numbers -------------------------------------------------------------------------------------------------------


def test_the_learning_rate_rises_and_falls() -> None:
    config = OptimizationConfig(steps=110, warmup_steps=10, learning_rate=1.0, min_learning_rate=0.1)
    rates = [learning_rate(config, step) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)
    assert rates[109] == pytest.approx(0.1, abs=1e-3)
    assert all(a >= b for a, b in pairwise(rates[10:]))


def test_a_window_sees_itself_and_what_is_just_before() -> None:
    mask = window_mask(5, 2, torch.device("cpu"))
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]


def test_rotary_positions_make_products_depend_on_distance_alone() -> None:
    cosine, sine = rotary_table(16, 8, 10000.0, torch.float64, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(8, dtype=torch.float64, generator=generator).expand(16, 8) for _ in range(2))
    products = rotate(query, cosine, sine) @ rotate(key, cosine, sine).T
    for distance in range(16):
        diagonal = products.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal))
    assert not torch.allclose(products.diagonal(-1)[0], products.diagonal(-2)[0])


def test_the_progress_line() -> None:
    assert progress_line(9, 100, 2.5, 12345.6, None, 1.25, 1e-3) == (
        "step 10/100  loss 2.5000  12,346 tokens/s  MFU n/a  grad norm 1.250  lr 1.00e-03"
    )
    assert "MFU 41.0%" in progress_line(9, 100, 2.5, 1.0, 0.41, 1.25, 1e-3)


# -- mesh ----------------------------------------------------------------------------------------------------------


def test_every_directed_edge_has_a_group_of_its_own() -> None:
    assert pipeline_edges(Topology.of(pp=2, tp=1), 2) == [
        Edge(EdgeKind.FORWARD, 0, 1),
        Edge(EdgeKind.BACKWARD, 1, 0),
        Edge(EdgeKind.FORWARD_WRAP, 1, 0),
        Edge(EdgeKind.BACKWARD_WRAP, 0, 1),
    ]
    edges = pipeline_edges(Topology.of(pp=4, dp=2, tp=2), 1)
    assert len(edges) == len(set(edges)) == 4 * 3 * 2
    assert pipeline_edges(Topology.of(pp=1, tp=2), 1) == []


def test_the_demo_s_configuration_is_valid() -> None:
    config = load_config(ROOT / "trainer" / "configs" / "demo.toml")
    config.validate(8)
    assert config.topology().axes == (("pp", 2), ("dp", 2), ("tp", 2))
    assert config.parallel.chunks == 2
    assert config.fault == ("slow rank=5 factor=1.5 segment=forward from=20",)
