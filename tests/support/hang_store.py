"""A scene of `hang_scenes` as a store: what an agent would have written of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megascope.collectors.store import Store
from megascope.collectors.writer import TableWriter
from megascope.viz3d.snapshot import Flight, Snapshot


def write_scene(
    root: Path,
    looks: Sequence[Snapshot],
    *,
    exit_reason: str | None = None,
    incidents: Sequence[Mapping[str, Any]] = (),
    frozen: Snapshot | None = None,
) -> Store:
    """Write heartbeats of all looks (and what an incident froze) and open the store."""
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
    with TableWriter(root, "test") as writer:
        for table, values in tables.items():
            writer.write(table, "job", 0, values)
        places = {axis: [last.coordinates[rank][axis] for rank in ranks] for axis in last.axes}
        where = {"rank": ranks, "host": [last.hosts[rank] for rank in ranks], **places}
        writer.write("ranks", "job", 0, where, axes=last.axes)
        writer.commit()
    return Store(root)


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
