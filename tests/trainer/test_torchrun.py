"""Under torchrun with restarts: a worker that is killed is started again, and the job goes on from its checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from megascope.collectors.reading.store import Store
from megascope.trainer.worker import SHARED_STORE_VARIABLE

STEPS, EVERY, KILLED = 12, 2, 9
LOSSES = "SELECT attempt, step, min(loss) AS loss FROM steps_all WHERE loss IS NOT NULL GROUP BY ALL"


def run(folder: Path, faults: Sequence[str] = (), restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Two data-parallel ranks under a torchrun of their own; no process of it is left over."""
    settings = {
        "model.layers": 2, "model.width": 32, "model.heads": 4, "model.sequence": 32, "parallel.dp": 2,
        "train.steps": STEPS, "train.batch": 4, "train.microbatches": 2, "train.log-every": 1,
        "data.limit-bytes": 50_000, "checkpoint.folder": folder / "checkpoints", "checkpoint.every": EVERY,
        "record.spool": folder / "spool", "record.store": folder / "store",
    }  # fmt: skip
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    flags += [part for text in faults for part in ("--fault", text)]
    (folder / "job.toml").write_text("")
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=job"]
    command += ["-m", "megascope", "train", "job.toml", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {SHARED_STORE_VARIABLE: "1", "PYTHONSAFEPATH": "1"}
    for name in ("MEGASCOPE_RUN", "MEGASCOPE_ATTEMPT"):
        environment.pop(name, None)
    job = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = job.communicate(timeout=150)
    finally:
        if job.poll() is None:
            for process in psutil.Process(job.pid).children(recursive=True):
                process.kill()
            job.kill()
            job.wait(timeout=10)
    return subprocess.CompletedProcess(command, job.returncode, output)


def losses(folder: Path) -> dict[int, dict[int, Any]]:
    """Losses by attempt and step, once the collector, which outlives the ranks that started it, has stored the last."""
    deadline = time.monotonic() + 60
    while True:
        with Store(folder / "store") as store:
            rows = store.query(LOSSES).to_pylist()
        if any(row["step"] == STEPS - 1 for row in rows) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    found: dict[int, dict[int, Any]] = {}
    for row in rows:
        found.setdefault(row["attempt"], {})[row["step"]] = row["loss"]
    return found


@pytest.mark.alone
@pytest.mark.timeout(360)
def test_a_killed_worker_is_started_again_and_no_loss_changes(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stdout
    killed = run(tmp_path / "killed", [f"kill rank=1 step={KILLED} attempt=0"], restarts=1)
    assert killed.returncode == 0, killed.stdout
    resumed = re.search(rf"resumed at step (\d+)/{STEPS}", killed.stdout)
    assert resumed is not None, killed.stdout
    first = int(resumed[1])
    assert 0 < first < KILLED + 1
    assert first % EVERY == 0
    (undisturbed,) = losses(tmp_path / "whole").values()
    assert sorted(undisturbed) == list(range(STEPS))
    attempts = losses(tmp_path / "killed")
    assert sorted(attempts) == [0, 1]
    assert sorted(attempts[1]) == list(range(first, STEPS))
    for one in attempts.values():
        assert {step: undisturbed[step] for step in one} == one
