"""Stores of hand-written work, collectives and messages, with groups and sequences: who waited for whom is known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import group_id, segment_id

MS = 1_000_000
FIRST_NS = 1_790_000_000 * 10**9

SEGMENTS = {"forward": "compute", "optimizer": "optimizer", "all_reduce": "collective", "send": "p2p", "recv": "p2p"}


@dataclass(slots=True)
class MeetingJob:
    """Spans by name, rank, start and end in ms; ``members`` says who is in the group, ``hosts`` where each rank is."""

    ranks: int
    members: Sequence[int] | None = None
    hosts: Sequence[str] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, rank: int, start_ms: float, end_ms: float, **more: Any) -> None:
        """One span of step 0; ``exposed_ms`` of it were waited for."""
        exposed = more.pop("exposed_ms", None)
        self.rows.append(
            {
                "rank": rank,
                "step": 0,
                "segment": segment_id(name, SEGMENTS[name], None),
                "stream": "host",
                "start_ns": FIRST_NS + round(start_ms * MS),
                "duration_ns": round((end_ms - start_ms) * MS),
                "self_ns": round((end_ms - start_ms) * MS),
                "exposed_ns": None if exposed is None else round(exposed * MS),
                "clock": "host",
                "status": "ok",
                **more,
            }
        )

    def meet(self, starts_ms: Sequence[float], end_ms: float, sequence: int = 1) -> None:
        """A collective of all ranks that waits for the last of them."""
        group = group_id("dp", self.members or range(self.ranks))
        for rank, start in enumerate(starts_ms):
            self.add("all_reduce", rank, start, end_ms, exposed_ms=end_ms - start, group=group, sequence=sequence)

    def write(self, root: Path, uncertainty_ms: float | None = None) -> Store:
        """Write the store and open it; the hosts' clocks agree within the uncertainty, or are not known."""
        hosts = list(self.hosts or ["a"] * self.ranks)
        names = ("peer", "group", "sequence", *self.rows[0])
        last = max(row["start_ns"] + row["duration_ns"] for row in self.rows)
        tables: dict[str, Mapping[str, Sequence[Any]]] = {
            "runs": {
                "layout": [json.dumps({"dp": self.ranks})],
                "world_size": [self.ranks],
                "start_ns": [FIRST_NS],
                "end_ns": [last],
                "exit_reason": ["finished"],
            },
            "segments": {
                "segment": [segment_id(name, kind, None) for name, kind in SEGMENTS.items()],
                "name": list(SEGMENTS),
                "kind": list(SEGMENTS.values()),
            },
            "groups": {
                "group": [group_id("dp", self.members or range(self.ranks))],
                "kind": ["dp"],
                "ranks": [list(self.members or range(self.ranks))],
            },
            "events": {name: [row.get(name) for row in self.rows] for name in dict.fromkeys(names)},
            "steps": {
                "rank": list(range(self.ranks)),
                "step": [0] * self.ranks,
                "start_ns": [FIRST_NS] * self.ranks,
                "duration_ns": [last - FIRST_NS] * self.ranks,
            },
        }
        if uncertainty_ms is not None:
            known = sorted(set(hosts))
            tables["clock_offsets"] = {
                "host": known,
                "moment_ns": [FIRST_NS] * len(known),
                "offset_ns": [0] * len(known),
                "drift_ppb": [0.0] * len(known),
                "uncertainty_ns": [round(uncertainty_ms * MS)] * len(known),
            }
        with TableWriter(root, "test") as writer:
            for table, rows in tables.items():
                writer.write(table, "job", 0, rows)
            everyone = list(range(self.ranks))
            writer.write("ranks", "job", 0, {"rank": everyone, "host": hosts, "dp": everyone}, axes=("dp",))
            writer.commit()
        return Store(root)
