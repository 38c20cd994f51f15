"""The heartbeats of a synthetic job: idle after a clean end, or all waiting for the one rank that is stuck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megascope.profiler.topology import group_id

from .synthetic_job import MS, SEGMENTS, SyntheticJob


def heartbeat_rows(job: SyntheticJob, end: int) -> Mapping[str, Sequence[Any]]:
    """Two heartbeats of each rank: idle after a clean end, or all waiting for the rank that is stuck.

    They are 40 s and 60 s after the end: longer than data loading may take once in a while.
    """
    rows: dict[str, list[Any]] = {name: [] for name in ("rank", "moment_ns", "step", "in_flight", "progress")}
    for moment in (end + 40_000 * MS, end + 60_000 * MS):
        for rank in range(job.topology.world_size):
            flight, progress = ([], []) if job.stuck is None else _stuck_state(job, rank, job.stuck, end)
            values = (rank, moment, job.steps if job.stuck is not None else job.steps - 1, flight, progress)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    state = "exited" if job.stuck is None else "sleeping"
    return {**rows, "process_state": [state] * len(rows["rank"])}


def _stuck_state(job: SyntheticJob, rank: int, culprit: int, end: int) -> tuple[list[Any], list[Any]]:
    """In flight and progress of one rank when ``culprit`` sits in data loading: a cascade with one root."""
    mesh = job.topology
    mine, root = mesh.coordinates(rank), mesh.coordinates(culprit)
    stride = mesh.rank({"pp": 1})
    done = job.steps * job.microbatches
    behind = {"tp": done, "dp": job.steps * 2}
    progress = [
        {"group": group_id(axis, mesh.group(axis, rank)), "issued": behind[axis], "completed": behind[axis]}
        for axis in ("tp", "dp")
    ]
    if rank == culprit:
        return [_flight("data", end + 5 * MS, None, None, None)], progress
    if mesh.group("tp", rank) == mesh.group("tp", culprit):
        progress[0]["issued"] += 1
        return [
            _flight("forward", end + 8 * MS, None, None, None),
            _flight("tp_all_gather", end + 9 * MS, progress[0]["group"], done + 1, None),
        ], progress
    if mine["dp"] == root["dp"]:
        down = mine["pp"] > root["pp"]
        peer = rank - stride if down else rank + stride
        name = "recv_forward" if down else "recv_backward"
        group = group_id("pp_forward" if down else "pp_backward", (rank, peer))
        progress.append({"group": group, "issued": done + 1, "completed": done})
        return [_flight(name, end + 12 * MS, group, done + 1, peer)], progress
    progress[1]["issued"] += 1
    return [
        _flight("dp_reduce_scatter", end + 200 * MS, progress[1]["group"], progress[1]["issued"], None),
    ], progress


def _flight(name: str, begun_ns: int, group: int | None, sequence: int | None, peer: int | None) -> dict[str, Any]:
    return {
        "segment": name,
        "kind": SEGMENTS[name][0],
        "group": group,
        "sequence": sequence,
        "peer": peer,
        "microbatch": 0 if group is not None else None,
        "begun_ns": begun_ns,
    }
