"""Observations of an imagined job: real kinds of noise, chosen stragglers, communication that is timed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from megascope.heatmap.cells import SegmentCells
from megascope.heatmap.clocks import RankClocks
from megascope.heatmap.observations import Observations
from megascope.heatmap.peers import FloatArray, Placement
from megascope.profiler.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Lognormal per span, heavy tails, an autocorrelated part per rank and step, a fixed bias per rank."""

    span_sigma: float = 0.3
    tail_share: float = 0.02
    drift_sigma: float = 0.1
    drift_memory: float = 0.6
    bias: float = 0.05


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow-down of one rank at one segment in steps first to last, both included."""

    rank: int
    segment: str
    factor: float
    first: int = 0
    last: int = 10**9
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job whose ranks do the same work in every stage; times of spans in milliseconds."""

    mesh: Topology
    steps: int = 120
    chunks: int = 2
    microbatches: int = 8
    segments: Mapping[str, float] = field(default_factory=lambda: {"forward": 5.0, "backward": 10.0, "optimizer": 8.0})
    noise: Noise = field(default_factory=Noise)
    slow: Sequence[Slow] = ()
    ranks_per_host: int = 0


def placement(mesh: Topology, ranks_per_host: int = 0) -> Placement:
    """Ranks of a mesh in order, ``ranks_per_host`` on each host; 0 puts all on one."""
    ranks = np.arange(mesh.world_size)
    places = [mesh.coordinates(int(rank)) for rank in ranks]
    hosts = tuple(f"host{rank // ranks_per_host if ranks_per_host else 0}" for rank in ranks)
    return Placement(ranks, hosts, {axis: np.array([place[axis] for place in places]) for axis in mesh.names})


def spans(job: Job, rng: np.random.Generator, segment: str, mean_ms: float, spans_per_step: int) -> FloatArray:
    """Mean time of a span, [R, S], of so many spans a step."""
    noise, shape = job.noise, (job.mesh.world_size, job.steps)
    values = rng.lognormal(-0.5 * noise.span_sigma**2, noise.span_sigma, (*shape, spans_per_step))
    tails = rng.random(values.shape) < noise.tail_share
    values[tails] *= rng.uniform(2, 6, int(tails.sum()))
    drift = np.zeros(shape)
    kick = noise.drift_sigma * np.sqrt(1 - noise.drift_memory**2)
    drift[:, 0] = noise.drift_sigma * rng.standard_normal(shape[0])
    for step in range(1, job.steps):
        drift[:, step] = noise.drift_memory * drift[:, step - 1] + kick * rng.standard_normal(shape[0])
    bias = 1 + noise.bias * rng.random(shape[0])
    result: FloatArray = mean_ms * values.mean(axis=2) * np.exp(drift) * bias[:, None]
    for one in job.slow:
        if one.segment == segment:
            result[one.rank, one.first : one.last + 1 : one.every] *= one.factor
    return result


def observations(job: Job, seed: int) -> Observations:
    """Observations with timed communication: waiting makes all ranks' steps equally long."""
    rng = np.random.default_rng(seed)
    ranks, steps = np.arange(job.mesh.world_size), np.arange(job.steps)
    cells, busy = [], np.zeros((len(ranks), len(steps)))
    for name, mean_ms in job.segments.items():
        chunks = 1 if name == "optimizer" else job.chunks
        count = 1 if name == "optimizer" else job.microbatches
        mean = np.stack([spans(job, rng, name, mean_ms, count) for _ in range(chunks)])
        start = busy * 1e6
        busy = busy + (mean * count).sum(axis=0)
        kind = "optimizer" if name == "optimizer" else "data" if name == "data" else "compute"
        counts = np.full(mean.shape, float(count))
        cells.append(SegmentCells(name, kind, ranks, steps, mean * count, counts, start, busy * 1e6, 0))
    step_ms = busy.max(axis=0)
    where, clocks = placement(job.mesh, job.ranks_per_host), RankClocks.of_one_host(len(ranks))
    return Observations(tuple(cells), where, ranks, steps, step_ms, step_ms[None, :] - busy, clocks, warm_up=(0, 1))
