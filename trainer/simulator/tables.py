"""The small tables of a simulated job, its steps and its heartbeats, as its agents would have written them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...collectors.tables.schemas import RANKS_PER_BLOCK
from ..schedule import as_rows
from .clocks import HostClocks
from .effects import FloatArray, IntArray, product
from .groups import Groups
from .job import SimulatedJob
from .spans import SEGMENTS

NS_PER_S = 10**9

Rows: TypeAlias = pa.Table | Mapping[str, Sequence[Any]]


def run_rows(job: SimulatedJob, faults: Sequence[str], end_ns: int, exit_reason: str | None) -> Rows:
    """The row of ``runs``; the configuration holds all that the simulation started from, and the truth about clocks."""
    clocks = HostClocks.of(job)
    costs = {name: getattr(job.costs, name) for name in type(job.costs).__slots__}
    simulation = {
        "seed": job.seed, "steps": job.steps, "microbatches": job.microbatches, "chunks": job.chunks,
        "gpus_per_host": job.gpus_per_host, "noise": job.noise.name, "faults": list(faults), "costs": costs,
        "clocks": {} if clocks.are_right else clocks.truth(job),
    }  # fmt: skip
    return {
        "layout": [json.dumps(dict(job.layout))],
        "world_size": [job.world_size],
        "configuration": [json.dumps({"microbatches": job.microbatches, "simulation": simulation})],
        "versions": [json.dumps({"numpy": np.__version__})],
        "start_ns": [job.start_ns],
        "end_ns": [end_ns if exit_reason is not None else None],
        "exit_reason": [exit_reason],
    }


def rank_rows(job: SimulatedJob, absent: Sequence[int] = ()) -> Rows:
    """Rows of ``ranks``, without those of ranks that never came."""
    world = np.arange(job.world_size)
    names = pa.array([job.host_name(host) for host in range(job.grid.hosts)])
    host = pa.DictionaryArray.from_arrays(pa.array(job.grid.host.astype(np.int32)), names)
    sizes = [size for _, size in job.topology.axes]
    places = np.unravel_index(world, sizes)
    rows = pa.table(
        {
            "rank": pa.array(world.astype(np.int32)),
            "host": host,
            "local_rank": pa.array((world % job.gpus_per_host).astype(np.int32)),
            **{axis: pa.array(place.astype(np.int32)) for axis, place in zip(job.topology.names, places, strict=True)},
        }
    )
    return rows.filter(pa.array(~np.isin(world, absent))) if absent else rows


def segment_rows(leaves_out: Collection[str] = ()) -> Rows:
    """Rows of ``segments``, but of those that nobody recorded."""
    found = {name: info for name, info in SEGMENTS.items() if name not in leaves_out}
    return {
        "segment": [info.identity(name) for name, info in found.items()],
        "name": list(found),
        "kind": [str(info.kind) for info in found.values()],
        "axis": [info.axis for info in found.values()],
    }


def schedule_rows(job: SimulatedJob) -> Rows:
    """Rows of ``schedule``."""
    rows = as_rows(job.schedule)
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["depends_on"] = [
        [{"stage": stage, "position": position} for stage, position in places] for places in columns["depends_on"]
    ]
    return columns


def offset_rows(job: SimulatedJob, moment_ns: int) -> Rows:
    """Rows of ``clock_offsets`` with the truth: only for who wants to look at aligned times without aligning them."""
    clocks, hosts = HostClocks.of(job), np.arange(job.grid.hosts)
    shown = clocks.recorded_ns(np.full(len(hosts), moment_ns), hosts)
    return {
        "host": [job.host_name(host) for host in hosts.tolist()],
        "moment_ns": shown.tolist(),
        "offset_ns": (moment_ns - shown).tolist(),
        "drift_ppb": (-clocks.drift_ppb).tolist(),
        "uncertainty_ns": [1] * len(hosts),
    }


def step_rows(
    job: SimulatedJob, index: IntArray, begin: FloatArray, end: FloatArray, moments_ns: IntArray
) -> Iterator[tuple[int, Rows]]:
    """Rows of ``steps`` by block of ranks, with the first rank of the block.

    ``begin`` and ``end`` [P, T, S, G] as a sink gets them; ``moments_ns`` [steps + 1]: true moments of synchronisation.
    """
    grid, clocks = job.grid, HostClocks.of(job)
    shares = product([effect.tokens_factor(job, index + job.first_step) for effect in job.effects])
    places = (grid.stage, grid.tp, slice(None), grid.replica)
    starts = moments_ns[index] + begin[places].astype(np.int64)
    ends = moments_ns[index + 1] + end[places].astype(np.int64)
    lengths_s = np.diff(moments_ns)[index] / NS_PER_S
    mfu = None
    if job.costs.flops_per_step is not None and job.costs.peak_flops is not None:
        mfu = job.costs.flops_per_step / (lengths_s * job.costs.peak_flops * job.world_size)
    for first in range(0, job.world_size, RANKS_PER_BLOCK):
        ranks = np.arange(first, min(first + RANKS_PER_BLOCK, job.world_size))
        host = grid.host[ranks][:, np.newaxis]
        start = clocks.recorded_ns(starts[ranks], host)
        duration = clocks.recorded_ns(ends[ranks], host) - start
        rows: dict[str, Any] = {
            "rank": np.tile(ranks, len(index)),
            "step": np.repeat(index + job.first_step, len(ranks)),
            "start_ns": start.T.reshape(-1),
            "duration_ns": duration.T.reshape(-1),
        }
        if job.costs.tokens_per_step is not None:
            rows["tokens"] = np.full(duration.size, job.costs.tokens_per_step)
            if shares is not None:
                own = job.costs.tokens_per_step / grid.replicas * shares[grid.replica[ranks]]
                rows["rank_tokens"] = np.round(own).astype(np.int64).T.reshape(-1)
        if mfu is not None:
            rows["mfu"] = np.repeat(mfu, len(ranks))
        yield first, rows


def heartbeat_moments(moments_ns: IntArray, every_s: float | None) -> IntArray:
    """True moments of heartbeats: every so many seconds; by default ten in all, at least a second apart."""
    first, last = int(moments_ns[0]), int(moments_ns[-1])
    every_ns = max(NS_PER_S, (last - first) // 10) if every_s is None else max(1, round(every_s * NS_PER_S))
    return np.arange(first, last + 1, every_ns)


def heartbeat_rows(
    job: SimulatedJob, groups: Groups, moment_ns: int, moments_ns: IntArray
) -> Iterator[tuple[int, Rows]]:
    """Rows of ``heartbeats`` of all ranks at a true moment, by block; those that effects lose are left out.

    Between steps: nothing is in flight, and every group has completed what it began.
    """
    grid, clocks = job.grid, HostClocks.of(job)
    index = int(np.clip(np.searchsorted(moments_ns, moment_ns, side="right") - 1, 0, job.steps - 1))
    steps = np.array([index + job.first_step])
    lost = np.zeros(job.world_size, np.bool_)
    for effect in job.effects:
        losing = effect.loses_heartbeat(job, steps)
        if losing is not None:
            lost |= np.broadcast_to(losing, (job.world_size, 1))[:, 0]
    kinds = {"tp": grid.width, "dp": grid.dp_size, "world": job.world_size}
    done = {"tp": _collectives(job), "dp": 2 * job.chunks, "world": 1}
    used = [kind for kind, size in kinds.items() if size > 1 and done[kind] > 0]
    ids = {kind: np.stack([groups.identities(kind, s) for s in range(grid.stages)]) for kind in used}
    for first in range(0, job.world_size, RANKS_PER_BLOCK):
        ranks = np.arange(first, min(first + RANKS_PER_BLOCK, job.world_size))
        ranks = ranks[~lost[ranks]]
        if not len(ranks):
            continue
        places = (grid.stage[ranks], grid.tp[ranks], grid.replica[ranks])
        group = np.stack([ids[kind][places] for kind in used], axis=1) if used else np.zeros((len(ranks), 0), np.int64)
        count = np.tile(np.array([done[kind] * index for kind in used], np.int64), len(ranks))
        progress = pa.StructArray.from_arrays(
            [pa.array(group.reshape(-1)), pa.array(count), pa.array(count)], ["group", "issued", "completed"]
        )
        offsets = pa.array(np.arange(len(ranks) + 1, dtype=np.int32) * len(used))
        yield (
            first,
            pa.table(
                {
                    "rank": pa.array(ranks.astype(np.int32)),
                    "moment_ns": clocks.recorded_ns(np.full(len(ranks), moment_ns), grid.host[ranks]),
                    "step": pa.array(np.full(len(ranks), steps[0])),
                    "progress": pa.ListArray.from_arrays(offsets, progress),
                    "process_state": pa.repeat(pa.scalar("running"), len(ranks)),
                    "cpu_ns": pa.array(np.full(len(ranks), moment_ns - job.start_ns)),
                }
            ),
        )


def _collectives(job: SimulatedJob) -> int:
    """Tensor-parallel collectives of a rank in a step."""
    return 4 * job.costs.tp_pairs * job.microbatches * job.chunks


def spans_per_step(job: SimulatedJob, stage: int) -> int:
    """Spans of a rank of a stage in a step, pauses left out."""
    grid = job.grid
    actions = sum(action.kind != "optimizer_step" for action in job.schedule[stage])
    gathers = _collectives(job) if grid.width > 1 else 0
    loads = stage in (0, grid.stages - 1)
    return actions + gathers + 1 + int(loads) + int(job.world_size > 1)
