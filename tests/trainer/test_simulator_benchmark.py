"""The simulator's benchmark in its short form: its object has its keys; nothing here depends on time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_small_fleet_is_simulated_and_the_object_has_its_keys() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulator", "--span-steps", "1", "--data", "2", "--steps", "20"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert {"benchmark", "machine", "spans_per_second_per_core", "fleet_rollup_seconds"} <= value.keys()
    assert (value["fleet_ranks"], value["fleet_steps"]) == (128, 20)
    assert value["spans"] == 809_216
    assert value["fleet_window_rows"] > 128 * 10 * 4
