"""Between whole checkpoints only blocks that have changed are written; what they build upon stays as long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.trainer.checkpoints.commit import read_commit
from megascope.trainer.checkpoints.files import committed_steps, remove_uncommitted, set_aside, step_folder
from megascope.trainer.checkpoints.reading import read_saved
from megascope.trainer.config import CheckpointConfig
from support.checkpoints import new_writers, read_checkpoint, some_values, write_checkpoint, write_shards
from support.training import run_config, small_config


@settings(max_examples=40)
@given(changes=st.lists(st.lists(st.tuples(st.sampled_from(["first", "second"]), st.integers(0, 23))), max_size=6))
def test_any_changes_are_read_back(tmp_path_factory: pytest.TempPathFactory, changes: list[list[Any]]) -> None:
    folder = tmp_path_factory.mktemp("changes")
    writers, values = new_writers(folder, whole_every=4), some_values()
    history = []
    for step, changed in enumerate(changes):
        for name, place in changed:
            values[name].ravel()[place] += 1
        commit = write_checkpoint(folder, writers, step, values)
        assert (commit.size_bytes == commit.state_bytes) >= (step % 4 == 0)
        assert all(base >= step - step % 4 for base in commit.bases)
        history.append({name: tensor.copy() for name, tensor in values.items()})
    for step, expected in enumerate(history):
        for name, tensor in read_checkpoint(folder, step, expected).items():
            np.testing.assert_array_equal(tensor, expected[name])


def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    writers, values = new_writers(tmp_path, whole_every=3), some_values()
    sizes, bases = [], []
    for step in (1, 2, 3, 4):
        if step == 3:
            values["second"][9, 3] += 1  # in the second rank's last block: 80 bytes are cut into 32, 32 and 16
        commit = write_checkpoint(tmp_path, writers, step, values)
        sizes.append(commit.size_bytes)
        bases.append(list(commit.bases))
    assert sizes == [256, 0, 16, 256]
    assert bases == [[], [1], [1], []]


def test_an_uncommitted_checkpoint_is_not_built_upon(tmp_path: Path) -> None:
    writers, values = new_writers(tmp_path, whole_every=9), some_values()
    write_checkpoint(tmp_path, writers, 1, values)
    write_shards(writers, 2, values)  # another rank failed: it may go at any time
    assert [shard.size_bytes for shard in write_shards(writers, 3, values)] == [128, 128]
    remove_uncommitted(tmp_path, before=3)
    assert not step_folder(tmp_path, 2).exists()
    assert step_folder(tmp_path, 3).exists()


def test_what_was_refused_is_set_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    writers, values = new_writers(tmp_path), some_values()
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, writers, step, values)
    assert [path.name for path in sorted(set_aside(tmp_path, 1))] == [
        "step-00000002.refused-1",
        "step-00000003.refused-1",
    ]
    write_checkpoint(tmp_path, writers, 2, values)
    assert [path.name for path in set_aside(tmp_path, 1)] == ["step-00000002.refused-2"]
    assert committed_steps(tmp_path) == [1]
    remove_uncommitted(tmp_path)
    assert len(list(tmp_path.glob("*.refused-*"))) == 3


@pytest.mark.timeout(60)
def test_pruning_keeps_what_is_built_upon_and_resuming_is_exact(tmp_path: Path) -> None:
    """At next to no learning rate the matrices stay as they are, and their moments change."""
    still = {"learning_rate": 1e-30, "min_learning_rate": 0.0, "weight_decay": 0.0}
    checkpoint = CheckpointConfig(folder=tmp_path, every=2, keep=1, whole_every=3)
    config = small_config(dp=2, steps=10, checkpoint=checkpoint, train=still)
    run_config(config)
    assert committed_steps(tmp_path) == [10, 8]
    saved = read_saved(tmp_path, 10)
    assert list(saved.commit.bases) == [8]
    assert 0.6 < saved.commit.size_bytes / saved.commit.state_bytes < 0.7
    of_matrices = (".qkv", ".out", ".up", ".down")
    pieces = [piece for one in saved.descriptions for piece in one.pieces if piece.parameter.endswith(of_matrices)]
    stay = {block.step for piece in pieces if piece.state == "master" for block in piece.blocks}
    change = {block.step for piece in pieces if piece.state == "second_moment" for block in piece.blocks}
    assert (stay, change) == ({8}, {10})
    longer = replace(config, train=replace(config.train, steps=12))
    expected = run_config(replace(longer, checkpoint=CheckpointConfig()))[0]
    for result in run_config(longer):
        assert result.start_step == 10
        assert result.losses == expected.losses[10:]
    assert committed_steps(tmp_path) == [12]  # the first of an attempt is whole
    assert not read_commit(tmp_path, 12).bases
