"""The trainer's benchmark compares like with like: the plain model computes what the trainer computes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import trainer
from benchmarks.ranks import run_ranks
from megascope.trainer.config import ParallelConfig


@pytest.mark.timeout(120)
def test_the_plain_process_has_the_trainer_s_losses() -> None:
    plain = run_ranks(1, lambda: trainer.plain(trainer.CONFIG), timeout_s=60)[0]
    config = replace(trainer.CONFIG, parallel=ParallelConfig())
    own = run_ranks(1, lambda: trainer.ours(config), timeout_s=60)[0]
    np.testing.assert_allclose(own["losses"], plain["losses"], rtol=1e-6)
    assert own["cpu_ns"] > 0 < plain["cpu_ns"]


@pytest.mark.timeout(120)
def test_exposed_waits_are_read_from_the_boxes(tmp_path: Path) -> None:
    config = replace(trainer.CONFIG, parallel=ParallelConfig(dp=2, overlap=False))
    run_ranks(2, lambda: trainer.ours(config, tmp_path), timeout_s=60)
    assert trainer.exposed_ms(tmp_path) > 0


def test_tokens_a_second_are_by_wall_of_the_first_rank_and_by_processor_time_of_all() -> None:
    ranks = [{"cpu_ns": 50e6, "wall_ns": 200e6}, {"cpu_ns": 150e6, "wall_ns": 400e6}]
    assert trainer.speeds("torch_native_", 1000, ranks) == {
        "torch_native_wall_ms_per_step": 200.0,
        "torch_native_tokens_per_second": 5000.0,
        "torch_native_tokens_per_second_per_core": 5000.0,
    }
    alone = trainer.speeds("", 1000, ranks[:1])
    assert (alone["tokens_per_second"], alone["tokens_per_second_per_core"]) == (5000.0, 20000.0)


@pytest.mark.timeout(200)
def test_all_three_trainings_have_their_tokens_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(trainer.CONFIG, parallel=replace(trainer.CONFIG.parallel, tp=1, dp=1))
    monkeypatch.setattr(trainer, "CONFIG", config)
    monkeypatch.setattr("sys.argv", ["trainer"])
    trainer.main()
    told = json.loads(capsys.readouterr().out)
    assert told["ranks"] == 2
    for name in ("", "single_process_", "torch_native_"):
        for key in ("cpu_ms_per_step", "wall_ms_per_step", "tokens_per_second", "tokens_per_second_per_core"):
            assert told[f"{name}{key}"] > 0
    assert told["torch_native_largest_loss_difference"] < 1e-4


def test_a_rank_that_fails_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 failed:\n(.|\n)*ZeroDivisionError"):
        run_ranks(1, lambda: 1 / 0, timeout_s=60)
