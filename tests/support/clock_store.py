"""Stores of jobs on hosts with wrong clocks, as their agents would have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import group_id, segment_id

from .clock_scenes import FIRST_NS, SECOND, Truth

SEGMENT = segment_id("dp_all_reduce", "collective", "dp")


def clocks_of(hosts: int, seed: int = 0) -> Truth:
    """Clocks with seconds of skew and 50 ppm of drift; host 0 is right."""
    rng = np.random.default_rng(seed)
    offset, drift = rng.uniform(-5, 5, hosts) * SECOND, rng.uniform(-50, 50, hosts) * 1e-6
    offset[0] = drift[0] = 0.0
    return Truth(np.round(offset), drift)


def shown(truth: Truth, host: int, since_ns: float) -> int:
    """What a host's clock shows so long after FIRST_NS."""
    return FIRST_NS + round(float(since_ns - truth.offset_ns[host] - truth.drift[host] * since_ns))


def write_job(
    writer: TableWriter,
    truth: Truth,
    steps: range,
    *,
    hosts: Sequence[str],
    step_s: float = 1.0,
    exit_reason: str | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    more: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    delay_ns: float = 2e4,
) -> None:
    """Write steps of a job with one rank a host and four all-reduces a step in each group, and commit."""
    ranks = range(len(hosts))
    chosen = [tuple(group) for group in (groups or [ranks])]
    rng = np.random.default_rng(steps.start)
    events: dict[str, list[Any]] = {
        name: [] for name in ("rank", "step", "segment", "start_ns", "duration_ns", "group", "sequence")
    }
    times: dict[str, list[Any]] = {name: [] for name in ("rank", "step", "start_ns", "duration_ns")}
    for step in steps:
        begun = step * step_s * SECOND
        for number, group in enumerate(chosen):
            for turn in range(4):
                end = begun + (0.2 + 0.15 * turn + 0.02 * number) * step_s * SECOND
                for rank in group:
                    stop = shown(truth, rank, end + rng.exponential(delay_ns))
                    start = shown(truth, rank, end - 0.1 * step_s * SECOND)
                    row = (rank, step, SEGMENT, start, stop - start, group_id("dp", group), 4 * step + turn + 1)
                    for name, value in zip(events, row, strict=True):
                        events[name].append(value)
        for rank in ranks:
            start = shown(truth, rank, begun)
            length = shown(truth, rank, begun + 0.95 * step_s * SECOND) - start
            for name, value in zip(times, (rank, step, start, length), strict=True):
                times[name].append(value)
    count = len(events["rank"])
    tables: dict[str, Mapping[str, Sequence[Any]]] = {
        "runs": {
            "layout": [json.dumps({"dp": len(hosts)})],
            "world_size": [len(hosts)],
            "start_ns": [FIRST_NS],
            "end_ns": [None if exit_reason is None else FIRST_NS + round(steps.stop * step_s * SECOND)],
            "exit_reason": [exit_reason],
        },
        "groups": {
            "group": [group_id("dp", group) for group in chosen],
            "kind": ["dp"] * len(chosen),
            "ranks": [list(group) for group in chosen],
        },
        "segments": {"segment": [SEGMENT], "name": ["dp_all_reduce"], "kind": ["collective"], "axis": ["dp"]},
        "events": {**events, "clock": ["host"] * count, "status": ["ok"] * count},
        "steps": times,
    }
    for table, rows in (tables | dict(more or {})).items():
        writer.write(table, "job", 0, rows)
    places = {"rank": list(ranks), "host": list(hosts), "dp": list(ranks)}
    writer.write("ranks", "job", 0, places, axes=("dp",))
    writer.commit()
