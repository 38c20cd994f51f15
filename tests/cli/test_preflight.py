"""`megascope preflight`: one JSON object, a result that is kept, and one sentence for what cannot be."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from megascope.cli import main
from megascope.collectors.result_files import PREFLIGHT, list_results, read_result
from support.commands import MEGASCOPE, environment

CONFIG = """
[parallel]
dp = 2
tp = 2
[checkpoint]
folder = "{folder}/checkpoints"
[record]
store = "{folder}/store"
"""


@pytest.mark.timeout(180)
def test_one_host_is_checked_and_the_result_is_kept(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    command = [*MEGASCOPE, "preflight", str(config), "--quick", "--device", "cpu", "--json"]
    done = subprocess.run(
        command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["layout"] == {"pp": 1, "dp": 2, "tp": 2}
    assert (result["schema"], result["world_size"], result["device"], result["quick"]) == (1, 4, "cpu", True)
    measured = {(one["check"], one["metric"]): one["count"] for one in result["summaries"]}
    assert measured == {
        ("matmul", "rate"): 4, ("memory", "bandwidth"): 4, ("loopback", "bandwidth"): 4,
        ("all_to_all", "bandwidth"): 1, ("all_reduce", "bandwidth"): 1, ("pairs", "bandwidth"): 4,
        ("pairs", "latency"): 4, ("checkpoint", "write"): 4, ("checkpoint", "read"): 4,
    }  # fmt: skip
    assert {"copies", "clock"} <= {one["signal"] for one in result["skipped"]}
    (path,) = list_results(tmp_path / "store", PREFLIGHT)
    assert read_result(path, PREFLIGHT) == result
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--floor", "matmul=3"], "no metric 'matmul'"),
        (["--floor", "matmul.rate=fast"], "--floor matmul.rate=fast is not CHECK.METRIC=NUMBER"),
        (["--timeout-s", "0"], "--timeout-s 0.0 is no time limit"),
        (["missing.toml"], "no configuration file missing.toml"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], part: str) -> None:
    assert main(["preflight", *arguments, "--nproc", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err
    assert captured.err.count("\n") == 1
