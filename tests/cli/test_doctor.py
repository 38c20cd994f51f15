"""`megascope doctor`: one JSON object, exit codes, and that it neither imports torch nor leaves anything behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megascope.cli import main

KEYS = {"schema", "verdict", "host", "moment_ns", "seconds", "counts", "findings"}
OF_A_FINDING = {"area", "check", "looked_at", "state", "value", "to_do"}

LOOK = """
import sys
from megascope.cli import main
code = main(["doctor", "--json"])
heavy = {"torch", "dash", "plotly"} & set(sys.modules)
raise SystemExit(f"imported {heavy}" if heavy else code)
"""


def test_one_object_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGASCOPE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    assert main(["doctor", str(tmp_path / "store"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert set(told) == KEYS
    assert (told["schema"], told["verdict"]) == (1, "problem")
    assert all(set(one) == OF_A_FINDING for one in told["findings"])
    assert set(told["counts"]) == {"ok", "advice", "problem", "not checked"}
    assert sum(told["counts"].values()) == len(told["findings"])
    (found,) = (one for one in told["findings"] if one["check"] == "flight-recorder")
    assert (found["state"], found["value"]) == ("problem", "TORCH_FR_BUFFER_SIZE=0")
    (place,) = (one for one in told["findings"] if (one["area"], one["check"]) == ("store", "place"))
    assert str(tmp_path / "store") in place["looked_at"]
    assert list(tmp_path.iterdir()) == []


def test_a_table_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGASCOPE_OFF", "1")
    assert main(["doctor", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "problem settings/recording: MEGASCOPE_OFF=1: nothing is recorded. To do: unset MEGASCOPE_OFF." in out
    assert "flight-recorder" in out


def test_torch_is_not_imported_and_nothing_is_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["findings"]
    assert list(tmp_path.iterdir()) == []
