"""Clock alignment on a trace of a real job: the ends of its transfers agree better afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_ends_of_a_real_jobs_transfers_agree_better_after_alignment(traces: Path) -> None:
    """The job's clocks had been aligned already, to some 100 µs; half of the transfers align, the others judge."""
    trace = traces / "bytedance_whatif" / "trace-AR.parquet"
    command = [sys.executable, "-m", "benchmarks.clocks", "--only", "real_trace", "--trace", str(trace)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)["real_trace"]
    assert found["steps_of_pipelines"] == 44 * 4
    assert set(found["pairs"]) == {"0-1", "1-2", "2-3"}
    for pair in found["pairs"].values():
        assert pair["transfers"] == 44 * 4 * 32
        raw, residual = pair["raw_us"], pair["residual_us"]
        assert residual["p50"] < 0.6 * raw["p50"]
        assert residual["p99"] < 0.7 * raw["p99"]
        assert residual["p99"] < 2 * pair["stated_uncertainty_us"]
