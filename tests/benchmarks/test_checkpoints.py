"""The benchmark of checkpoints: its large state is saved by one rank, and by two at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import checkpoints
from megascope.trainer.config import ModelConfig


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_save_at_once_share_the_state(ranks: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoints, "LARGE", ModelConfig(layers=1, width=64, heads=2, sequence=16))
    costs = checkpoints.large_costs(tmp_path, ranks)
    assert costs["ranks"] == ranks
    assert costs["state_bytes"] == pytest.approx(ranks * costs["state_bytes_of_a_rank"], rel=0.01)
    assert len(costs["stall_ms"]) == len(costs["copy_ms"]) == checkpoints.REPEATS
    assert min(costs["stall_ms"] + costs["copy_ms"]) > 0
