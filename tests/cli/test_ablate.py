"""`megascope ablate`: what it would measure, what it prints, and one sentence for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megascope.cli import main
from megascope.trainer.ablation import running
from megascope.trainer.ablation.estimating import Run

CONFIG = "[parallel]\ndp = 2\n[model]\nlayers = 2\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    return path


def test_a_list_says_what_would_be_measured_and_runs_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", str(config), "--list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["layout"] == {"pp": 1, "dp": 2, "tp": 1}
    names = [one["name"] for one in said["variants"]]
    assert names[:2] == ["base", "control"]
    assert "dp-overlap" in names
    assert "ring" in said["skipped"]
    assert all("step_ms" not in one for one in said["variants"])
    assert main(["ablate", str(config), "--list"]) == 0
    text = capsys.readouterr().out
    assert "data-parallel communication beside compute" in text
    assert "Not measured: ring: it needs tp 2 or more" in text


def test_effects_are_told_with_their_intervals(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(variants: object, **_: object) -> list[Run]:
        times = {"base": 1e6, "control": 1e6, "dp-overlap": 0.8e6}
        return [
            Run(
                variant=name, repeat=repeat, tokens=100, cpu_ns=1e5, messages=4, size_bytes=2000,
                wall_ns=wall * (1 + (repeat % 3) / 100 if name == "control" else 1) * (1 - repeat % 2 / 100),
                wait_ns={"dp": 2e6 if name == "dp-overlap" else 5e6 + repeat % 3 * 1e3, "data": 1e6},
                memory_bytes=7_300_000,
            )
            for repeat in range(10)
            for name, wall in times.items()
        ]  # fmt: skip

    monkeypatch.setattr(running, "run_variants", runs)
    assert main(["ablate", str(config), "--only", "dp-overlap", "--json"]) == 0
    base, control, overlap = json.loads(capsys.readouterr().out)["variants"]
    assert "speed_percent" not in base
    assert not control["speed_visible"]
    assert overlap["speed_percent"] == pytest.approx(25)
    assert overlap["speed_interval_percent"] == pytest.approx([25, 25])
    assert (overlap["messages_per_step"], overlap["bytes_per_step"]) == (4, 2000)
    assert (base["against"], control["against"], overlap["against"]) == (None, "base", "base")
    assert "exposed_wait_change_ms" not in base
    assert not control["exposed_wait_visible"]
    assert overlap["exposed_wait_change_ms"] == pytest.approx(-3, abs=0.01)
    assert overlap["exposed_wait_visible"]
    assert overlap["exposed_wait_ms_by_axis"] == {"data": 1, "dp": 2}
    assert (overlap["exposed_wait_ms"], overlap["memory_bytes"], overlap["mfu"]) == (3, 7_300_000, None)
    assert main(["ablate", str(config), "--only", "dp-overlap"]) == 0
    lines = capsys.readouterr().out.splitlines()
    speed, needs = [line.split() for line in lines if line.startswith("dp-overlap")]
    assert speed[3:10] == ["n/a", "+25.0", "%", "+25.0", "to", "+25.0", "more"]
    assert needs[1:] == ["3.0", "-3.0", "-3.0", "to", "-3.0", "1.0", "2.0", "4", "2", "7.3"]
    assert all("not visible" in line for line in lines if line.startswith("control"))
    assert max(map(len, lines)) <= 120


def test_what_was_not_measured_is_not_zero(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(variants: object, **_: object) -> list[Run]:
        return [
            Run(variant=name, repeat=repeat, tokens=1, wall_ns=1e6, cpu_ns=1, messages=0, size_bytes=0, mfu=0.425)
            for repeat in range(10)
            for name in ("base", "control", "dp-overlap")
        ]

    monkeypatch.setattr(running, "run_variants", runs)
    assert main(["ablate", str(config), "--only", "dp-overlap", "--json"]) == 0
    overlap = json.loads(capsys.readouterr().out)["variants"][-1]
    assert (overlap["exposed_wait_ms"], overlap["memory_bytes"], overlap["mfu"]) == (None, None, 0.425)
    assert overlap["exposed_wait_ms_by_axis"] == {}
    assert "exposed_wait_change_ms" not in overlap
    assert main(["ablate", str(config), "--only", "dp-overlap"]) == 0
    speed, needs = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("dp-overlap")]
    assert speed[3] == "42.5%"
    assert needs[1] == needs[-1] == "n/a"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["--only", "speed"], "no switch 'speed'"), (["--repeats", "9"], "10"), (["--parallel.tp", "3"], "tp 3")],
)
def test_what_cannot_be_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert main(["ablate", str(config), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err
    assert captured.err.count("\n") == 1
