"""A scene of `hang_scenes` as a store: what an agent would have written of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import segment_id
from megascope.viz3d.states import Flight, Snapshot

from .hang_scenes import MOMENT_NS


def write_scene(
    root: Path,
    looks: Sequence[Snapshot],
    *,
    exit_reason: str | None = None,
    incidents: Sequence[Mapping[str, Any]] = (),
    frozen: Snapshot | None = None,
    attempt: int = 0,
    more: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
) -> Store:
    """Write heartbeats of all looks (and what an incident froze) and open the store.

    ``more`` are rows of further tables; several attempts may share a root.
    """
    last = looks[-1] if looks else frozen
    assert last is not None
    ranks = sorted(last.coordinates)
    sizes = {axis: 1 + max(place[axis] or 0 for place in last.coordinates.values()) for axis in last.axes}
    tables: dict[str, Mapping[str, Sequence[Any]]] = {
        "runs": {
            "layout": [json.dumps(sizes)],
            "world_size": [len(ranks)],
            "start_ns": [last.moment_ns - 100 * 10**9],
            "end_ns": [last.moment_ns if exit_reason else None],
            "exit_reason": [exit_reason],
        },
        "groups": {
            "group": list(last.groups),
            "kind": [group.kind for group in last.groups.values()],
            "ranks": [list(group.ranks) for group in last.groups.values()],
        },
    }
    states = [state for look in looks for state in look.states.values()]
    if states:
        tables["heartbeats"] = {
            "rank": [state.rank for state in states],
            "moment_ns": [state.moment_ns for state in states],
            "step": [state.step for state in states],
            "in_flight": [[_flight(flight) for flight in state.flights] for state in states],
            "progress": [
                [{"group": g, "issued": i, "completed": c} for g, (i, c) in state.progress.items()] for state in states
            ],
            "process_state": [state.process_state for state in states],
            "spans": [state.spans for state in states],
        }
    if incidents:
        tables["incidents"] = {key: [one.get(key) for one in incidents] for key in incidents[0]}
    if frozen is not None:
        rows = [(state, flight) for state in frozen.states.values() for flight in state.flights]
        tables["in_flight"] = {
            "incident": [incidents[0]["incident"]] * len(rows),
            "rank": [state.rank for state, _ in rows],
            "step": [state.step for state, _ in rows],
            "snapshot": [1] * len(rows),
            "source": ["own"] * len(rows),
            **{key: [_flight(flight)[key] for _, flight in rows] for key in _flight(Flight("", ""))},
        }
    with TableWriter(root, f"test-{attempt}") as writer:
        for table, values in (tables | dict(more or {})).items():
            writer.write(table, "job", attempt, values)
        places = {axis: [last.coordinates[rank][axis] for rank in ranks] for axis in last.axes}
        where = {"rank": ranks, "host": [last.hosts[rank] for rank in ranks], **places}
        writer.write("ranks", "job", attempt, where, axes=last.axes)
        writer.commit()
    return Store(root)


def steps_done(
    ranks: Sequence[int], durations_s: Sequence[float], segment: str = "forward", kind: str = "compute"
) -> dict[str, Mapping[str, Sequence[Any]]]:
    """Rows of `events`, `steps` and `segments`: each rank has run steps of one segment, long before the looks."""
    rows = [(rank, step) for step in range(len(durations_s)) for rank in ranks]
    first_ns = MOMENT_NS - 10_000 * 10**9
    starts = [first_ns + step * 60 * 10**9 for _, step in rows]
    took = [round(durations_s[step] * 1e9) for _, step in rows]
    same = {"rank": [rank for rank, _ in rows], "step": [step for _, step in rows], "start_ns": starts}
    number = segment_id(segment, kind, None)
    return {
        "segments": {"segment": [number], "name": [segment], "kind": [kind]},
        "steps": {**same, "duration_ns": took},
        "events": {
            **same,
            "segment": [number] * len(rows),
            "duration_ns": took,
            "self_ns": took,
            "clock": ["host"] * len(rows),
            "status": ["ok"] * len(rows),
        },
    }


def _flight(flight: Flight) -> dict[str, Any]:
    return {
        "segment": flight.segment,
        "kind": flight.kind,
        "group": flight.group,
        "sequence": flight.sequence,
        "peer": flight.peer,
        "microbatch": flight.microbatch,
        "begun_ns": flight.begun_ns,
    }
