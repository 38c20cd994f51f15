"""What a fleet's store answers, and how fast: heatmaps from rollups, a window of raw spans, the worst ranks, opening.

The store is what `megascope simulate` writes of 12,288 ranks (tp 8 x pp 8 x dp 192) with a slow rank and a slow host,
compacted, in processes of their own: ten minutes and more, about 2 GB under ``--folder``; ``--keep`` leaves it there
and takes it up again. Then each question is asked several times of the same open store, as pages do: milliseconds are
the best of them, ``cpu_ms`` the CPU time of the same (all threads), which other load does not disturb.
``open_ms`` is the first opening in a fresh process, up to the list of attempts. ``heatmap_rank_step_ms`` reads one
segment over all ranks and windows; ``matrix_ms`` also compares every cell with its peers, as the Heatmap page shows it.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.upkeep.compaction import compact
from megascope.heatmap.matrix import load_placement, segment_matrix
from megascope.heatmap.source import choose_source
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.windows import grid_percentile, load_grid, rank_segments, segment_ids
from megascope.heatmap.worst import worst_ranks

from .machine import report

REPEATS = 5
TIMELINE_RANKS = 64
TIMELINE_SQL = """
    SELECT e.rank, e.step, e.microbatch, e.chunk, e.stream, e.thread, e.start_ns, e.duration_ns, e.self_ns,
        e.exposed_ns, e.clock, e."group", e.sequence, e.peer, e.size_bytes, e.status, s.name, s.kind, s.axis
    FROM events_aligned e LEFT JOIN segments s ON s.segment = e.segment
    WHERE list_contains(?, e.rank) AND e.step BETWEEN ? AND ?
"""

T = TypeVar("T")
RANKS_PER_HOST = 8


@dataclass(frozen=True, slots=True)
class Fleet:
    """Data-parallel width of a tp 8 x pp 8 mesh, steps with rollups, last steps with the spans of all ranks."""

    dp: int
    steps: int
    raw_steps: int

    @property
    def ranks(self) -> int:
        """World size."""
        return 64 * self.dp

    @property
    def slow_rank(self) -> int:
        """A rank that is slow (x1.3) from half of the steps on."""
        return self.ranks // 10

    @property
    def slow_host(self) -> int:
        """A host that is slow (x1.2) all the time."""
        return self.ranks // RANKS_PER_HOST // 3

    @property
    def slow_host_ranks(self) -> range:
        """The ranks of that host."""
        return range(self.slow_host * RANKS_PER_HOST, (self.slow_host + 1) * RANKS_PER_HOST)


def build(root: Path, fleet: Fleet) -> None:
    """Simulate the fleet into a store, and compact that."""
    faults = [
        f"slow-gpu:rank={fleet.slow_rank}:factor=1.3:steps={fleet.steps // 2}-",
        f"slow-host:host={fleet.slow_host}:factor=1.2",
    ]
    spans = f"steps={fleet.steps - fleet.raw_steps}:{fleet.steps - 1}"
    command = ["simulate", str(root), "--layout", f"tp=8,pp=8,dp={fleet.dp}", "--steps", str(fleet.steps), "--json"]
    command += ["--spans", spans, *(part for fault in faults for part in ("--fault", fault))]
    subprocess.run([sys.executable, "-m", "megascope", *command], check=True, stdout=subprocess.DEVNULL)
    _compact(root)


def _compact(root: Path) -> None:
    report = compact(root, quiet_s=0.0)
    assert not report.damaged, f"{len(report.damaged)} files are damaged"


@dataclass(slots=True)
class Clock:
    """Best wall and CPU times of questions, in milliseconds."""

    wall_ms: dict[str, float] = field(default_factory=dict)
    cpu_ms: dict[str, float] = field(default_factory=dict)

    def ask(self, name: str, question: Callable[[], T], repeats: int = REPEATS) -> T:
        """Ask so many times; the last answer."""
        for _ in range(repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            answer = question()
            wall, cpu = (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3
            self.wall_ms[name] = round(min(wall, self.wall_ms.get(name, wall)), 1)
            self.cpu_ms[name] = round(min(cpu, self.cpu_ms.get(name, cpu)), 1)
        return answer


def _open(root: Path) -> tuple[Store, Attempt]:
    store = Store(root)
    return store, store.attempt()


def _peak_rss_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measure(root: Path, fleet: Fleet) -> dict[str, Any]:
    """Ask everything of the store at ``root``; the benchmark's values."""
    clock = Clock()
    store, attempt = clock.ask("open", lambda: _open(root), repeats=1)
    with store:
        ranks, windows = load_placement(store, attempt).ranks, choose_source(store, attempt).first_steps()
        forward = segment_ids(store, attempt, names=["forward"])["segment"].to_pylist()
        step = fleet.steps - 1
        around = list(range(len(ranks) // 2, len(ranks) // 2 + min(TIMELINE_RANKS, len(ranks) // 2)))
        questions: dict[str, Callable[[], Any]] = {
            "heatmap_rank_segment": lambda: rank_segments(store, attempt, ranks),
            "heatmap_rank_segment_p99": lambda: rank_segments(store, attempt, ranks, percentile=99),
            "heatmap_rank_step": lambda: load_grid(store, attempt, forward, ranks, windows),
            "heatmap_rank_step_p99": lambda: grid_percentile(store, attempt, forward, ranks, windows, 99),
            "matrix": lambda: segment_matrix(store, attempt, "forward"),
            "timeline": lambda: store.query(TIMELINE_SQL, [around, step, step], attempt),
            "worst_ranks": lambda: worst_ranks(store, attempt),
        }
        answers = {name: clock.ask(name, question) for name, question in questions.items()}
        peak = _peak_rss_mib()
        verdict = clock.ask("stragglers", lambda: find_stragglers(store, attempt), repeats=1)
        _check(fleet, answers, {rank for culprit in verdict.culprits for rank in culprit.ranks})
        entries = {table: store.entries(table, attempt) for table in ("events", "rank_windows")}
    rows = {table: sum(entry.rows for entry in found) for table, found in entries.items()}
    sizes = {table: sum(entry.size_bytes for entry in found) for table, found in entries.items()}
    return {
        "ranks": len(ranks),
        "steps_rolled_up": fleet.steps,
        "spans": rows["events"],
        "rollup_rows": rows["rank_windows"],
        "bytes_per_rollup_row": round(sizes["rank_windows"] / rows["rank_windows"], 2),
        "rollup_mib": round(sizes["rank_windows"] / 2**20, 1),
        "spans_mib": round(sizes["events"] / 2**20, 1),
        **{f"{name}_ms": value for name, value in clock.wall_ms.items()},
        "cpu_ms": clock.cpu_ms,
        "peak_rss_mib": peak,
        "peak_rss_with_stragglers_mib": _peak_rss_mib(),
        "accused": [[c.kind, list(c.ranks), c.segment] for c in verdict.culprits],
    }


def _check(fleet: Fleet, answers: dict[str, Any], accused: set[int]) -> None:
    """The answers are right: whoever was planted as slow for good is named, and every cell has its spans."""
    slow, host = fleet.slow_rank, set(fleet.slow_host_ranks)
    assert accused >= {slow} | host, f"accused are only {sorted(accused)}"
    assert {slow, *host} <= set(answers["worst_ranks"]["rank"].to_pylist())
    grid = answers["heatmap_rank_step"]
    assert grid.count.shape == (fleet.ranks, fleet.steps // 10)
    assert (grid.count == grid.count[0, 0]).all(), "every rank runs as many forward spans"
    forward = answers["heatmap_rank_segment"].names.index("forward")
    assert np.isfinite(answers["heatmap_rank_segment"].values[:, forward]).all()
    assert answers["timeline"].num_rows >= grid.count[0, 0] / 10 * min(TIMELINE_RANKS, fleet.ranks // 2)


def run(folder: Path, fleet: Fleet) -> dict[str, Any]:
    """Write the store at ``folder`` in another process, unless a whole one is there, and measure it."""
    whole = folder / "_fleet-is-whole"
    seconds = None
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        before = time.perf_counter()
        sizes = ("--dp", str(fleet.dp), "--steps", str(fleet.steps), "--raw-steps", str(fleet.raw_steps))
        command = [sys.executable, "-m", "benchmarks.store", "--folder", str(folder), *sizes, "--write"]
        subprocess.run(command, check=True)
        whole.touch()
        seconds = round(time.perf_counter() - before, 1)
    return {"build_seconds": seconds, **measure(folder, fleet)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the store is written (a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the store, and use one that was left there")
    parser.add_argument("--dp", type=int, default=192, help="width of the 8 x 8 x DP mesh (192: 12,288 ranks)")
    parser.add_argument("--steps", type=int, default=1000, help="steps with rollups")
    parser.add_argument("--raw-steps", type=int, default=10, help="last steps with raw spans (10: 100 M spans)")
    parser.add_argument("--write", action="store_true", help="only write the store, into the folder itself")
    given = parser.parse_args()
    fleet = Fleet(dp=given.dp, steps=given.steps, raw_steps=given.raw_steps)
    if given.write:
        build(given.folder, fleet)
        return
    folder = Path(given.folder or tempfile.mkdtemp(prefix="megascope-fleet-")) / f"fleet-{given.dp}-{given.steps}"
    try:
        values = run(folder, fleet)
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    report("store", values)


if __name__ == "__main__":
    main()
