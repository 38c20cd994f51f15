"""`megascope checkpoint`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megascope.cli import main
from megascope.trainer.checkpoints.files import shard_path, step_folder
from megascope.trainer.config import CheckpointConfig, load_config
from support.checkpoints import new_writers, some_values, write_checkpoint, write_shards
from support.training import run_config, small_config


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Two checkpoints, the second of which holds but one changed block, and one that is half written."""
    writers, values = new_writers(tmp_path, whole_every=5), some_values()
    write_checkpoint(tmp_path, writers, 4, values)
    values["second"][0, 0] += 1
    write_checkpoint(tmp_path, writers, 8, values)
    write_shards(writers, 12, values)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    assert main(["checkpoint", *(str(argument) for argument in arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_list(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, "list", made_up)
    assert said["folder"] == str(made_up)
    assert said["others"] == ["step-00000012"]
    newest, first = said["checkpoints"]
    assert (newest["step"], newest["size_bytes"], newest["state_bytes"], newest["bases"]) == (8, 32, 256, [4])
    assert (first["step"], first["size_bytes"], first["bases"], first["problem"]) == (4, 256, [], None)
    assert main(["checkpoint", "list", str(made_up)]) == 0
    shown = capsys.readouterr().out
    assert "2030-01-01T00:00:00" in shown
    assert "step-00000012: half written, or set aside" in " ".join(shown.split())
    step_folder(made_up, 4).joinpath("commit.json").write_text("{")
    said = answer(capsys, "list", made_up, code=1)
    assert "cannot be read" in said["checkpoints"][1]["problem"]
    assert said["checkpoints"][1]["ranks"] is None


def test_verify(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "verify", made_up)["checkpoints"] == [
        {"step": 8, "size_bytes": 256, "problems": []},
        {"step": 4, "size_bytes": 256, "problems": []},
    ]
    path = shard_path(made_up, 4, 1)
    path.write_bytes(path.read_bytes()[:-1])
    for step in (4, 8):
        (found,) = answer(capsys, "verify", made_up, "--step", str(step), code=1)["checkpoints"]
        assert found["problems"] == [f"{path} ends before byte 128"]
    assert main(["checkpoint", "verify", str(made_up)]) == 1
    shown = re.sub(r"[│\s]+", " ", capsys.readouterr().out)  # a long path breaks the sentence
    assert "ends before byte 128" in shown
    assert main(["checkpoint", "verify", str(made_up), "--step", "5"]) == 2
    assert "There is no checkpoint of step 5" in capsys.readouterr().err
    assert main(["checkpoint", "verify", str(made_up / "nothing")]) == 1
    assert "There is no folder" in capsys.readouterr().err


def test_export_and_import(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, model, made = tmp_path / "checkpoints", tmp_path / "model", tmp_path / "made"
    config = small_config(steps=2, window=8, checkpoint=CheckpointConfig(folder=folder, every=2))
    run_config(config)
    assert main(["checkpoint", "export", str(folder), str(model)]) == 0
    shown = capfd.readouterr().out
    assert "tensors of step 2 as float32, " in shown
    assert "not exported: the attention window of 8 tokens: GPT-NeoX attends to all earlier ones" in shown
    assert main(["checkpoint", "import", str(model), str(made)]) == 0
    shown = capfd.readouterr().out
    toml = tmp_path / "train.toml"
    toml.write_text(shown[shown.index("[model]") :])
    assert load_config(toml).model == config.model
    again = answer(capfd, "export", made, tmp_path / "again", "--dtype", "bfloat16")
    assert (again["step"], again["is_exact"], again["files"]) == (0, False, ["model.safetensors", "config.json"])
    said = answer(capfd, "import", tmp_path / "again", tmp_path / "third")
    assert said["model"]["window"] == 8
    assert main(["checkpoint", "export", str(folder), str(model)]) == 2
    assert "is not empty" in capfd.readouterr().err


@pytest.mark.parametrize("size", ["nan", "-1", "0", "inf"])
def test_a_file_of_no_size_is_refused(made_up: Path, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "export", str(made_up), str(made_up / "out"), f"--max-file-gb={size}"]) == 2
    assert "give a size above 0, such as 5" in " ".join(capsys.readouterr().err.split())
    assert not (made_up / "out").exists()


def test_what_is_missing_is_said(made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["checkpoint", "export", str(made_up), str(made_up / "out")]) == 1
    assert "This needs safetensors, which is not installed: pip install 'megascope[trainer]'" in capsys.readouterr().err
    assert not (made_up / "out").exists()


def test_looking_at_checkpoints_needs_no_torch(made_up: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nfrom megascope.cli import main\nraise SystemExit(main(sys.argv[1:]))"
    )
    for verb, steps in (("list", [8, 4]), ("verify", [8, 4])):
        command = [sys.executable, "-c", code, "checkpoint", verb, str(made_up), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert [one["step"] for one in json.loads(done.stdout)["checkpoints"]] == steps
