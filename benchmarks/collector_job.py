"""The spans of the collector's benchmark: a host of 8 ranks of a pp x dp x tp job on GPUs, in real black boxes.

404 spans a rank and step: forward, backward, tensor-parallel collectives, p2p, optimizer. The content is what a job
would leave, and no more, since bytes depend on how much of a time is chance:

* Durations vary as in production: compute by 2 %, collectives that nobody is late for by 3 %, receiving (which waits
  for the sender) by 60 %, the optimizer by 0.5 %: robust deviations from each rank's median in ByteDance's traces.
* Device times have what `device_clock` makes of the GPU's ticks of 32 ns: float32 milliseconds since a reference that
  is at most 0.4 s old.
* Enqueue times are the host's: gaps between real readings of the clock around a launch's worth of Python, measured
  here, at the grain that this machine's clock has.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megascope.profiler.box.box import (
    ABSENT_I16,
    ABSENT_I32,
    ABSENT_I64,
    ABSENT_INDEX,
    RAW,
    RECORD,
    BoxLayout,
)
from megascope.profiler.box.format import as_written
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import CLOCK_CODES, Clock, SegmentKind

MESH = Topology.of(pp=2, dp=2, tp=2)
MICROBATCHES = 10
LAYERS = 4
SPANS_PER_STEP = 404
GPU_TICK_NS = 32
REFERENCE_NS = 400_000_000

_KINDS = {
    "forward": (SegmentKind.COMPUTE, None, 8_000_000, 0.02),
    "backward": (SegmentKind.COMPUTE, None, 16_000_000, 0.02),
    "tp_all_gather": (SegmentKind.COLLECTIVE, "tp", 300_000, 0.03),
    "tp_reduce_scatter": (SegmentKind.COLLECTIVE, "tp", 350_000, 0.03),
    "send_forward": (SegmentKind.P2P, "pp", 120_000, 0.03),
    "recv_backward": (SegmentKind.P2P, "pp", 900_000, 0.6),
    "optimizer": (SegmentKind.OPTIMIZER, None, 5_000_000, 0.005),
}
"""Kind, axis, median duration in ns, and spread of its logarithm."""

_COMPUTE_STREAM, _COMM_STREAM = 1, 2
Times = npt.NDArray[np.int64]


def step_names() -> list[tuple[str, int]]:
    """Segment and micro-batch of the spans of one step, in the order of their end."""
    names: list[tuple[str, int]] = []
    for microbatch in range(MICROBATCHES):
        for outer, transfer in (("forward", "send_forward"), ("backward", "recv_backward")):
            names += [("tp_all_gather", microbatch), ("tp_reduce_scatter", microbatch)] * (2 * LAYERS)
            names += [(outer, microbatch)] + [(transfer, microbatch)] * 3
    return names + [("optimizer", ABSENT_I32)] * (SPANS_PER_STEP - len(names))


def step_template(indices: dict[str, int], groups: dict[str, int]) -> np.ndarray[Any, Any]:
    """The spans of one step of one rank without times; no collective or transfer is its own parent."""
    names = step_names()
    records = np.zeros(len(names), RECORD)
    records["segment"] = [indices[name] for name, _ in names]
    records["microbatch"] = [microbatch for _, microbatch in names]
    axes = [_KINDS[name][1] for name, _ in names]
    records["group"] = [ABSENT_INDEX if axis is None else groups[axis] for axis in axes]
    records["peer"] = [1 if axis == "pp" else ABSENT_I32 for axis in axes]
    records["size_bytes"] = [ABSENT_I64 if axis is None else 2**22 for axis in axes]
    records["parent"] = [indices["forward"] if axis == "tp" else ABSENT_INDEX for axis in axes]
    records["stream"] = [_COMPUTE_STREAM if axis is None else _COMM_STREAM for axis in axes]
    records["chunk"], records["clock"] = ABSENT_I16, CLOCK_CODES.index(Clock.DEVICE)
    return records


def host_gaps(count: int = 1 << 14) -> tuple[Times, int]:
    """Gaps between launches as this host's clock sees them, and the grain of that clock, both in ns."""
    matrix, readings = np.ones((16, 16)), []
    for _ in range(count):
        np.dot(np.dot(matrix, matrix), np.dot(matrix, matrix))
        readings.append(time.monotonic_ns())
    gaps = np.diff(np.array(readings))
    short = np.diff([time.monotonic_ns() for _ in range(count)])
    seen = np.unique(short[(short > 0) & (short < 200)])
    grain = int(np.median(np.diff(seen)[np.diff(seen) > 1])) if (np.diff(seen) > 1).any() else 1
    return np.minimum(gaps, 1_000_000), grain


class StepTimes:
    """Makes the times of one rank's steps: kernels of a stream one after the other, as `device_clock` reports them."""

    def __init__(self, rank: int, gaps: Times) -> None:
        self._random = np.random.default_rng(rank)
        self._gaps = gaps
        names = [name for name, _ in step_names()]
        self._medians = np.array([_KINDS[name][2] for name in names])
        self._spreads = np.array([_KINDS[name][3] for name in names])
        kinds = np.array([_KINDS[name][1] or "work" for name in names])
        self._is_tp, self._is_recv = kinds == "tp", np.array(names) == "recv_backward"
        self.is_work = kinds == "work"
        # Collectives lie inside the work that ends next: an equal part of its compute comes before each, one behind.
        self._outer = np.searchsorted(np.flatnonzero(self.is_work), np.arange(len(names)))
        self._inside = np.bincount(self._outer[self._is_tp], minlength=int(self.is_work.sum()))

    def make(self, now_ns: int) -> dict[str, Times]:
        """Columns start, duration, self, exposed and begun of one step that begins at ``now_ns``, and its end."""
        random, count = self._random, len(self._medians)
        took = self._medians * np.exp(self._spreads * random.standard_normal(count))
        launch = random.gamma(4, 1500, count)
        handover = random.gamma(4, 400, count)
        exposed = np.where(self._is_tp | self._is_recv, took + handover, 0.0)
        share = took[self.is_work] / (self._inside + 1)
        before = np.where(self._is_tp, share[self._outer] * np.exp(0.02 * random.standard_normal(count)), 0.0)
        alone = np.where(self.is_work, share[self._outer], np.where(self._is_tp, 0.0, 3000.0))
        ends = np.cumsum(before + exposed + alone + np.where(self._is_tp, 0.0, launch))
        starts = ends - np.where(self._is_tp, exposed, np.where(self._is_recv, exposed + launch, launch + 3000.0))
        inner = np.bincount(self._outer[self._is_tp], (before + exposed)[self._is_tp], len(self._inside))
        waited = np.bincount(self._outer[self._is_tp], exposed[self._is_tp], len(self._inside))
        work_ends = (ends - launch)[self.is_work]
        starts[self.is_work] = work_ends - share - inner
        took[self.is_work] = share + inner
        start, end = self._on_device(now_ns, starts), self._on_device(now_ns, starts + took)
        waits = self._on_device(now_ns, starts + exposed) - start
        own = end - start
        own[self.is_work] -= waited.astype(np.int64)
        first = random.integers(0, len(self._gaps) - count)
        begun = now_ns - 5_000_000 + np.cumsum(self._gaps[first : first + count])
        exposed_ns = np.where(self.is_work, ABSENT_I64, waits)
        columns = {"start_ns": start, "duration_ns": end - start, "self_ns": own, "exposed_ns": exposed_ns}
        return columns | {"begun_ns": begun, "end_ns": np.array([now_ns + int(ends[-1])])}

    def _on_device(self, now_ns: int, offsets: npt.NDArray[np.float64]) -> Times:
        ticks = np.round((now_ns + offsets) / GPU_TICK_NS).astype(np.int64) * GPU_TICK_NS
        reference = ticks // REFERENCE_NS * REFERENCE_NS
        elapsed_ms = ((ticks - reference) / 1e6).astype(np.float32)
        return reference + np.round(elapsed_ms.astype(np.float64) * 1e6).astype(np.int64)


class Source:
    """A rank's black box, filled by hand: what 404 calls a step would have left in it."""

    def __init__(self, spool: Path, rank: int, gaps: Times) -> None:
        layout = BoxLayout(slots=64, rings=1, ring_records=16384, groups=16)
        settings = RecorderSettings(
            run="bench", attempt=0, rank=rank, world_size=MESH.world_size, spool=spool, layout=layout
        )
        recorder = open_recorder(settings)
        assert isinstance(recorder, Recorder)
        self.recorder = recorder
        recorder.topology(MESH, rank)
        indices = {name: recorder.segment(name, kind, axis) for name, (kind, axis, _, _) in _KINDS.items()}
        groups = {axis: recorder.group(axis, MESH.group(axis, rank)) for axis in ("tp", "pp")}
        self._template = step_template(indices, groups)
        self._times = StepTimes(rank, gaps)
        path = spool / "bench" / "0" / f"rank-{rank:05d}.box"
        whole = np.memmap(path, np.uint8, "r+")
        first = layout.rings_offset
        self._ring = whole[first : first + layout.ring_records * RAW.itemsize].view(RAW)
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
        times = self._times.make(self._now_ns)
        self._now_ns = int(times.pop("end_ns")[0])
        for name, values in times.items():
            records[name] = values
        records["sequence"] = ABSENT_I64
        for group in np.unique(records["group"][~self._times.is_work]):
            places = np.flatnonzero(records["group"] == group)
            records["sequence"][places] = self._sequence[group] + np.arange(1, len(places) + 1)
            self._sequence[group] += len(places)
        records["step"] = self._step
        raw = as_written(records, self._count, len(self._ring))
        self._ring[np.arange(self._count, self._count + len(records)) % len(self._ring)] = raw
        self._count += len(records)
        self._step += 1
