"""Which sequences are trained on: each once in an epoch, none lost or repeated over failures, layouts and skips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.null import NullRecorder
from megascope.trainer.config import CheckpointConfig, DataConfig, TrainConfig
from megascope.trainer.data.batches import Batches, Split
from megascope.trainer.data.loader import Loader
from megascope.trainer.data.shuffle import shuffled
from megascope.trainer.data.token_files import write_tokens
from megascope.trainer.loop import Trainer
from megascope.trainer.worker import run_worker
from support.forkrun import run_ranks
from support.training import small_config

TOKENS = 5_000
BATCH, SEQUENCE = 8, 32


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_an_order_is_a_permutation(count: int, key: int) -> None:
    places = np.arange(count, dtype=np.uint64)
    order = shuffled(places, np.full(count, key, dtype=np.uint64), count)
    assert sorted(order.tolist()) == places.tolist()


def test_orders_look_random_and_differ() -> None:
    count = 10_000
    places = np.arange(count, dtype=np.uint64)
    orders = [shuffled(places, np.full(count, key, dtype=np.uint64), count).astype(float) for key in (1, 2)]
    for first, second in ((orders[0], orders[1]), (orders[0], places), (orders[0][1:], orders[0][:-1])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert np.count_nonzero(orders[0] == places) < 10


def test_an_epoch_has_each_sequence_once_and_the_next_another_order() -> None:
    batches = Batches(np.arange(TOKENS, dtype=np.uint16), small_config())
    count = (TOKENS - TOKENS // 20 - 1) // SEQUENCE
    epochs = [batches.rows(Split.TRAIN, 0, epoch * count, (epoch + 1) * count)[:, 0] for epoch in range(2)]
    for starts in epochs:
        assert sorted(starts.tolist()) == [SEQUENCE * number for number in range(count)]
    assert not np.array_equal(epochs[0], epochs[1])


# -- what real ranks train on ----------------------------------------------------------------------------------------


def consumed(config: TrainConfig, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, and note the beginnings of the sequences that a step of a replica gets, whoever in it read them."""
    load, begin = Loader.load, Trainer._step

    def noted_step(trainer: Trainer, step: int, result: Any) -> None:
        trainer._loader.step = step  # type: ignore[attr-defined]
        begin(trainer, step, result)

    def noted(loader: Any, split: Split, number: int) -> Any:
        batch = load(loader, split, number)
        if batch is not None and split is Split.TRAIN:
            line = {"step": loader.step, "dp": loader._mesh.index("dp"), "starts": batch[:, 0].tolist()}
            with log.with_name(f"{log.name}-{dist.get_rank()}").open("a") as file:
                file.write(json.dumps(line) + "\n")
        return batch

    monkeypatch.setattr(Loader, "load", noted)
    monkeypatch.setattr(Trainer, "_step", noted_step)
    run_ranks(config.topology().world_size, lambda: run_worker(config, NullRecorder()), timeout_s=60)


def by_step(log: Path, steps: Sequence[int]) -> dict[int, list[int]]:
    """The sequences of some steps, replica by replica; all ranks of a replica must have got the same."""
    found: dict[tuple[int, int], list[int]] = {}
    for path in sorted(log.parent.glob(f"{log.name}-*")):
        for line in map(json.loads, path.read_text().splitlines()):
            assert found.setdefault((line["step"], line["dp"]), line["starts"]) == line["starts"]
    return {
        step: [start for (own, _), starts in sorted(found.items()) if own == step for start in starts] for step in steps
    }


def test_no_sample_is_lost_or_repeated_over_a_failure_another_layout_and_skipped_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks die in step 5 of a job that saves every 2 steps; it goes on in another layout, with other batches ahead."""
    write_tokens(tmp_path / "t.npy", [np.arange(TOKENS, dtype=np.uint16)], TOKENS, "{}")
    base = small_config(steps=9)
    base = replace(
        base,
        model=replace(base.model, vocabulary=TOKENS, width=16, layers=2),
        data=DataConfig(tokens=tmp_path / "t.npy", skip=(3, 7)),
        checkpoint=CheckpointConfig(folder=tmp_path / "checkpoints", every=2),
    )
    first = replace(base, parallel=replace(base.parallel, tp=2, dp=2), fault=("raise rank=1 step=5 segment=forward",))
    with pytest.raises(AssertionError, match="rank"):
        consumed(first, tmp_path / "first", monkeypatch)
    monkeypatch.undo()
    second = replace(base, parallel=replace(base.parallel, pp=2, dp=1), data=replace(base.data, prefetch=5))
    consumed(second, tmp_path / "second", monkeypatch)
    assert by_step(tmp_path / "second", range(4)) == {step: [] for step in range(4)}, "it went on with step 4"

    trained = by_step(tmp_path / "first", range(4)) | by_step(tmp_path / "second", range(4, 9))
    drawn = Batches(np.arange(TOKENS, dtype=np.uint16), base)
    expected = [drawn.rows(Split.TRAIN, number, 0, BATCH)[:, 0].tolist() for number in (0, 1, 2, 4, 5, 6, 8, 9, 10)]
    assert list(trained.values()) == expected
    starts = [start for each in trained.values() for start in each]
    assert len(starts) == len(set(starts)) == 9 * BATCH
