"""Writes Chrome traces as profilers do, for the tests of importing them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(name: str, ts: Any, dur: Any, *, stream: int = 7, correlation: int | None = None, **args: Any) -> Event:
    """A kernel on a stream of device 0; times in microseconds."""
    told = {"device": 0, "stream": stream, **({} if correlation is None else {"correlation": correlation}), **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": told}


def launch(ts: Any, correlation: int) -> Event:
    """The launch of a kernel."""
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": ts, "dur": 1,
        "args": {"correlation": correlation},
    }  # fmt: skip


def host(name: str, ts: Any, dur: Any, *, cat: str = "cpu_op", tid: int = 7) -> Event:
    """A span of the host: an operator, or with another category an annotation."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def marker(number: int, ts: Any, dur: Any) -> Event:
    """A step of the profiler."""
    return host(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def write_trace(path: Path, events: Iterable[Event], **header: Any) -> Path:
    """A trace file; ``rank`` and ``world_size`` become its distributed info."""
    info = {name: header.pop(name) for name in ("rank", "world_size", "pg_config") if name in header}
    told: Mapping[str, Any] = {"schemaVersion": 1, **({"distributedInfo": info} if info else {}), **header}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**told, "traceEvents": list(events)}))
    return path
