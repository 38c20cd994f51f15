"""The store benchmark in its short form: 256 ranks. It checks its own answers; nothing here depends on time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
KEYS = {
    "ranks", "spans", "open_ms", "heatmap_rank_segment_ms", "heatmap_rank_step_ms", "timeline_ms", "worst_ranks_ms",
    "peak_rss_mib",
}  # fmt: skip


def test_a_small_fleet_answers_rightly_and_the_object_has_its_keys(tmp_path: Path) -> None:
    command = ["--folder", str(tmp_path), "--dp", "4", "--steps", "150", "--raw-steps", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.store", *command],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value.keys() >= KEYS | {"machine", "benchmark"}
    assert value["ranks"] == 256
    assert value["spans"] > 256 * 100
    assert value["rollup_rows"] % (15 + 2 + 1) == 0, "one row a rank, segment and window"
    assert list(tmp_path.iterdir()) == []
