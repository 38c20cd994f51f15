"""`megascope supervise --local` as a user types it: simulated hosts, a kill, one recovery, and nothing left running."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from support.commands import MEGASCOPE, environment, relatives

CONFIG = Path(__file__).parents[2] / "trainer" / "configs" / "faults.toml"
STEPS, KILLED = 70, 60
SHARED_MEMORY = Path("/dev/shm")

pytestmark = pytest.mark.alone


def supervise(folder: Path, *flags: str) -> tuple[subprocess.Popen[str], str, str]:
    """The process of the verb once it has ended, what it printed, and what it said meanwhile."""
    command = [*MEGASCOPE, "supervise", str(CONFIG), *flags]
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, told = child.communicate(timeout=200)
    finally:
        child.kill()
    return child, out, told


@pytest.mark.timeout(260)
def test_a_job_on_simulated_hosts_recovers_from_a_kill_and_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ["--hosts", "2", "--spares", "1", "--local", "--train.steps", str(STEPS), "--self-check", "", "--json"]
    flags += ["--record.store", "store", "--record.run", "killed", "--checkpoint.folder", "checkpoints"]
    try:
        child, out, told = supervise(tmp_path, *flags)
    finally:
        left = relatives(tmp_path)
        for process in left:
            process.kill()
    assert child.returncode == 0, told
    assert [process.pid for process in left] == []
    assert list(SHARED_MEMORY.glob(f"megascope-hosts-{child.pid}-*")) == []
    report = json.loads(out)
    assert (report["run"], report["outcome"], report["attempts"], report["restarts"]) == ("killed", "finished", 2, 1)
    assert report["fenced"] == ["node-1"]
    (incident,) = [one for one in report["incidents"] if one["decision"] is not None]
    assert (incident["kind"], incident["decision"], incident["step"]) == ("exited", "replace", KILLED - 1)
    assert [(one["kind"], one["ranks"], one["hosts"]) for one in incident["culprits"]] == [("dead", [3], ["node-1"])]
    assert {"detection_s", "diagnosis_s"} <= incident.keys()  # the rest only where its last steps were stored in time
    assert 0 < report["goodput"]["goodput"] < 1
    assert "attempt 1 starts on node-0, node-2" in told
    with Store(tmp_path / "store") as store:
        (row,) = store.query("SELECT count(DISTINCT step) AS steps FROM steps WHERE loss IS NOT NULL").to_pylist()
    assert row["steps"] == STEPS
    assert (tmp_path / "checkpoints" / f"step-{STEPS:08d}" / "commit.json").exists()
