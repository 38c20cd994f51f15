"""Stores made of hand-written spans: a few lines of truth for the analysers to find."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import Topology, segment_id

MS = 1_000_000
FIRST_NS = 1_790_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class Span:
    """One span; times in milliseconds after the first moment. ``self_ms`` None: all of the duration."""

    rank: int
    step: int | None
    segment: str
    start_ms: float
    duration_ms: float
    self_ms: float | None = None
    exposed_ms: float | None = None
    kind: str = "compute"
    chunk: int | None = None
    microbatch: int | None = None
    status: str = "ok"


def _ns(ms: float | None) -> int | None:
    return None if ms is None else round(ms * MS)


def meeting(ranks: int, steps: int, work_ms: Callable[[int, int], float], segment: str = "forward") -> list[Span]:
    """Spans of a job whose ranks work for ``work_ms(rank, step)`` and then meet in a collective, which is timed."""
    spans = []
    for step in range(steps):
        work = [work_ms(rank, step) for rank in range(ranks)]
        for rank, took in enumerate(work):
            at, waits = step * 200.0, max(work) - took + 1.0
            spans.append(Span(rank, step, segment, at, took))
            spans.append(Span(rank, step, "all_reduce", at + took, waits, exposed_ms=waits, kind="collective"))
    return spans


def write_spans(
    root: Path,
    spans: Sequence[Span],
    *,
    layout: Mapping[str, int],
    hosts: Mapping[int, str] | None = None,
    world_size: int | None = None,
    exit_reason: str | None = "finished",
    attempt: int = 0,
    clock: str = "host",
    more: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
) -> Store:
    """Write the store of one attempt and open it. ``more`` are rows of further tables; attempts may share a root."""
    mesh = Topology.from_mapping(layout)
    ranks = sorted({span.rank for span in spans})
    places = [mesh.coordinates(rank) for rank in ranks]
    names = sorted({(span.segment, span.kind) for span in spans})
    ids = {name: segment_id(*name, None) for name in names}
    end_ns = FIRST_NS + round(max(span.start_ms + span.duration_ms for span in spans) * MS)
    tables: dict[str, Mapping[str, Sequence[Any]]] = {
        "runs": {
            "layout": [json.dumps(dict(layout))],
            "world_size": [world_size or mesh.world_size],
            "start_ns": [FIRST_NS],
            "end_ns": [end_ns if exit_reason else None],
            "exit_reason": [exit_reason],
        },
        "segments": {
            "segment": list(ids.values()),
            "name": [name for name, _ in names],
            "kind": [kind for _, kind in names],
        },
        "events": {
            "rank": [span.rank for span in spans],
            "step": [span.step for span in spans],
            "microbatch": [span.microbatch for span in spans],
            "chunk": [span.chunk for span in spans],
            "segment": [ids[span.segment, span.kind] for span in spans],
            "stream": ["host"] * len(spans),
            "start_ns": [FIRST_NS + round(span.start_ms * MS) for span in spans],
            "duration_ns": [_ns(span.duration_ms) for span in spans],
            "self_ns": [_ns(span.duration_ms if span.self_ms is None else span.self_ms) for span in spans],
            "exposed_ns": [_ns(span.exposed_ms) for span in spans],
            "clock": [clock] * len(spans),
            "status": [span.status for span in spans],
        },
    }
    with TableWriter(root, f"test-{attempt}") as writer:
        for table, rows in (tables | dict(more or {})).items():
            writer.write(table, "job", attempt, rows)
        placed = {axis: [place[axis] for place in places] for axis in mesh.names}
        where = {"rank": ranks, "host": [(hosts or {}).get(rank, "node0") for rank in ranks], **placed}
        writer.write("ranks", "job", attempt, where, axes=mesh.names)
        writer.commit()
    return Store(root)
