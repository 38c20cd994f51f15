"""Save, kill, resume: bit-identical; what is damaged is refused by name, and the checkpoint before it is used."""

from __future__ import annotations

import json
import logging
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from megascope.profiler.box.box import BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import open_recorder
from megascope.trainer.checkpoints.files import committed_steps, shard_path, step_folder
from megascope.trainer.config import CheckpointConfig, Precision, TrainConfig
from megascope.trainer.inputs import check_inputs
from megascope.trainer.loop import TrainResult
from megascope.trainer.worker import run_worker
from support.forkrun import fork_ranks, run_ranks
from support.recording import settings
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


def test_the_stages_of_a_checkpoint_are_spans(tmp_path: Path) -> None:
    def train(spool: Path) -> Counter[tuple[str, str | None]]:
        recorder = open_recorder(settings(spool))
        run_worker(config_with(tmp_path / "checkpoints", steps=4, dp=1), recorder)
        box = spool / "run" / "0" / "rank-00000.box"
        lines = [line for _, line in read_metadata(box.with_suffix(".meta.jsonl")) if line["kind"] == "segment"]
        names = {line["index"]: str(line["name"]) for line in lines}
        reader = BoxReader(box)
        records = [record for ring in range(reader.layout.rings) for record in reader.read_ring(ring, 0).records]
        found = [(names[int(record["segment"])], names.get(int(record["parent"]))) for record in records]
        return Counter((name, parent) for name, parent in found if name.startswith("checkpoint_"))

    (first,) = run_ranks(1, lambda: train(tmp_path / "first"))
    assert first == {
        ("checkpoint_load", None): 1,
        ("checkpoint_find", "checkpoint_load"): 1,  # there was nothing to load
        ("checkpoint_stage", None): 1,
        ("checkpoint_snapshot", "checkpoint_stage"): 1,
        ("checkpoint_save", None): 1,
        ("checkpoint_write", "checkpoint_save"): 2,  # the shard and its description
        ("checkpoint_sync", "checkpoint_save"): 4,  # each file and its folder
        ("checkpoint_rename", "checkpoint_save"): 2,
        ("checkpoint_commit", "checkpoint_save"): 1,
    }
    (second,) = run_ranks(1, lambda: train(tmp_path / "second"))
    assert second.pop(("checkpoint_read", "checkpoint_load")) > 1  # a state of a bucket each
    assert second == {
        ("checkpoint_load", None): 1,
        ("checkpoint_find", "checkpoint_load"): 1,
        ("checkpoint_gather", "checkpoint_load"): 1,
    }


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run_config(config_with(folder, steps=8))
    assert committed_steps(folder) == [8, 4]
    return folder


@pytest.fixture
def saved(saved_once: Path, tmp_path: Path) -> Path:
    """Two checkpoints of two ranks, after steps 4 and 8."""
    return Path(shutil.copytree(saved_once, tmp_path / "saved"))


def resume_with_warnings(folder: Path) -> list[tuple[TrainResult, str]]:
    def work() -> tuple[TrainResult, str]:
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("megascope.trainer.checkpoints").addHandler(handler)
        result = run_worker(config_with(folder, steps=9), NullRecorder())
        return result, "\n".join(records)

    return run_ranks(2, work)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("rank-00001.shard", "missing"),
        ("rank-00001.shard", "cut"),
        ("rank-00001.shard", "altered"),
        ("rank-00000.json", "missing"),
        ("rank-00001.json", "altered"),
        ("commit.json", "cut"),
    ],
)
def test_a_damaged_file_is_named_and_the_previous_checkpoint_is_used(saved: Path, file: str, damage: str) -> None:
    path = step_folder(saved, 8) / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-4] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    outcomes = resume_with_warnings(saved)
    assert [result.start_step for result, _ in outcomes] == [4, 4]
    assert f"Checkpoint 8 is not used: {path}" in outcomes[0][1]  # the first of the group reads for both
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


def test_another_model_is_refused(saved: Path) -> None:
    config = config_with(saved)
    other = replace(config, model=replace(config.model, layers=2, window=8))
    wanted = r"commit.json was saved with another model \(layers 4, now 2, window None, now 8\): use the same, or"
    with pytest.raises(UsageError, match=wanted):
        check_inputs(other)
    with pytest.raises(AssertionError, match=f"UsageError: .*{wanted}"):
        run_config(other)
    wider = replace(config, model=replace(config.model, precision=Precision.FP64))
    with pytest.raises(UsageError, match=r"another model \(precision fp32, now fp64\)"):
        check_inputs(wider)


def test_a_checkpoint_of_the_first_version_is_refused(saved: Path) -> None:
    path = step_folder(saved, 8) / "commit.json"
    path.write_text(json.dumps({"version": 1, "step": 8, "layout": {}, "shards": []}))
    with pytest.raises(UsageError, match=r"commit.json is of version 1, but this program reads 2: use the one that"):
        check_inputs(config_with(saved))
    with pytest.raises(AssertionError, match=r"UsageError: .* is of version 1"):
        resume_with_warnings(saved)


def test_a_used_folder_is_refused_where_nothing_is_to_be_resumed(saved: Path) -> None:
    """The old checkpoints would push out the new ones, and be what the next start resumes from."""
    config = config_with(saved)
    anew = replace(config, checkpoint=replace(config.checkpoint, resume=False))
    with pytest.raises(UsageError, match=r"resume is false, but .* holds the checkpoint of step 8: give another"):
        check_inputs(anew)
    with pytest.raises(AssertionError, match=r"UsageError: checkpoint\.resume is false"):
        run_config(anew)
    assert committed_steps(saved) == [8, 4]
    empty = saved / "empty"
    results = run_config(replace(anew, checkpoint=replace(anew.checkpoint, folder=empty)))
    assert [result.start_step for result in results] == [0, 0]
    assert committed_steps(empty) == [12, 8]


def test_what_was_left_half_written_is_removed_and_nothing_else(saved: Path) -> None:
    half, other = step_folder(saved, 6), saved / "step-by-step"
    for folder in (half, other):
        folder.mkdir()
        (folder / "rank-00000.shard").write_bytes(b"half")
    run_config(config_with(saved, steps=9))
    assert not half.exists()
    assert other.exists()
    assert committed_steps(saved) == [8, 4]


def test_the_description_places_every_element_of_the_model(saved: Path) -> None:
    """Each state of each parameter is covered once by the pieces of all ranks, so that any layout can be built."""
    covered: dict[tuple[str, str], int] = {}
    sizes: dict[str, int] = {}
    for rank in range(2):
        description = json.loads(shard_path(saved, 8, rank).with_suffix(".json").read_text())
        assert description["size_bytes"] == shard_path(saved, 8, rank).stat().st_size
        for piece in description["pieces"]:
            if piece["state"] == "small":
                continue
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
    with pytest.raises(
        MegascopeError, match=rf"Cannot write checkpoints to {blocked} \(.*\): change checkpoint.folder"
    ):
        check_inputs(config_with(blocked, dp=1))


def test_a_folder_that_goes_away_ends_training_with_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def work() -> None:
        run_worker(config_with(folder, dp=1), NullRecorder(), progress=lambda _: block())

    def block() -> None:
        if folder.is_dir():
            folder.rmdir()
            folder.write_text("not a folder")

    outcome = fork_ranks(1, work)[0]
    assert outcome.error is not None
    assert f"MegascopeError: Cannot write a checkpoint to {folder} (" in outcome.error
