"""What questions over a raw archive cost: DuckDB on this machine, and a Spark cluster of a master and two workers here.

One simulated store (``--ranks``, ``--steps``, all spans) is asked the same by both, in processes of their own: the
median of each engine's repeats is given in seconds of wall time and of CPU time (of the cluster: all its processes).
Both share this machine's cores, so that the ratio tells Spark's overhead and not what a larger cluster gains; see
``session_s`` too, which every use of Spark pays once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from megascope.batch.engines import Engine, EngineName, open_engine
from megascope.batch.rollups import find_rollups
from megascope.batch.scope import Scope, find_scope
from megascope.batch.worst import find_worst
from megascope.collectors.reading.store import Store

from .machine import report

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.spark_cluster import environment, spark_cluster

REPEATS = 3
JOBS: dict[str, Callable[[Scope, Engine], Any]] = {
    "worst": lambda scope, engine: find_worst(scope, engine, 20),
    "rollups": lambda scope, engine: find_rollups(scope, engine, None),
}


def build(root: Path, data_parallel: int, steps: int) -> None:
    """A simulated job of tp 2 x pp 2 with the spans of all ranks."""
    command = [sys.executable, "-m", "megascope", "simulate", str(root), "--layout", f"tp=2,pp=2,dp={data_parallel}"]
    command += ["--steps", str(steps), "--spans", "all", "--fault", "slow-gpu:rank=5:factor=1.3"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def ask(scope: Scope, engine: Engine) -> dict[str, list[float]]:
    """Seconds of every repeat of every job."""
    took: dict[str, list[float]] = {}
    for name, job in JOBS.items():
        for _ in range(REPEATS):
            began = time.monotonic()
            job(scope, engine)
            took.setdefault(name, []).append(time.monotonic() - began)
    return took


def driver(root: Path, name: EngineName, master: str | None) -> dict[str, Any]:
    """Open the engine and ask it everything: what the child process prints."""
    began = time.monotonic()
    scope = find_scope(Store(root), None, None, None)
    engine = open_engine(name, scope, master)
    session_s = time.monotonic() - began
    took = ask(scope, engine)
    found = {"session_s": session_s, "seconds": took, "cpu_s": sum(os.times()[:2]) + descendants_cpu_s()}
    engine.close()
    return found


def in_a_process(root: Path, name: EngineName, folder: Path, master: str | None) -> dict[str, Any]:
    """The driver as a process of its own."""
    env = {**(environment(folder) if master else os.environ), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "benchmarks.batch", "--drive", name.value, "--folder", str(root)]
    command += ["--master", master] if master else []
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def descendants_cpu_s() -> float:
    """CPU time so far of all descendants of this process, also of theirs that have ended: executors."""
    return sum(sum(one.cpu_times()[:4]) for one in psutil.Process().children(recursive=True))


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-parallel", type=int, default=8, help="replicas: four ranks each")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="a store to ask instead of a simulated one")
    parser.add_argument("--drive", type=EngineName, help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive is not None:
        json.dump(driver(options.folder, options.drive, options.master), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = options.folder or folder / "store"
        if options.folder is None:
            build(root, options.data_parallel, options.steps)
        store = Store(root)
        entries = store.entries("events")
        spans, size = sum(one.rows for one in entries), sum(one.size_bytes for one in entries)
        duckdb = in_a_process(root, EngineName.DUCKDB, folder, None)
        began = time.monotonic()
        with spark_cluster(folder) as address:
            start_s = time.monotonic() - began
            before = descendants_cpu_s()
            spark = in_a_process(root, EngineName.SPARK, folder, address)
            workers_cpu_s = descendants_cpu_s() - before
    seconds = {name: {job: median(all_s) for job, all_s in one["seconds"].items()} for name, one in
               (("duckdb", duckdb), ("spark", spark))}  # fmt: skip
    report(
        "batch",
        {
            "spans": spans,
            "bytes_per_span": size / spans,
            "repeats": REPEATS,
            "duckdb_s": seconds["duckdb"],
            "duckdb_first_s": {job: all_s[0] for job, all_s in duckdb["seconds"].items()},
            "duckdb_cpu_s": duckdb["cpu_s"],
            "spark_s": seconds["spark"],
            "spark_first_s": {job: all_s[0] for job, all_s in spark["seconds"].items()},
            "spark_driver_cpu_s": spark["cpu_s"],
            "spark_workers_cpu_s": workers_cpu_s,
            "spark_cluster_start_s": start_s,
            "spark_session_s": spark["session_s"],
            "ratio": {job: seconds["spark"][job] / seconds["duckdb"][job] for job in JOBS},
            "spans_per_second": {name: {job: spans / s for job, s in one.items()} for name, one in seconds.items()},
        },
    )


if __name__ == "__main__":
    main()
