"""Save, kill, resume: bit-identical; what is damaged is refused by name, and the checkpoint before it is used."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path

import pytest
from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoint import committed_steps, shard_path, step_folder
from megascope.trainer.config import CheckpointConfig, TrainConfig
from megascope.trainer.loop import TrainResult
from megascope.trainer.worker import run_worker
from support.forkrun import fork_ranks, run_ranks
from support.training import run_config, small_config

STEPS = 12


def config_with(
    folder: Path, *, steps: int = STEPS, fault: tuple[str, ...] = (), pp: int = 1, dp: int = 2
) -> TrainConfig:
    checkpoint = CheckpointConfig(folder=folder, every=4)
    train = {"learning_rate": 1e-3}
    return small_config(pp=pp, dp=dp, steps=steps, fault=fault, checkpoint=checkpoint, train=train)


@pytest.mark.timeout(60)
def test_resume_after_sigkill_is_bit_identical(tmp_path: Path) -> None:
    expected = run_config(small_config(pp=2, dp=2, steps=STEPS))[0]
    killed = config_with(tmp_path, pp=2, fault=("kill rank=1 step=10",))
    outcomes = fork_ranks(4, lambda: run_worker(killed, NullRecorder()), settle_s=1)
    assert outcomes[1].code == -signal.SIGKILL
    resumed = run_config(config_with(tmp_path, pp=2))
    for result in resumed:
        assert result.start_step in (4, 8)  # the write of the second may have been cut short by the kill
        assert result.losses == expected.losses[result.start_step :]
        assert result.grad_norms == expected.grad_norms[result.start_step :]
    assert committed_steps(tmp_path) == [12, 8]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two checkpoints of two ranks, after steps 4 and 8."""
    run_config(config_with(tmp_path, steps=8))
    assert committed_steps(tmp_path) == [8, 4]
    return tmp_path


def resume_with_warnings(folder: Path) -> list[tuple[TrainResult, str]]:
    def work() -> tuple[TrainResult, str]:
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("megascope.trainer.checkpoint").addHandler(handler)
        result = run_worker(config_with(folder, steps=9), NullRecorder())
        return result, "\n".join(records)

    return run_ranks(2, work)


@pytest.mark.parametrize("damage", ["missing", "cut", "altered"])
def test_a_damaged_shard_is_named_and_the_previous_checkpoint_is_used(saved: Path, damage: str) -> None:
    path = shard_path(saved, 8, 1)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-4] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    outcomes = resume_with_warnings(saved)
    assert [result.start_step for result, _ in outcomes] == [4, 4]
    assert str(path) in outcomes[1][1]
    assert "Checkpoint 8 is not used" in outcomes[1][1]
    expected = run_config(small_config(dp=2, steps=9))[0]
    assert outcomes[0][0].losses[0] == expected.losses[4]


def test_an_uncommitted_checkpoint_does_not_count(saved: Path) -> None:
    (step_folder(saved, 8) / "commit.json").unlink()
    assert [result.start_step for result, _ in resume_with_warnings(saved)] == [4, 4]


def test_no_intact_checkpoint_is_an_error_and_no_silent_restart(saved: Path) -> None:
    for step in (4, 8):
        shard_path(saved, step, 0).unlink()
    with pytest.raises(AssertionError, match="is intact on all ranks"):
        resume_with_warnings(saved)


def test_another_layout_is_refused(saved: Path) -> None:
    with pytest.raises(AssertionError, match=r"UsageError: .*step-00000008/commit.json was saved with another axes"):
        run_config(config_with(saved, dp=1, pp=2))


def test_the_description_places_every_element_of_the_model(saved: Path) -> None:
    """Each state of each parameter is covered once by the pieces of all ranks, so that any layout can be built."""
    covered: dict[tuple[str, str], int] = {}
    sizes: dict[str, int] = {}
    for rank in range(2):
        description = json.loads(shard_path(saved, 8, rank).with_suffix(".json").read_text())
        assert description["size_bytes"] == shard_path(saved, 8, rank).stat().st_size
        for piece in description["pieces"]:
            key = piece["parameter"], piece["state"]
            covered[key] = covered.get(key, 0) + piece["length"]
            rows, *columns = piece["shape"]
            sizes[piece["parameter"]] = rows * (columns[0] if columns else 1)
    assert covered == {
        (name, state): size for name, size in sizes.items() for state in ("master", "first_moment", "second_moment")
    }
    assert {"embedding.weight", "layers.3.feed.down", "head"} <= set(sizes)


def test_an_unwritable_folder_ends_training_with_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    outcome = fork_ranks(1, lambda: run_worker(config_with(blocked, dp=1), NullRecorder()))[0]
    assert outcome.error is not None
    assert f"MegascopeError: Cannot write a checkpoint to {blocked}: " in outcome.error
