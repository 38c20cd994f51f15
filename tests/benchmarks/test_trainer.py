"""The trainer's benchmark compares like with like: the plain model computes what the trainer computes."""

from __future__ import annotations

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


def test_a_rank_that_fails_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 failed:\n(.|\n)*ZeroDivisionError"):
        run_ranks(1, lambda: 1 / 0, timeout_s=60)
