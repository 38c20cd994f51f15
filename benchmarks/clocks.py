"""Clock alignment: residuals on a real trace beside its raw mismatch, coverage on synthetic clocks, and cost at scale.

    python -m benchmarks.clocks [--trace TRACE-AR.PARQUET] [--only real_trace | synthetic | fleet]

Without a path, ../shared/traces is looked in; without a trace there, that part is null.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.bytedance import read_transfers
from benchmarks.machine import report
from megascope.collectors.clocks.alignment import align_hosts
from megascope.collectors.clocks.pairs import Ends, Side

DEFAULT_TRACE = Path(__file__).parents[2] / "shared/traces/bytedance_whatif/trace-AR.parquet"
Floats = npt.NDArray[np.float64]
SECOND_NS = 1e9


def real_trace(path: Path) -> dict[str, Any]:
    """Mismatch of the ends of each stage pair's transfers, µs, raw and after alignment.

    Each step of each pipeline is aligned by the transfers with even numbers and judged by those with odd ones.
    """
    raw: dict[int, list[Floats]] = {}
    left: dict[int, list[Floats]] = {}
    stated: dict[int, list[float]] = {}
    began = time.perf_counter()
    steps = 0
    for transfers in read_transfers(path):
        steps += 1
        stages = int(max(transfers.sender.max(), transfers.receiver.max())) + 1
        alignment = align_hosts(transfers.of_parity(0).ends(), stages)
        if alignment is None:
            continue
        judged = transfers.of_parity(1)
        residual = judged.mismatch_ns(alignment)
        for pair in np.unique(judged.pair).tolist():
            of_pair = judged.pair == pair
            raw.setdefault(pair, []).append(judged.mismatch_ns()[of_pair])
            left.setdefault(pair, []).append(residual[of_pair])
            width = alignment.begin_uncertainty_ns[pair + 1] - alignment.begin_uncertainty_ns[pair]
            stated.setdefault(pair, []).append(float(width))
    pairs = {
        f"{pair}-{pair + 1}": {
            "transfers": sum(map(len, raw[pair])),
            "raw_us": _percentiles(raw[pair]),
            "residual_us": _percentiles(left[pair]),
            "stated_uncertainty_us": round(float(np.median(stated[pair])) / 1e3, 1),
        }
        for pair in sorted(raw)
    }
    return {"steps_of_pipelines": steps, "pairs": pairs, "seconds": round(time.perf_counter() - began, 2)}


def _percentiles(parts: list[Floats]) -> dict[str, float]:
    values = np.abs(np.concatenate(parts)) / 1e3
    return {f"p{of}": round(float(np.percentile(values, of)), 1) for of in (50, 90, 99)}


def scene(
    rng: np.random.Generator, groups: list[Any], hosts: int, operations: int, seconds: float
) -> tuple[Ends, Floats, Floats]:
    """Ends of collectives on hosts with seconds of skew and 50 ppm of drift, and the truth (offset at 0, drift).

    Delays are exponential with a mean of 5 to 50 µs, a host its own; 3 % of ends are late by up to 50 ms, 3 % missing.
    """
    offset, drift = rng.uniform(-5, 5, hosts) * SECOND_NS, rng.uniform(-50, 50, hosts) * 1e-6
    offset[0] = drift[0] = 0.0
    mean = rng.uniform(5e3, 5e4, hosts)
    parts = []
    for number, group in enumerate(groups):
        moments = np.sort(rng.uniform(0, seconds * SECOND_NS, operations))
        shape = (operations, len(group))
        end = moments[:, None] + rng.exponential(mean[group], shape)
        end += np.where(rng.random(shape) < 0.03, rng.uniform(0, 5e7, shape), 0.0)
        clock = np.round(end - offset[group] - drift[group] * end).astype(np.int64)
        kept = rng.random(shape) >= 0.03
        operation = np.broadcast_to(number * operations + np.arange(operations)[:, None], shape)
        parts.append((operation[kept], np.broadcast_to(group[None, :], shape)[kept], clock[kept]))
    operation, host, clock = (np.concatenate(column) for column in zip(*parts, strict=True))
    side, duration = np.full(len(host), Side.COLLECTIVE, np.int64), np.full(len(host), 10**6)
    return Ends(operation, host, clock, side, duration), offset, drift


def coverage(trials: int) -> dict[str, Any]:
    """Share of offsets right within their stated uncertainty, at both ends of windows of a minute."""
    inside = total = 0
    errors: list[Floats] = []
    uncertainties: list[Floats] = []
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        groups = [np.arange(8), np.array([7, 8, 9, 10]), np.array([10, 11])]
        ends, offset, drift = scene(rng, groups, 12, int(rng.integers(30, 300)), 60.0)
        found = align_hosts(ends, 12)
        if found is None:
            continue
        for moment_ns, uncertainty in (
            (found.begin_ns, found.begin_uncertainty_ns),
            (found.end_ns, found.end_uncertainty_ns),
        ):
            error = np.abs(found.offset_at_ns(moment_ns) - offset - drift * moment_ns)[1:]
            inside += int((error <= uncertainty[1:]).sum())
            total += len(error)
            errors.append(error)
            uncertainties.append(uncertainty[1:])
    return {
        "offsets": total,
        "within_uncertainty": round(inside / max(total, 1), 4),
        "error_us": _percentiles(errors),
        "uncertainty_us": _percentiles(uncertainties),
    }


def at_scale(hosts: int) -> dict[str, Any]:
    """One window of ten minutes over a fleet: pipelines of 8 stages, each stage's hosts in one data-parallel group."""
    rng = np.random.default_rng(7)
    stages = 8
    grid = np.arange(hosts).reshape(stages, -1)
    groups = [grid[stage] for stage in range(stages)] + [grid[:, at] for at in range(grid.shape[1])]
    ends, offset, drift = scene(rng, groups, hosts, 192, 600.0)
    began, cpu = time.perf_counter(), time.process_time()
    found = align_hosts(ends, hosts)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    assert found is not None
    error = np.abs(found.offset_at_ns(found.end_ns) - offset - drift * found.end_ns)
    return {
        "hosts": hosts,
        "ends": len(ends),
        "pairs": found.pairs,
        "seconds_per_window": round(seconds, 2),
        "cpu_seconds_per_window": round(cpu_seconds, 2),
        "within_uncertainty": round(float((error <= found.end_uncertainty_ns).mean()), 4),
        "worst_error_us": round(float(error.max()) / 1e3, 1),
        "worst_uncertainty_us": round(float(found.end_uncertainty_ns.max()) / 1e3, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """Print the one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, default=DEFAULT_TRACE)
    parser.add_argument("--only", choices=("real_trace", "synthetic", "fleet"))
    chosen = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any] | None]] = {
        "real_trace": lambda: real_trace(chosen.trace) if chosen.trace.exists() else None,
        "synthetic": lambda: coverage(200),
        "fleet": lambda: at_scale(1536),
    }
    report("clocks", {name: part() for name, part in parts.items() if chosen.only in (None, name)})


if __name__ == "__main__":
    main()
