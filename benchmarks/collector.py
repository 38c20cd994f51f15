"""What the collector can take: spans a second and core from box to committed file, and bytes a span in the store.

The spans lie in real black boxes (`collector_job`); the agent's own code drains them, makes rows and rollups, writes
Parquet and commits, and merges where its rules say so. Only that is timed: CPU time of the process
(``spans_per_second_per_core``), and wall time beside it; ``rollup_percent`` is the share of that CPU time in which
spans were summed up as windows and these were written. Then the compactor merges the store: bytes are those of all
files of spans behind it, and ``compaction_ns_per_span`` is the CPU time that it took, all tables together.

The agent rounds device times to `DEVICE_TICK_NS`, half of the resolution of about 0.5 us that CUDA states;
``bytes_per_span_at_gpu_tick`` is what spans would take if it rounded to the GPU's tick only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.reading.store import Store
from megascope.collectors.rollups.drain import RollupDrain
from megascope.collectors.spool import event_rows
from megascope.collectors.upkeep.compaction import compact
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder

from .collector_job import GPU_TICK_NS, MESH, Source, Times, host_gaps
from .machine import report

STEPS_PER_ROUND = 40
ROUNDS = 16


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as spool:
        yield Path(spool)


class Stopwatch:
    """CPU seconds of this process, and wall seconds, within `with` blocks."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.perf_counter() - wall


def collect(spool: Path, store: Path, gaps: Times, rounds: int = ROUNDS) -> tuple[int, Stopwatch]:
    """Fill and drain by turns; the number of spans and the time that draining them took."""
    sources = [Source(spool, rank, gaps) for rank in range(MESH.world_size)]
    agent = Agent(AgentSettings(spool=spool, store=store, catalog_s=1e9), threading.Event())
    agent.poll(flush=True)
    spans, watch = 0, Stopwatch()
    for _ in range(rounds):
        spans += sum(source.fill(STEPS_PER_ROUND) for source in sources)
        with watch.running():
            agent.poll()
    for source in sources:
        source.recorder.close()
    with watch.running():
        agent.poll(flush=True)
    agent.close()
    return spans, watch


@contextlib.contextmanager
def rollups_watched(watch: Stopwatch) -> Iterator[None]:
    """Within, count the time that agents of this process spend on rollups."""

    def watched(call: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any, **keywords: Any) -> None:
            with watch.running():
                call(*arguments, **keywords)

        return timed

    with contextlib.ExitStack() as stack:
        for name in ("add", "write"):
            stack.enter_context(patch.object(RollupDrain, name, watched(getattr(RollupDrain, name))))
        yield


def compacted_bytes(store: Path, spans: int) -> tuple[dict[str, float], float]:
    """Bytes a span of every column after a compaction of the store; CPU seconds that this took."""
    watch = Stopwatch()
    with watch.running():
        done = compact(store, quiet_s=0)
    assert not done.problems, done.problems
    sizes: dict[str, int] = {}
    with Store(store) as reader:
        entries = reader.entries("events")
    assert sum(entry.rows for entry in entries) == spans, "the collector lost or doubled spans"
    for entry in entries:
        metadata = pq.ParquetFile(store / entry.path).metadata
        chunks = [
            metadata.row_group(group).column(column)
            for group in range(metadata.num_row_groups)
            for column in range(metadata.num_columns)
        ]
        for chunk in chunks:
            sizes[chunk.path_in_schema] = sizes.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    sizes["(file)"] = sum(entry.size_bytes for entry in entries) - sum(sizes.values())
    by_column = {name: round(size / spans, 4) for name, size in sorted(sizes.items(), key=lambda entry: -entry[1])}
    return by_column, watch.cpu_s


def idle_percent(spool: Path, store: Path, seconds: float = 6.0) -> float:
    """Share of a core that the agent takes of a host whose ranks are all in the middle of a step: polls, heartbeats
    every second, health samples, commits."""
    recorders = []
    for rank in range(MESH.world_size):
        settings = RecorderSettings(run="idle", attempt=0, rank=rank, world_size=MESH.world_size, spool=spool)
        recorders.append(recorder := open_recorder(settings))
        assert isinstance(recorder, Recorder)
        recorder.step(0)
        recorder.begin(recorder.segment("forward"))
    agent_settings = AgentSettings(spool=spool, store=store, stall_s=1e9)
    agent = Agent(agent_settings, threading.Event())
    agent.poll(flush=True)
    watch, end = Stopwatch(), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(agent_settings.poll_s)
        with watch.running():
            agent.poll()
    for recorder in recorders:
        recorder.close()
    agent.close()
    return 100 * watch.cpu_s / seconds


def bytes_at_gpu_tick(gaps: Times, rounds: int = 4) -> float:
    """Bytes a span if times of the device were rounded to the GPU's tick only."""
    grain, event_rows.DEVICE_TICK_NS = event_rows.DEVICE_TICK_NS, GPU_TICK_NS
    try:
        with _folder() as spool, tempfile.TemporaryDirectory() as store:
            spans, _ = collect(spool, Path(store), gaps, rounds)
            return sum(compacted_bytes(Path(store), spans)[0].values())
    finally:
        event_rows.DEVICE_TICK_NS = grain


def main() -> None:
    """Measure and print."""
    gaps, grain_ns = host_gaps()
    with _folder() as spool, tempfile.TemporaryDirectory() as store:
        rollups = Stopwatch()
        with rollups_watched(rollups):
            spans, watch = collect(spool, Path(store), gaps)
        peak_rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        by_column, compaction_s = compacted_bytes(Path(store), spans)
    with _folder() as spool, tempfile.TemporaryDirectory() as store:
        idle = idle_percent(spool, Path(store))
    at_gpu_tick = bytes_at_gpu_tick(gaps)
    total = sum(by_column.values())
    values = {
        "spans": spans,
        "spans_per_second_per_core": round(spans / watch.cpu_s),
        "spans_per_second_wall": round(spans / watch.wall_s),
        "rollup_percent": round(100 * rollups.cpu_s / watch.cpu_s, 1),
        "compaction_ns_per_span": round(compaction_s / spans * 1e9),
        "bytes_per_span": round(total, 3),
        "bytes_per_span_without_enqueue": round(total - by_column["enqueue_ns"], 3),
        "bytes_by_column": by_column,
        "bytes_per_span_at_gpu_tick": round(at_gpu_tick, 3),
        "device_grain_ns": event_rows.DEVICE_TICK_NS,
        "host_clock_grain_ns": grain_ns,
        "peak_rss_mib": round(peak_rss_mib, 1),
        "idle_percent_of_a_core": round(idle, 2),
    }
    report("collector", values)


if __name__ == "__main__":
    main()
