"""A store that no job wrote: a plausible 3D-parallel run of any size, generated column by column, with known truths."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megascope.collectors.tables.schemas import RANKS_PER_BLOCK, block_name
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import Topology, group_id

from .synthetic_heartbeats import heartbeat_rows
from .synthetic_job import IDS, MS, SEGMENTS, START_NS, Slow, SyntheticJob
from .synthetic_spans import span_rows

__all__ = ["IDS", "MS", "SEGMENTS", "START_NS", "Slow", "SyntheticJob", "write_synthetic_store"]


def write_synthetic_store(root: Path, job: SyntheticJob) -> None:
    """Write the job's store at ``root`` with one writer; several jobs may share a root."""
    with TableWriter(root, f"synthetic-{job.run}-{job.attempt}") as writer:
        _write_small_tables(writer, job)
        ranks = np.arange(job.topology.world_size)
        for first in range(0, len(ranks), RANKS_PER_BLOCK):
            block = ranks[first : first + RANKS_PER_BLOCK]
            for step in range(job.first_step, job.steps, 10):
                chunk = np.arange(step, min(step + 10, job.steps))
                writer.write("events", job.run, job.attempt, span_rows(job, block, chunk), block=block_name(first))
            writer.write("steps", job.run, job.attempt, _steps(job, block), block=block_name(first))
        writer.commit()


def _write_small_tables(writer: TableWriter, job: SyntheticJob) -> None:
    mesh = job.topology
    end = job.first_ns + job.steps * job.step_ns
    ranks = range(mesh.world_size)
    places = [mesh.coordinates(rank) for rank in ranks]
    groups = {
        group_id(axis, members): (axis, members)
        for axis in mesh.names
        for members in mesh.groups(axis)
        if len(members) > 1
    }
    groups |= {group_id(kind, pair): (kind, pair) for kind, pair in _edges(mesh)}
    ended = job.stuck is None
    small: dict[str, Mapping[str, Sequence[Any]]] = {
        "runs": {
            "layout": [json.dumps(dict(job.layout))],
            "world_size": [mesh.world_size],
            "configuration": [json.dumps({"microbatches": job.microbatches})],
            "start_ns": [job.first_ns],
            "end_ns": [end if ended else None],
            "exit_reason": ["finished" if ended else None],
        },
        "segments": {
            "segment": list(IDS.values()),
            "name": list(SEGMENTS),
            "kind": [kind for kind, _ in SEGMENTS.values()],
            "axis": [axis for _, axis in SEGMENTS.values()],
        },
        "groups": {
            "group": list(groups),
            "kind": [kind for kind, _ in groups.values()],
            "ranks": [list(members) for _, members in groups.values()],
        },
        "heartbeats": heartbeat_rows(job, end),
    }
    if job.slow is not None:
        small["faults"] = _fault(job, job.slow)
    for table, rows in small.items():
        writer.write(table, job.run, job.attempt, rows)
    hosts = [f"node{rank // job.ranks_per_host:04d}" for rank in ranks]
    axes = {axis: [place[axis] for place in places] for axis in mesh.names}
    rows = {"rank": list(ranks), "host": hosts, "local_rank": [r % job.ranks_per_host for r in ranks], **axes}
    writer.write("ranks", job.run, job.attempt, rows, axes=mesh.names)


def _fault(job: SyntheticJob, slow: Slow) -> Mapping[str, Sequence[Any]]:
    return {
        "fault": ["fault-0"],
        "kind": ["slow"],
        "ranks": [[slow.rank]],
        "segment": [slow.segment],
        "factor": [slow.factor],
        "first_step": [slow.first_step],
        "first_ns": [job.first_ns + slow.first_step * job.step_ns],
    }


def _edges(mesh: Topology) -> list[tuple[str, tuple[int, int]]]:
    pairs = [pair for members in mesh.groups("pp") for pair in itertools.pairwise(members)]
    return [(kind, pair) for kind in ("pp_forward", "pp_backward") for pair in pairs]


def _steps(job: SyntheticJob, ranks: np.ndarray) -> pa.Table:
    mesh = job.topology
    steps = np.arange(job.first_step, job.steps)
    step = np.tile(steps, len(ranks))
    rank = np.repeat(ranks, len(steps))
    last = np.array([mesh.coordinates(int(r)).get("pp", 0) == mesh.size("pp") - 1 for r in ranks]).repeat(len(steps))
    count = len(step)
    loss = 3.0 * np.exp(-step / 40) + 2.0
    return pa.table(
        {
            "rank": pa.array(rank.astype(np.int32)),
            "step": pa.array(step.astype(np.int64)),
            "start_ns": job.first_ns + step * job.step_ns,
            "duration_ns": np.full(count, job.step_ns, np.int64),
            "loss": pa.array(loss, mask=~last),
            "grad_norm": pa.array(1.0 + 1.0 / (1 + step), mask=rank != 0),
            "tokens": pa.array(np.full(count, 2**20, np.int64), mask=rank != 0),
            "mfu": pa.array(np.full(count, 0.41), mask=rank != 0),
        }
    )
