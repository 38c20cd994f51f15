"""A write that fails is reported; the checkpoint before stays valid, and training goes on or stops as configured."""

from __future__ import annotations

import logging
import math
import resource
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.files import committed_steps, step_folder
from megascope.trainer.checkpoints.listing import verify_checkpoints
from megascope.trainer.checkpoints.state import HostCopy
from megascope.trainer.checkpoints.writing import ShardWriter, Written
from megascope.trainer.config import CheckpointConfig, OnFailure, TrainConfig
from megascope.trainer.launch import launch
from megascope.trainer.loop import TrainResult
from megascope.trainer.optim import ShardedOptimizer
from megascope.trainer.stopping import CONTROL_VARIABLE
from megascope.trainer.worker import run_worker
from support.forkrun import Outcome, fork_ranks, run_ranks
from support.training import run_config, small_config


def config_with(folder: Path, on_failure: OnFailure) -> TrainConfig:
    checkpoint = CheckpointConfig(folder=folder, every=2, keep=4, on_failure=on_failure)
    return small_config(pp=2, steps=8, checkpoint=checkpoint)


def full_disk(config: TrainConfig) -> list[Outcome[tuple[TrainResult, str]]]:
    """Train while the kernel refuses what rank 0 writes of its second checkpoint, as it does on a full disk."""

    def work() -> tuple[TrainResult, str]:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("megascope.trainer.checkpoints").addHandler(handler)
        result = run_worker(config, NullRecorder(), progress=limit_writing)
        return result, "\n".join(said)

    return fork_ranks(2, work, settle_s=2)


def limit_writing(line: str) -> None:
    """From before the checkpoint of step 4 until its write is over; called by rank 0 after every step."""
    if line.startswith("step 4/"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    elif line.startswith("step 5/"):
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.timeout(60)
def test_training_goes_on_after_a_write_that_failed(tmp_path: Path) -> None:
    outcomes = full_disk(config_with(tmp_path, OnFailure.CONTINUE))
    assert [outcome.code for outcome in outcomes] == [0, 0]
    expected = run_config(small_config(pp=2, steps=8))[0]
    for outcome in outcomes:
        assert outcome.value is not None
        assert outcome.value[0].losses == expected.losses
    assert outcomes[0].value is not None
    assert (
        f"Rank 0: Cannot write a checkpoint to {tmp_path} (File too large): make room, or change checkpoint.folder. "
        "Training goes on; the checkpoint before stays the newest."
    ) in outcomes[0].value[1]
    assert committed_steps(tmp_path) == [8, 6, 2]
    assert not step_folder(tmp_path, 4).exists()  # what the other rank wrote takes no room any more
    assert [one.problems for one in verify_checkpoints(tmp_path)] == [(), (), ()]


@pytest.mark.timeout(60)
def test_training_stops_after_a_write_that_failed_and_resumes(tmp_path: Path) -> None:
    config = config_with(tmp_path, OnFailure.STOP)
    outcomes = full_disk(config)
    assert outcomes[0].code == 1
    assert f"MegascopeError: Cannot write a checkpoint to {tmp_path} (File too large): make" in str(outcomes[0].error)
    assert committed_steps(tmp_path) == [2]
    expected = run_config(small_config(pp=2, steps=8))[0]
    for result in run_config(config):
        assert result.start_step == 2
        assert result.losses == expected.losses[2:]
    assert committed_steps(tmp_path) == [8, 6, 4, 2]


@pytest.mark.timeout(60)
def test_a_commit_that_fails_leaves_nothing_half_committed(tmp_path: Path) -> None:
    """The shards are on disk; in the place of the commit file's temporary name is a folder."""
    config = config_with(tmp_path, OnFailure.CONTINUE)

    def block(_: str) -> None:
        if not committed_steps(tmp_path):
            (step_folder(tmp_path, 4) / "commit.json.tmp").mkdir(parents=True, exist_ok=True)

    results = run_ranks(2, lambda: run_worker(config, NullRecorder(), progress=block))
    assert [len(result.losses) for result in results] == [8, 8]
    assert committed_steps(tmp_path) == [8, 6, 2]
    assert not step_folder(tmp_path, 4).exists()


@pytest.mark.timeout(60)
def test_a_refused_checkpoint_is_kept_and_its_step_saved_anew(tmp_path: Path) -> None:
    config = config_with(tmp_path, OnFailure.STOP)
    run_config(replace(config, train=replace(config.train, steps=4)))
    shard = step_folder(tmp_path, 4) / "rank-00001.shard"
    content = shard.read_bytes()
    shard.write_bytes(content[:100])
    assert [result.start_step for result in run_config(config)] == [2, 2]
    assert committed_steps(tmp_path) == [8, 6, 4, 2]
    kept = tmp_path / "step-00000004.refused-1" / "rank-00001.shard"
    assert kept.read_bytes() == content[:100]
    assert shard.read_bytes() == content  # the same four steps, written again


@pytest.mark.timeout(60)
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write waits until three more steps have been trained, so that training cannot have waited for it."""
    trained, write = threading.Event(), ShardWriter.write
    reached: list[bool] = []

    def late(*arguments: Any) -> Written:
        reached.append(trained.wait(20))
        return write(*arguments)

    def look(line: str) -> None:
        if line.startswith("step 7/"):
            trained.set()

    monkeypatch.setattr(ShardWriter, "write", late)
    config = small_config(steps=7, checkpoint=CheckpointConfig(folder=tmp_path, every=4))
    (found,) = run_ranks(1, lambda: (run_worker(config, NullRecorder(), progress=look), reached))
    assert found[1] == [True]
    assert committed_steps(tmp_path) == [4]


@pytest.mark.timeout(60)
def test_an_error_of_any_kind_in_the_background_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Written:
        raise MemoryError

    monkeypatch.setattr(ShardWriter, "write", broken)
    config = small_config(steps=4, checkpoint=CheckpointConfig(folder=tmp_path, every=2))
    with pytest.raises(AssertionError, match=r"MegascopeError: Cannot write a checkpoint to .* \(MemoryError\): make"):
        run_config(config)
    assert committed_steps(tmp_path) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("whole_every", [1, 3])
def test_what_is_saved_in_need_replaces_no_checkpoint_of_the_same_step(tmp_path: Path, whole_every: int) -> None:
    """A loss that is not finite in the step right after a checkpoint: its last good state is committed already."""
    checkpoint = CheckpointConfig(folder=tmp_path, every=2, whole_every=whole_every)
    config = small_config(steps=6, checkpoint=checkpoint, fault=("nan rank=0 step=2",))
    [outcome] = fork_ranks(1, lambda: run_worker(config, NullRecorder()))
    assert outcome.error is not None
    assert "not finite" in outcome.error
    assert [(one.step, one.problems) for one in verify_checkpoints(tmp_path)] == [(2, ())]
    assert run_config(replace(config, fault=()))[0].start_step == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("layout", "culprit"), [({}, 0), ({"dp": 2}, 0), ({"pp": 4}, 3)], ids=["one", "dp2-first", "pp4-last"]
)
def test_the_last_good_state_is_saved_where_no_checkpoint_has_it(
    tmp_path: Path, layout: dict[str, Any], culprit: int
) -> None:
    """By all ranks: also where the one whose loss is not finite holds the store, and the others wait for each other.

    The one before stays, although only one is kept otherwise.
    """
    checkpoint = CheckpointConfig(folder=tmp_path, every=2, keep=1)
    config = small_config(steps=6, checkpoint=checkpoint, fault=(f"nan rank={culprit} step=3",), **layout)
    outcomes = fork_ranks(config.topology().world_size, lambda: run_worker(config, NullRecorder()))
    assert "not finite" in str(outcomes[culprit].error)
    assert all("not finite" not in str(one.error) for one in outcomes if one.rank != culprit)
    assert [(one.step, one.problems) for one in verify_checkpoints(tmp_path)] == [(3, ()), (2, ())]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("flips_in", "state", "dp", "newest"),
    [(4, "master", 1, 4), (3, "master", 1, 2), (3, "second_moment", 2, 2)],
    ids=["after-a-checkpoint", "before-one", "moment-of-one-rank"],
)
def test_a_state_that_is_not_finite_itself_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flips_in: int, state: str, dp: int, newest: int
) -> None:
    """A bit of the last rank's flips: the newest checkpoint is from before. With such a moment losses stay finite."""
    step = ShardedOptimizer.step

    def flipped(self: ShardedOptimizer, number: int, loss: Tensor | None, **more: bool) -> Tensor:
        metrics = step(self, number, loss, **more)
        if number == flips_in and dist.get_rank() == dp - 1:
            getattr(self.buckets[0], state)[0] = math.nan if state == "master" else math.inf
        if number == flips_in:
            self.buckets[0].gather(wait=True)
        return metrics

    monkeypatch.setattr(ShardedOptimizer, "step", flipped)
    config = small_config(dp=dp, steps=8, checkpoint=CheckpointConfig(folder=tmp_path, every=2, keep=1))
    outcomes = fork_ranks(dp, lambda: run_worker(config, NullRecorder()))
    sentence = "rank 1 after step 4 is not finite (NaN or infinite), and is not saved" if dp == 2 else "not finite"
    assert sentence in str(outcomes[-1].error)
    assert [(one.step, one.problems) for one in verify_checkpoints(tmp_path)] == [(newest, ())]
    if dp == 1:  # a rank that loses its peer may leave half a checkpoint, which the next start removes
        assert [path.name for path in tmp_path.glob("step-*")] == [step_folder(tmp_path, newest).name]


@pytest.mark.timeout(60)
def test_a_checkpoint_that_is_not_finite_is_not_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it came to be committed."""
    step = ShardedOptimizer.step

    def broken(self: ShardedOptimizer, number: int, loss: Tensor | None, **more: bool) -> Tensor:
        metrics = step(self, number, loss, **more)
        self.buckets[0].second_moment[0] = math.inf if number == 3 else 0.0
        return metrics

    config = small_config(steps=4, checkpoint=CheckpointConfig(folder=tmp_path, every=2))
    with monkeypatch.context() as patched:
        patched.setattr(ShardedOptimizer, "step", broken)
        patched.setattr(HostCopy, "is_finite", lambda _: True)
        run_config(config)
    assert committed_steps(tmp_path) == [4, 2]
    assert run_config(config)[0].start_step == 2
    assert (tmp_path / "step-00000004.refused-1").exists()


@pytest.mark.timeout(60)
def test_weights_that_an_evaluation_finds_broken_are_not_saved(tmp_path: Path) -> None:
    train = {"learning_rate": 1e30, "warmup_steps": 0, "eval_every": 1, "eval_batches": 1}
    config = small_config(steps=3, train=train, checkpoint=CheckpointConfig(folder=tmp_path, every=2))
    [outcome] = fork_ranks(1, lambda: run_worker(config, NullRecorder()))
    assert "not finite" in str(outcome.error)
    assert committed_steps(tmp_path) == []


@pytest.mark.timeout(60)
def test_the_launcher_lets_all_ranks_save_the_last_good_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = CheckpointConfig(folder=tmp_path / "checkpoints", every=2)
    config = small_config(steps=6, pp=2, checkpoint=checkpoint, fault=("nan rank=1 step=3",))
    config = replace(config, record=replace(config.record, enabled=False))
    assert launch(config, 2, environment={}) == 1
    assert "rank 1: The loss of micro-batch 0 on this rank is not finite" in capfd.readouterr().err
    assert committed_steps(tmp_path / "checkpoints") == [3, 2]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("every", [0, 4])
def test_a_job_that_is_to_stop_and_cannot_save_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Also where a checkpoint that cannot be written is no reason to end training, or was due anyway."""
    control = tmp_path / "control"
    control.write_text("4")
    checkpoint = CheckpointConfig(folder=tmp_path / "checkpoints", every=every, on_failure=OnFailure.CONTINUE)
    config = small_config(steps=6, checkpoint=checkpoint)

    def broken(*_: Any) -> Written:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ShardWriter, "write", broken)
    with pytest.raises(AssertionError, match=r"MegascopeError: Cannot write .* \(No space left on device\): make room"):
        run_ranks(1, lambda: run_worker(config, NullRecorder()), environment={CONTROL_VARIABLE: str(control)})
