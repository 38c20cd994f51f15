"""What the fleet simulator can do: spans to Parquet a second and core, and rollups of 12,288 ranks over 100 steps.

Spans: a pp 4 x dp 16 x tp 8 job with measured noise, 64 hosts whose clocks are off and drift, all of whose spans are
kept; counted is the CPU time of the process from nothing to the committed store, its writer thread included. Fleet:
pp 8 x dp 192 x tp 8 with 32 micro-batches, the costs of a 175-billion-parameter model and measured noise; rollups in
windows of 10, 100 and 1000 steps, steps and heartbeats of all ranks are written. Its seconds are wall time, with the
CPU seconds beside them: the simulation and the writer are a thread each, so that two idle cores bring wall below CPU
time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megascope.trainer.simulator.config import SimulationConfig, costs_of
from megascope.trainer.simulator.engine import simulate_lengths
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.writing import Recording, Simulated, simulate

from .machine import report

MICROBATCHES = {"spans": 8, "fleet": 32}


def job_of(name: str, layout: dict[str, int], steps: int, **more: Any) -> SimulatedJob:
    """A job of the large model."""
    microbatches = MICROBATCHES[name]
    costs = costs_of(SimulationConfig(), layout, microbatches=microbatches)
    return SimulatedJob(
        layout=layout, steps=steps, microbatches=microbatches, costs=costs, noise=load_noise("builtin"), **more
    )


def timed(work: Callable[[], Simulated]) -> tuple[Simulated, float, float]:
    """What came out, the wall seconds and the CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def stored_bytes(folder: Path) -> int:
    """Size of all files of a store."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def measure_spans(folder: Path, steps: int) -> dict[str, Any]:
    """Spans a second and core."""
    job = job_of("spans", {"pp": 4, "dp": 16, "tp": 8}, steps, skew_ms=1000.0, drift_ppm=50.0)
    done, wall, cpu = timed(lambda: simulate(job, folder, Recording(windows=False, span_ranks=None)))
    return {
        "spans": done.written_spans,
        "spans_per_second_per_core": round(done.written_spans / cpu),
        "spans_wall_seconds": round(wall, 2),
        "spans_peak_rss_mib": peak_rss_mib(),
    }


def measure_fleet(folder: Path, data: int, steps: int) -> dict[str, Any]:
    """Rollups of the fleet."""
    job = job_of("fleet", {"pp": 8, "dp": data, "tp": 8}, steps)
    before = time.process_time()
    simulate_lengths(job)
    engine = time.process_time() - before
    done, wall, cpu = timed(lambda: simulate(job, folder, Recording()))
    return {
        "fleet_ranks": job.world_size,
        "fleet_steps": steps,
        "fleet_spans": done.spans,
        "fleet_window_rows": done.window_rows,
        "fleet_rollup_seconds": round(wall, 2),
        "fleet_rollup_cpu_seconds": round(cpu, 2),
        "fleet_engine_cpu_seconds": round(engine, 2),
        "fleet_store_mib": round(stored_bytes(folder) / 2**20, 1),
        "fleet_peak_rss_mib": peak_rss_mib(),
    }


def peak_rss_mib() -> float:
    """Largest resident memory of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def in_process_of_its_own(part: str, *arguments: str) -> dict[str, Any]:
    """Measure a part in a fresh process, so that its peak of memory is its own."""
    import json

    command = [sys.executable, "-m", "benchmarks.simulator", "--part", part, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    """Measure and print."""
    import json

    parser = argparse.ArgumentParser(description="Benchmark of the fleet simulator.")
    parser.add_argument("--part", choices=["spans", "fleet"], help="measure one part only, and print its values alone")
    parser.add_argument("--span-steps", type=int, default=20, help="steps whose spans are written")
    parser.add_argument("--data", type=int, default=192, help="data-parallel ranks of the fleet")
    parser.add_argument("--steps", type=int, default=100, help="steps of the fleet")
    chosen = parser.parse_args()
    arguments = ("--span-steps", str(chosen.span_steps), "--data", str(chosen.data), "--steps", str(chosen.steps))
    if chosen.part is None:
        report("simulator", {k: v for part in MICROBATCHES for k, v in in_process_of_its_own(part, *arguments).items()})
        return
    with tempfile.TemporaryDirectory() as folder:
        if chosen.part == "spans":
            values = measure_spans(Path(folder), chosen.span_steps)
        else:
            values = measure_fleet(Path(folder), chosen.data, chosen.steps)
    sys.stdout.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
