"""How many bytes are read, by whom; and what else than tensors comes back."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megascope.profiler.errors import UsageError
from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.commit import check_text, read_commit
from megascope.trainer.checkpoints.exporting import export_checkpoint
from megascope.trainer.checkpoints.files import shard_path, step_folder
from megascope.trainer.checkpoints.importing import import_checkpoint
from megascope.trainer.config import CheckpointConfig, DataConfig, Tokenizer, TrainConfig
from megascope.trainer.data.batches import Batches, Position, Split
from megascope.trainer.data.corpus import identity_of, read_text
from megascope.trainer.loop import Trainer
from support.checkpoints import commit_of
from support.forkrun import run_ranks
from support.training import run_config, small_config

SAVED = 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two tensor-parallel ranks."""
    folder = tmp_path_factory.mktemp("reading")
    run_config(small_config(tp=2, steps=SAVED, checkpoint=CheckpointConfig(folder=folder, every=SAVED)))
    return folder


def bytes_read(config: TrainConfig) -> list[int]:
    def work() -> int:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        assert trainer._checkpointer is not None
        return trainer._checkpointer.begin().size_bytes

    return run_ranks(config.topology().world_size, work)


def test_one_rank_of_a_data_parallel_group_reads_for_all(saved: Path) -> None:
    size = read_commit(saved, SAVED).state_bytes
    layout: dict[str, Any] = {"dp": 4, "steps": 4, "train": {"microbatches": 2}}
    once = small_config(**layout, checkpoint=CheckpointConfig(folder=saved))
    assert bytes_read(once) == [size, 0, 0, 0]
    each = replace(once, checkpoint=replace(once.checkpoint, read_once=False))
    of_each = bytes_read(each)
    assert all(size / 4 < count < size for count in of_each)
    assert sum(of_each) > size  # what lies across a border of shards is read twice


def test_the_layout_that_saved_reads_every_byte_once(saved: Path) -> None:
    commit = read_commit(saved, SAVED)
    same = small_config(tp=2, steps=4, checkpoint=CheckpointConfig(folder=saved))
    norms = 3 * 4 * (4 * 2 + 1) * 2 * 32  # three states of scales and shifts, which the first rank saves for both
    assert sum(bytes_read(same)) == commit.state_bytes + norms


def test_the_generators_of_a_rank_come_back_in_the_same_layout(saved: Path, tmp_path: Path) -> None:
    def draws(config: TrainConfig, save: bool) -> list[float]:
        def work() -> float:
            torch.manual_seed(random.SystemRandom().randrange(2**60))
            trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
            checkpointer = trainer._checkpointer
            assert checkpointer is not None
            restored = checkpointer.begin()
            if save:
                checkpointer.save(SAVED, restored.position)
                checkpointer.finish()
                trainer._world.all_reduce(torch.zeros(1))
            return float(torch.rand(()))

        return run_ranks(2, work)

    folder = tmp_path / "checkpoints"
    config = small_config(tp=2, checkpoint=CheckpointConfig(folder=folder))
    before = draws(config, True)
    assert before[0] != before[1]
    assert draws(config, False) == before
    other = replace(config, parallel=replace(config.parallel, tp=1, dp=2))
    after = draws(other, False)
    assert draws(other, False) == after  # another layout: new ones, the same every time
    assert after[0] != after[1]
    assert set(after) & set(before) == set()


def test_another_text_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = small_config(steps=2, checkpoint=CheckpointConfig(folder=folder, every=2))
    run_config(config)
    shorter = replace(config, data=replace(config.data, limit_bytes=90_000, eval_share=0.1))
    wanted = r"was trained on another text \(size_bytes 100000, now 90000, eval_share 0.05, now 0.1\): use the same"
    with pytest.raises(AssertionError, match=f"UsageError: .*{wanted}"):
        run_config(shorter)
    meant = replace(
        shorter, checkpoint=replace(config.checkpoint, other_text=True), train=replace(config.train, steps=4)
    )
    assert run_config(meant)[0].start_step == 2
    assert read_commit(folder, 4).text == identity_of(read_text(shorter.data), shorter.data, None)


def test_another_tokenizer_is_refused_whatever_is_meant(tmp_path: Path) -> None:
    """Its tokens' numbers mean something else."""
    data = DataConfig(tokenizer=Tokenizer.BPE)
    texts = [identity_of(b"text", data, tokenizer) for tokenizer in ("one", "other")]
    commit = commit_of(1, [], text=texts[0])
    check_text(tmp_path, commit, texts[0], may_differ=False)
    check_text(tmp_path, replace(commit, text=None), texts[1], may_differ=False)
    with pytest.raises(UsageError, match=r"was trained on another text \(of the same size\): use the same"):
        check_text(tmp_path, commit, identity_of(b"test", data, "one"), may_differ=False)
    with pytest.raises(UsageError, match=r"saved with the tokenizer bpe \w+, now bpe \w+, and with another one a"):
        check_text(tmp_path, commit, texts[1], may_differ=True)


def test_nothing_is_left_of_the_norms_of_a_checkpoint_that_was_refused(tmp_path: Path) -> None:
    """The one before it, as of an import, has none: the history that adaptive clipping looks at begins anew."""
    folder = tmp_path / "checkpoints"
    config = small_config(steps=2, train={"clip_factor": 0.9}, checkpoint=CheckpointConfig(folder=folder, every=2))
    run_config(config)
    export_checkpoint(folder, tmp_path / "model")
    import_checkpoint(tmp_path / "model", tmp_path / "made")
    shutil.copytree(step_folder(folder, 2), step_folder(tmp_path / "made", 2))
    damage(shard_path(tmp_path / "made", 2, 0))
    resumed = replace(config, checkpoint=CheckpointConfig(folder=tmp_path / "made"))

    def work() -> tuple[int, list[float]]:
        trainer = Trainer(resumed, NullRecorder(), torch.device("cpu"))
        assert trainer._checkpointer is not None
        step = trainer._checkpointer.begin().step
        return step, trainer.optimizer.norm_history.tolist()

    assert run_ranks(1, work) == [(0, [0.0, 0.0])]


def damage(path: Path) -> None:
    """Alter the last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_batches_of_another_size_go_on_where_the_old_ones_ended(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = small_config(steps=3, checkpoint=CheckpointConfig(folder=folder, every=1, keep=1))
    run_config(config)
    for batch, steps in ((16, 5), (8, 6)):
        train = replace(config.train, batch=batch, steps=steps)
        run_config(replace(config, train=train))
    assert read_commit(folder, 6).position == {"batch": 8, "number": 5, "draw": 3 * 8 + 2 * 16}


def test_no_sequence_is_drawn_twice_or_left_out() -> None:
    config = small_config()
    tokens = np.arange(5000, dtype=np.uint16)
    batches = Batches(tokens, config)
    expected = batches.rows(Split.TRAIN, 0, 0, 8 * 8)
    position = Position(batch=8).going_on(2, 16).going_on(3, 4)
    assert position == Position(batch=4, number=3, draw=32)
    assert position.going_on(5, 4) is position
    batches.position = position
    np.testing.assert_array_equal(batches.rows(Split.TRAIN, 4, 0, 4), expected[36:40])
    evaluated = Batches(tokens, config).rows(Split.EVAL, 1, 0, 8)
    np.testing.assert_array_equal(batches.rows(Split.EVAL, 1, 0, 8), evaluated)
