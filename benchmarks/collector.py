"""What the collector can take: spans a second and core from box to committed file, and bytes a span in the store.

A host of 8 ranks of a pp x dp x tp job: 404 spans a rank and step (forward, backward, tensor-parallel collectives,
p2p, optimizer), durations log-normal around their means at nanosecond resolution. The spans lie in real black boxes;
the agent's own code drains them, makes rows, writes Parquet, merges and commits. Only that is timed (CPU time of the
process); filling the boxes is not. Bytes are those after compaction: all spans of the block in one sorted file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megascope.collectors.agent import Agent, AgentSettings
from megascope.collectors.parquet import conform, sort_rows, write_parquet
from megascope.collectors.schemas import TABLES
from megascope.collectors.store import Store
from megascope.profiler.box import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    HEADER_BYTES,
    RECORD,
    WORD_HEADS,
    BoxLayout,
)
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import SegmentKind

from .machine import report

MESH = Topology.of(pp=2, dp=2, tp=2)
MICROBATCHES = 10
LAYERS = 4
SPANS_PER_STEP = 404
STEPS_PER_ROUND = 20
ROUNDS = 16

_KINDS = {
    "forward": (SegmentKind.COMPUTE, None, 8_000_000),
    "backward": (SegmentKind.COMPUTE, None, 16_000_000),
    "tp_all_gather": (SegmentKind.COLLECTIVE, "tp", 300_000),
    "tp_reduce_scatter": (SegmentKind.COLLECTIVE, "tp", 350_000),
    "send_forward": (SegmentKind.P2P, "pp", 120_000),
    "recv_backward": (SegmentKind.P2P, "pp", 900_000),
    "optimizer": (SegmentKind.OPTIMIZER, None, 5_000_000),
}


def step_template(indices: dict[str, int], groups: dict[str, int]) -> np.ndarray[Any, Any]:
    """The spans of one step of one rank in the order of their end, without times."""
    names: list[tuple[str, int]] = []
    for microbatch in range(MICROBATCHES):
        for outer in ("forward", "backward"):
            pairs = [("tp_all_gather", microbatch), ("tp_reduce_scatter", microbatch)]
            names += pairs * (2 * LAYERS) + [(outer, microbatch)]
            names += [("send_forward" if outer == "forward" else "recv_backward", microbatch)] * 3
    names += [("optimizer", ABSENT_I32)] * (SPANS_PER_STEP - len(names))
    records = np.zeros(len(names), RECORD)
    records["segment"] = [indices[name] for name, _ in names]
    records["microbatch"] = [microbatch for _, microbatch in names]
    axes = [_KINDS[name][1] for name, _ in names]
    records["group"] = [ABSENT_INDEX if axis is None else groups[axis] for axis in axes]
    records["peer"] = [1 if axis == "pp" else ABSENT_I32 for axis in axes]
    records["size_bytes"] = [ABSENT_I64 if axis is None else 2**22 for axis in axes]
    records["duration_ns"] = [_KINDS[name][2] for name, _ in names]
    records["parent"] = [indices["forward"] if axis == "tp" else ABSENT_INDEX for axis in axes]
    records["chunk"] = ABSENT_I16
    return records


class Source:
    """A rank's black box, filled by hand: what 404 calls a step would have left in it."""

    def __init__(self, spool: Path, rank: int) -> None:
        layout = BoxLayout(slots=64, rings=1, ring_records=16384, groups=16)
        settings = RecorderSettings(
            run="bench", attempt=0, rank=rank, world_size=MESH.world_size, spool=spool, layout=layout
        )
        recorder = open_recorder(settings)
        assert isinstance(recorder, Recorder)
        self.recorder = recorder
        recorder.topology(MESH, rank)
        indices = {name: recorder.segment(name, kind, axis) for name, (kind, axis, _) in _KINDS.items()}
        groups = {axis: recorder.group(axis, MESH.group(axis, rank)) for axis in ("tp", "pp")}
        self._template = step_template(indices, groups)
        self._random = np.random.default_rng(rank)
        path = spool / "bench" / "0" / f"rank-{rank:05d}.box"
        whole = np.memmap(path, np.uint8, "r+")
        self._words = whole[:HEADER_BYTES].view("<i8")
        first = layout.rings_offset
        self._ring = whole[first : first + layout.ring_records * RECORD.itemsize].view(RECORD)
        self._now_ns = time.monotonic_ns()
        self._count = self._step = 0
        self._sequence = np.zeros(16, np.int64)

    def fill(self, steps: int) -> int:
        """Add so many steps; the number of spans."""
        for _ in range(steps):
            self._add_step()
        return steps * len(self._template)

    def _add_step(self) -> None:
        records = self._template.copy()
        jitter = self._random.lognormal(0, 0.05, len(records))
        records["duration_ns"] = (records["duration_ns"] * jitter).astype(np.int64)
        is_work = records["group"] == ABSENT_INDEX
        gaps = np.where(is_work, 0, records["duration_ns"]) + self._random.integers(500, 50_000, len(records))
        ends = self._now_ns + np.cumsum(gaps)
        records["start_ns"] = records["begun_ns"] = ends - records["duration_ns"]
        records["self_ns"] = np.where(is_work, (records["duration_ns"] * 0.7).astype(np.int64), records["duration_ns"])
        waits = self._random.integers(1_000, 60_000, len(records))
        records["exposed_ns"] = np.where(is_work, ABSENT_I64, waits)
        records["sequence"] = ABSENT_I64
        for group in np.unique(records["group"][~is_work]):
            places = np.flatnonzero(records["group"] == group)
            records["sequence"][places] = self._sequence[group] + np.arange(1, len(places) + 1)
            self._sequence[group] += len(places)
        records["step"] = self._step
        serials = np.arange(self._count + 1, self._count + len(records) + 1)
        for name in ("serial", "serial_begin", "serial_end"):
            records[name] = serials
        self._ring[np.arange(self._count, self._count + len(records)) % len(self._ring)] = records
        self._count += len(records)
        self._step += 1
        self._now_ns = int(ends[-1])
        self._words[WORD_HEADS] = self._count


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as spool:
        yield Path(spool)


def collect(spool: Path, store: Path) -> tuple[int, float]:
    """Fill and drain by turns; the number of spans and the CPU seconds that draining them took."""
    sources = [Source(spool, rank) for rank in range(MESH.world_size)]
    agent = Agent(AgentSettings(spool=spool, store=store, catalog_s=1e9), threading.Event())
    agent.poll(flush=True)
    spans, seconds = 0, 0.0
    for _ in range(ROUNDS):
        spans += sum(source.fill(STEPS_PER_ROUND) for source in sources)
        before = time.process_time()
        agent.poll(flush=True)
        seconds += time.process_time() - before
    for source in sources:
        source.recorder.close()
    before = time.process_time()
    agent.poll(flush=True)
    seconds += time.process_time() - before
    agent.close()
    return spans, seconds


def compacted_bytes(store: Path, spans: int) -> dict[str, float]:
    """Bytes a span of every column, once all spans of the block lie in one sorted file."""
    with Store(store) as reader:
        attempt = reader.attempt()
        parts = [pq.ParquetFile(path).read() for path in reader.files("events", attempt)]
    rows = pa.concat_tables(parts)
    assert rows.num_rows == spans, "the collector lost or doubled spans"
    path = store / "compacted.parquet"
    write_parquet(sort_rows("events", conform(TABLES["events"], attempt.run, attempt.attempt, rows, ())), path)
    metadata = pq.ParquetFile(path).metadata
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            sizes[chunk.path_in_schema] = sizes.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    sizes["(file)"] = path.stat().st_size - sum(sizes.values())
    return {name: round(size / spans, 4) for name, size in sorted(sizes.items(), key=lambda entry: -entry[1])}


def main() -> None:
    """Measure and print."""
    with _folder() as spool, tempfile.TemporaryDirectory() as store:
        spans, seconds = collect(spool, Path(store))
        peak_rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        by_column = compacted_bytes(Path(store), spans)
    values = {
        "spans": spans,
        "spans_per_second_per_core": round(spans / seconds),
        "bytes_per_span": round(sum(by_column.values()), 3),
        "bytes_by_column": by_column,
        "peak_rss_mib": round(peak_rss_mib, 1),
    }
    report("collector", values)


if __name__ == "__main__":
    main()
