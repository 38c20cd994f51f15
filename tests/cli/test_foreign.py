"""A plain DDP script under torchrun gets a store and a verdict without our trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megascope.cli import main
from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap.matrix import segment_matrix
from megascope.profiler.work_clock import WorkClock
from support.commands import environment, relatives, wait_for

pytestmark = pytest.mark.alone

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"


@pytest.mark.parametrize("slow_rank", [2, None])
def test_ddp_under_torchrun(slow_rank: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"MEGASCOPE_STORE": str(tmp_path / "store"), "STEPS": "40"}
    if slow_rank is not None:
        more["SLOW_RANK"] = str(slow_rank)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(EXAMPLE)]
    done = subprocess.run(
        torchrun, env=environment(tmp_path, **more), capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not list((tmp_path / "spool").rglob("*.box")), 60, "the agent's last drain")
    for process in relatives(tmp_path):  # the agent waits for further jobs of this store
        process.terminate()
    store = Store(tmp_path / "store")
    attempt = store.attempt()
    assert (attempt.layout, attempt.exit_reason) == ({"dp": 4}, "finished")
    matrix = segment_matrix(store, attempt, "forward")
    assert (len(matrix.ranks), len(matrix.steps)) == (4, 40)
    main(["stragglers", str(tmp_path / "store"), "--json"])
    verdict = json.loads(capsys.readouterr().out)
    check_collectives(store, attempt)
    check_work(store, attempt)
    assert "communication" not in {abstention["signal"] for abstention in verdict["abstained"]}
    accused = [culprit["ranks"] for culprit in verdict["culprits"]]
    if slow_rank is None:
        assert accused == []
        assert verdict["verdict"] in {"healthy", "insufficient-evidence"}  # as noisy as the machine is
    else:
        assert accused == [[slow_rank]]
        assert verdict["culprits"][0]["segment"] == "forward"


def check_collectives(store: Store, attempt: Attempt) -> None:
    """DDP's buckets are collectives of one group, numbered alike on all ranks, and their waits are timed."""
    rows = store.query(
        """SELECT rank, count(*) AS spans, min(sequence) AS first, max(sequence) AS last,
                  count(DISTINCT "group") AS groups, count(exposed_ns) AS waits, count(DISTINCT step) AS steps
           FROM spans WHERE segment_name = 'dp_all_reduce' AND kind = 'collective' AND step > 0 GROUP BY rank""",
        attempt=attempt,
    ).to_pylist()
    assert sorted(row.pop("rank") for row in rows) == [0, 1, 2, 3]
    assert all(row == rows[0] for row in rows)
    assert rows[0]["waits"] == rows[0]["spans"] == rows[0]["last"] - rows[0]["first"] + 1 >= 39
    assert (rows[0]["groups"], rows[0]["steps"]) == (1, 39)


def check_work(store: Store, attempt: Attempt) -> None:
    """How long ranks work while they have a core is known, unless the kernel does not count that."""
    rows = store.query(
        """SELECT rank, count(worked_ns) AS known, max(worked_ns / duration_ns) AS most
           FROM steps WHERE step > 0 GROUP BY rank""",
        attempt=attempt,
    ).to_pylist()
    clock = WorkClock.of_this_thread()
    if clock is None:
        assert all(row["known"] == 0 for row in rows)
        return
    clock.close()
    assert all(row["known"] > 0 and row["most"] < 1 for row in rows), rows
