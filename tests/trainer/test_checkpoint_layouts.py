"""Saved under one layout, continued under any other: the same losses; under the same one, the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.files import committed_steps
from megascope.trainer.config import CheckpointConfig, Precision, TrainConfig
from megascope.trainer.loop import Trainer, TrainResult
from support.forkrun import run_ranks
from support.training import run_config, small_config

STEPS, SAVED = 6, 3
WHOLE = {"tp": 2, "pp": 2, "dp": 2, "chunks": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    "tp4": {"tp": 4},
    "pp4": {"pp": 4},
    "dp2": {"dp": 2},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "dp4-each-reads": {"dp": 4, "read_once": False, "train": {"microbatches": 2}},
    "pp2-v2-order": {"pp": 2, "chunks": 2, "dp": 2, "order": ("dp", "tp", "pp")},
    "dp2-zero3": {"dp": 2, "zero": 3},
    "dp4-pods": {"dp": 4, "pod": 2, "train": {"microbatches": 2}},
}


CASES = [(Precision.FP64, name) for name in LAYOUTS]
CASES += [(Precision.FP32, name) for name in ("single", "tp4", "dp4-each-reads", "pp2-v2-order")]
"""Every layout in float64, where only the mathematics counts; in float32 those that cut differently in kind."""

PARALLEL = ("order", "zero", "pod", "bucket_bytes", "stage_layers")


def config_of(layout: dict[str, Any], folder: Path, precision: Precision, *, every: int = 0) -> TrainConfig:
    sizes = {name: value for name, value in layout.items() if name in ("tp", "pp", "dp", "chunks")}
    more = {name: value for name, value in layout.items() if name in PARALLEL}
    checkpoint = CheckpointConfig(folder=folder, every=every, read_once=layout.get("read_once", True))
    job: dict[str, Any] = {"steps": STEPS, "precision": precision, "train": layout.get("train")}
    return small_config(**sizes, **job, parallel=more, checkpoint=checkpoint)


@cache
def reference(precision: Precision) -> TrainResult:
    return run_config(small_config(steps=STEPS, precision=precision))[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Precision, Path]:
    """In each precision a checkpoint at 2x2x2 with two chunks."""
    folders = {precision: tmp_path_factory.mktemp("layouts") for precision in (Precision.FP64, Precision.FP32)}
    for precision, folder in folders.items():
        config = config_of(WHOLE, folder, precision, every=SAVED)
        run_config(replace(config, train=replace(config.train, steps=SAVED)))
        assert committed_steps(folder) == [SAVED]
    return folders


@pytest.mark.parametrize(("precision", "name"), CASES)
@pytest.mark.timeout(60)
def test_any_layout_continues_with_the_losses_of_one_process(
    saved: Mapping[Precision, Path], precision: Precision, name: str
) -> None:
    folder, layout = saved[precision], LAYOUTS[name]
    expected = reference(precision).losses[SAVED:]
    norms = reference(precision).grad_norms[SAVED:]
    for result in run_config(config_of(layout, folder, precision)):
        assert result.start_step == SAVED
        if precision is Precision.FP64:
            np.testing.assert_allclose(result.losses, expected, rtol=0, atol=1e-10)
            np.testing.assert_allclose(result.grad_norms, norms, rtol=0, atol=1e-10)
        else:
            unit = np.spacing(np.asarray(expected, dtype=np.float32))
            assert np.all(np.abs(np.subtract(result.losses, expected)) <= 8 * unit)


@pytest.mark.parametrize("precision", [Precision.FP64, Precision.FP32])
@pytest.mark.timeout(60)
def test_the_same_layout_continues_with_the_same_bits(saved: Mapping[Precision, Path], precision: Precision) -> None:
    folder = saved[precision]
    expected = run_config(config_of(WHOLE, folder / "none", precision))[0]
    for result in run_config(config_of(WHOLE, folder, precision)):
        assert result.losses == expected.losses[SAVED:]
        assert result.grad_norms == expected.grad_norms[SAVED:]


@pytest.mark.timeout(60)
def test_there_and_back_again_changes_no_bit_of_the_state(tmp_path: Path) -> None:
    """Loaded and saved again under other layouts, each with other cuts and buckets, and then under the first."""

    def state_of(layout: dict[str, Any], source: Path, target: Path | None) -> dict[str, torch.Tensor]:
        config = config_of(layout, source, Precision.FP32)

        def work() -> dict[str, torch.Tensor]:
            trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
            assert trainer._checkpointer is not None
            restored = trainer._checkpointer.begin()
            assert restored.step == SAVED
            if target is not None:
                other = replace(config, checkpoint=replace(config.checkpoint, folder=target))
                again = type(trainer._checkpointer)(
                    other, trainer._mesh, trainer.optimizer, trainer._world, trainer._probe
                )
                again.save(SAVED, restored.position)
                again.finish()
                trainer._world.all_reduce(torch.zeros(1))
            states = [state.clone() for bucket in trainer.optimizer.buckets for state in bucket.state()]
            return {str(number): state for number, state in enumerate(states)}

        results = run_ranks(config.topology().world_size, work)
        return {f"{rank}/{name}": value for rank, result in enumerate(results) for name, value in result.items()}

    first = config_of(WHOLE, tmp_path / "0", Precision.FP32, every=SAVED)
    run_config(replace(first, train=replace(first.train, steps=SAVED)))
    before = state_of(WHOLE, tmp_path / "0", None)
    layouts: list[dict[str, Any]] = [
        {"tp": 4},
        {"dp": 3, "bucket_bytes": 5000, "train": {"batch": 12}},
        {"pp": 2, "chunks": 2, "stage_layers": (1, 1, 1, 1), "read_once": False},
        {"tp": 2, "dp": 2, "order": ("dp", "pp", "tp")},
    ]
    for number, layout in enumerate(layouts):
        state_of(layout, tmp_path / str(number), tmp_path / str(number + 1))
    after = state_of(WHOLE, tmp_path / str(len(layouts)), None)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.timeout(60)
def test_tied_matrices_and_the_history_of_norms_come_along(tmp_path: Path) -> None:
    """Two stages hold the tied matrix, of which one is saved; adaptive clipping looks at the norms of earlier steps."""

    def job(layout: dict[str, Any], folder: Path, every: int = 0) -> TrainConfig:
        config = config_of(layout, folder, Precision.FP64, every=every)
        return replace(
            config,
            model=replace(config.model, tied=True, dropout=0.1),
            train=replace(config.train, clip_factor=0.9),
        )

    first = job({"pp": 2, "chunks": 2}, tmp_path, SAVED)
    run_config(replace(first, train=replace(first.train, steps=SAVED)))
    expected = run_config(job({}, tmp_path / "none"))[0]
    for layout in ({"tp": 2}, {"pp": 2}, {"dp": 2, "read_once": False}):
        for result in run_config(job(layout, tmp_path)):
            assert result.start_step == SAVED
            np.testing.assert_allclose(result.losses, expected.losses[SAVED:], rtol=0, atol=1e-10)
            np.testing.assert_allclose(result.grad_norms, expected.grad_norms[SAVED:], rtol=0, atol=1e-10)
