"""Stores made of hand-written spans: a few lines of truth for the analysers to find."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megascope.collectors.store import Store
from megascope.collectors.writer import TableWriter
from megascope.profiler.topology import Topology, segment_id

MS = 1_000_000
FIRST_NS = 1_790_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class Span:
    """One span; times in milliseconds after the first moment. ``self_ms`` None: all of the duration."""

    rank: int
    step: int
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


def write_spans(
    root: Path,
    spans: Sequence[Span],
    *,
    layout: Mapping[str, int],
    hosts: Mapping[int, str] | None = None,
    world_size: int | None = None,
    exit_reason: str | None = "finished",
) -> Store:
    """Write the store of one attempt and open it."""
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
            "clock": ["host"] * len(spans),
            "status": [span.status for span in spans],
        },
    }
    with TableWriter(root, "test") as writer:
        for table, rows in tables.items():
            writer.write(table, "job", 0, rows)
        placed = {axis: [place[axis] for place in places] for axis in mesh.names}
        where = {"rank": ranks, "host": [(hosts or {}).get(rank, "node0") for rank in ranks], **placed}
        writer.write("ranks", "job", 0, where, axes=mesh.names)
        writer.commit()
    return Store(root)
