"""What only a GPU can show: no synchronisation, right times, the overhead, the trainer alone and shared, and MFU.

Prints one JSON object, ``ok`` in it; without CUDA it says so in one sentence and ends with exit code 1.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from megascope.profiler import session
from megascope.profiler.automatic.automatic import Automatic
from megascope.profiler.box.box import BoxReader
from megascope.profiler.device_clock import CudaTimer
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import CLOCK_CODES, STATUS_CODES, Clock, SegmentKind, Status

from .gpu_mfu import mfu_on_gpu
from .gpu_training import train_on_gpu
from .machine import report

LENGTHS_MS = (0.2, 1.0, 5.0, 20.0, 100.0)
MAX_ERROR_PERCENT, MAX_ERROR_MS = 2.0, 0.02
PAIRS, STEPS, SPANS_A_STEP = 20, 5, 100
RESAMPLES = 2000
SHARING_RANKS = 4

NO_CUDA = "There is no CUDA device here: run benchmarks.gpu_check on a machine with a GPU and a torch built for CUDA."


def cycles_per_ms(cuda: Any, sleep: Callable[[int], None], cycles: int = 200_000_000) -> dict[str, float]:
    """Calibrate a kernel that spins for a number of clock cycles: by events, and by the host's clock."""
    sleep(cycles)  # the clocks go up
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    began = time.perf_counter()
    first.record()
    sleep(cycles)
    last.record()
    cuda.synchronize()
    wall_ms = (time.perf_counter() - began) * 1e3
    return {"by_events": cycles / first.elapsed_time(last), "by_wall_clock": cycles / wall_ms}


def event_times(
    recorder: Recorder, box: Path, sleep_ms: Callable[[float], None], settle: Callable[[], None]
) -> dict[str, Any]:
    """Spans around kernels of known lengths; ``settle`` lets the device finish and the recorder read its events."""
    segment = recorder.segment("known_kernel", SegmentKind.COMPUTE)
    for length in LENGTHS_MS:
        span = recorder.begin(segment)
        sleep_ms(length)
        recorder.end(span)
    settle()
    reader = BoxReader(box)
    records = [record for ring in range(reader.layout.rings) for record in reader.read_ring(ring, 0).records]
    reader.close()
    records = sorted((r for r in records if int(r["segment"]) == segment), key=lambda r: int(r["begun_ns"]))
    device, fine = CLOCK_CODES.index(Clock.DEVICE), STATUS_CODES.index(Status.OK)
    are_timed = all((int(r["clock"]), int(r["status"])) == (device, fine) for r in records)
    measured = [int(record["duration_ns"]) / 1e6 for record in records]
    errors = [found - length for found, length in zip(measured, LENGTHS_MS, strict=False)]
    is_close = all(
        abs(error) <= max(MAX_ERROR_MS, MAX_ERROR_PERCENT / 100 * length)
        for error, length in zip(errors, LENGTHS_MS, strict=False)
    )
    return {
        "ok": are_timed and is_close and len(measured) == len(LENGTHS_MS),
        "expected_ms": list(LENGTHS_MS),
        "measured_ms": [round(value, 4) for value in measured],
    }


def recorded_step(recorder: Recorder | None, segment: int, number: int, work: Callable[[], None]) -> None:
    """One step of kernels, each with a span around it; without a recorder, bare."""
    if recorder is None:
        for _ in range(SPANS_A_STEP):
            work()
        return
    recorder.step(number)
    for _ in range(SPANS_A_STEP):
        span = recorder.begin(segment)
        work()
        recorder.end(span)


def nothing_synchronises(
    cuda: Any, recorder: Recorder, work: Callable[[], None], parts: Mapping[str, Callable[[int], None]] | None = None
) -> dict[str, Any]:
    """Recorded steps in the mode in which torch raises for whatever waits for the device; then each part, by itself.

    ``parts`` take the number of a step. The mode sees what torch checks: copies, reads of values, waits for streams.
    """
    segment = recorder.segment("step_kernel", SegmentKind.COMPUTE)
    error = _error_of(cuda, lambda number: recorded_step(recorder, segment, number, work))
    if error:
        return {"ok": False, "error": error}
    result: dict[str, Any] = {"ok": True, "steps": STEPS, "spans": STEPS * SPANS_A_STEP}
    for name, part in (parts or {}).items():
        error = _error_of(cuda, part)
        result.setdefault("parts", {})[name] = error or "ok"
        if error:
            result.update(ok=False, error=f"{name}: {error}")
    return result


def _error_of(cuda: Any, part: Callable[[int], None]) -> str:
    """The first line of what was raised in some steps of a part; empty where nothing was."""
    cuda.set_sync_debug_mode("error")
    try:
        for number in range(STEPS):
            part(number)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        cuda.set_sync_debug_mode("default")
    return ""


@contextlib.contextmanager
def automatic_parts(
    torch: Any, recorder: Recorder, work: Callable[[], None]
) -> Iterator[dict[str, Callable[[int], None]]]:
    """What is recorded by itself, warmed up: `megascope.step`, an all-reduce of one NCCL rank, a replay of a graph."""
    dist, cuda = torch.distributed, torch.cuda
    values = torch.ones(1024, device="cuda")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    session.install(recorder, frozenset(Automatic) - {Automatic.EXIT, Automatic.EXCEPTIONS})
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph):
            work()
        parts: dict[str, Callable[[int], None]] = {
            "step": lambda number: session.step(number, loss=1.0),
            "all_reduce": lambda number: dist.all_reduce(values),
            "async_all_reduce": lambda number: dist.all_reduce(values, async_op=True).wait(),
            "graph_replay": lambda number: graph.replay(),
        }
        for part in parts.values():
            part(0)
        cuda.synchronize()
        yield parts
    finally:
        session.shutdown()
        dist.destroy_process_group()


def overhead(
    recorder: Recorder, work: Callable[[], None], finish: Callable[[], None], pairs: int = PAIRS
) -> dict[str, Any]:
    """Wall time of a step with a span around every kernel over one without, in pairs in random order."""
    segment = recorder.segment("paired_kernel", SegmentKind.COMPUTE)
    order = random.Random(0)
    ratios, bare_ms = [], []
    for pair in range(pairs + 1):
        took: dict[bool, float] = {}
        for is_recorded in order.sample([True, False], 2):
            finish()
            began = time.perf_counter()
            recorded_step(recorder if is_recorded else None, segment, pair, work)
            finish()
            took[is_recorded] = (time.perf_counter() - began) * 1e3
        if pair:  # the first warms up
            ratios.append(100 * (took[True] / took[False] - 1))
            bare_ms.append(took[False])
    return {"ok": True, "percent": interval(ratios), "step_ms": round(statistics.median(bare_ms), 3), "pairs": pairs,
            "spans_per_step": SPANS_A_STEP}  # fmt: skip


def interval(values: Sequence[float]) -> dict[str, float]:
    """Median and its 95 % bootstrap interval."""
    order = random.Random(0)
    medians = sorted(statistics.median(order.choices(values, k=len(values))) for _ in range(RESAMPLES))
    low, high = medians[RESAMPLES // 40], medians[-RESAMPLES // 40]
    return {"median": round(statistics.median(values), 3), "low": round(low, 3), "high": round(high, 3)}


def check_recorder(torch: Any, folder: Path) -> dict[str, Any]:
    """The checks of one process on one device."""
    cuda = torch.cuda
    matrix = torch.randn(1024, 1024, device="cuda")
    result = torch.empty_like(matrix)
    cuda.synchronize()
    recorder = open_recorder(RecorderSettings(run="gpu", attempt=0, rank=0, world_size=1, spool=folder))
    if not isinstance(recorder, Recorder) or not isinstance(recorder.device, CudaTimer):
        return {"recorder": {"ok": False, "error": "the recorder does not time the device"}}
    box = folder / "gpu" / "0" / "rank-00000.box"
    rate = cycles_per_ms(cuda, cuda._sleep)
    rates_agree = abs(rate["by_events"] / rate["by_wall_clock"] - 1) < MAX_ERROR_PERCENT / 100

    def settle() -> None:
        cuda.synchronize()
        while recorder.device is not None and recorder.device.poll():  # type: ignore[attr-defined]
            time.sleep(0.005)

    def work() -> None:
        torch.mm(matrix, matrix, out=result)

    checks = {
        "calibration": {"ok": rates_agree, "cycles_per_ms": {name: round(value) for name, value in rate.items()}},
        "event_times": event_times(recorder, box, lambda ms: cuda._sleep(round(ms * rate["by_events"])), settle),
        "overhead": overhead(recorder, work, cuda.synchronize),
    }
    with automatic_parts(torch, recorder, work) as parts:
        checks["nothing_synchronises"] = nothing_synchronises(cuda, recorder, work, parts)
    recorder.close()
    return checks


def main() -> int:
    """Measure and print; the exit code."""
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write(NO_CUDA + "\n")
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checks = check_recorder(torch, folder / "spool")
        checks["trainer_nccl"] = train_on_gpu(folder / "nccl", ranks=1, backend="nccl")
        checks["trainer_host_staged"] = train_on_gpu(folder / "staged", ranks=SHARING_RANKS, backend="gloo")
        checks["mfu"] = mfu_on_gpu(folder / "mfu", backend="nccl")
    device = {"name": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    is_ok = all(check["ok"] for check in checks.values())
    report("gpu_check", {"ok": is_ok, "device": device, **checks})
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
