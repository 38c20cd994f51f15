"""What is simulated: a job's layout, schedule, costs, hosts, clocks, noise and effects. All of it in one frozen object.

The engine (`engine.py`) asks ``job.effects`` for factors and pauses; see `effects.Effect` for what can be changed and
in which shape. `Grid` tells where a rank stands: stage, tensor-parallel index, replica and host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...profiler.errors import UsageError
from ...profiler.opening import attempt_folder
from ...profiler.topology import Topology
from ..schedule import Schedule, training_schedule
from .costs import Costs
from .effects import Effect
from .grid import Grid
from .noise import NoiseSource, Silence

START_NS = 1_790_000_000 * 10**9
"""First moment of a simulated job, UTC: a fixed one, so that equal seeds give equal stores."""

MAX_RANKS = 1_000_000

MOST_SKEW_MS, MOST_DRIFT_PPM = 1e9, 1e5
"""How wrong clocks may be: by eleven days, and by a tenth of the time that passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job to simulate. ``layout`` maps axis to size, the outermost first; hosts hold consecutive ranks.

    Axes besides tp, pp and dp multiply the replicas. ``skew_ms``: clocks of hosts are off by up to so much, either
    way, and drift by up to ``drift_ppm``; the first host's clock is right. Equal jobs give equal results.
    Raises UsageError for a job that cannot be.
    """

    layout: Mapping[str, int]
    steps: int = 100
    microbatches: int = 8
    chunks: int = 1
    costs: Costs = field(default_factory=Costs)
    gpus_per_host: int = 8
    recv_ahead: int = 2
    seed: int = 0
    skew_ms: float = 0.0
    drift_ppm: float = 0.0
    noise: NoiseSource = field(default_factory=Silence)
    effects: tuple[Effect, ...] = ()
    run: str = "simulated"
    attempt: int = 0
    first_step: int = 0
    start_ns: int = START_NS
    topology: Topology = field(init=False, repr=False)
    grid: Grid = field(init=False, repr=False, compare=False)
    schedule: Schedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        topology = Topology.from_mapping(self.layout)
        _check(self, topology)
        stages, shards = topology.size("pp"), topology.size("dp") > 1
        object.__setattr__(self, "topology", topology)
        object.__setattr__(self, "grid", Grid.of(topology, self.gpus_per_host))
        object.__setattr__(self, "schedule", training_schedule(stages, self.chunks, self.microbatches, shards=shards))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    def host_name(self, host: int) -> str:
        """Name of a host by its number."""
        return f"node{host:04d}"

    def ranks_of_host(self, host: int) -> range:
        """The ranks that run on a host."""
        first = host * self.gpus_per_host
        return range(first, min(first + self.gpus_per_host, self.world_size))

    @property
    def last_step(self) -> int:
        """Number of the last step that is simulated."""
        return self.first_step + self.steps - 1


def _check(job: SimulatedJob, topology: Topology) -> None:
    attempt_folder(Path(), job.run, job.attempt)  # refuses what cannot be a folder's name
    stages = topology.size("pp")
    at_least_one = {
        "steps": job.steps,
        "microbatches": job.microbatches,
        "chunks": job.chunks,
        "gpus_per_host": job.gpus_per_host,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise UsageError(f"The simulated job has {name} {value}, but it needs at least 1: change it.")
    if topology.world_size > MAX_RANKS:
        raise UsageError(
            f"The layout has {topology.world_size} ranks, but at most {MAX_RANKS} can be simulated: reduce an axis."
        )
    if job.chunks > 1 and stages == 1:
        raise UsageError(f"There are {job.chunks} chunks, but one pipeline stage: set chunks to 1, or pp above 1.")
    if job.chunks > 1 and job.microbatches % stages:
        raise UsageError(
            f"Interleaved 1F1B needs micro-batches in groups of pp: {job.microbatches} micro-batches are no multiple "
            f"of {stages}: change them."
        )
    for name, table in (("forward", job.costs.forward_ns), ("backward", job.costs.backward_ns)):
        if len(table) not in (1, stages * job.chunks):
            raise UsageError(
                f"There are {len(table)} {name} costs for pp {stages} x chunks {job.chunks}: give one, or one each."
            )
    for name, magnitude, most in (("skew_ms", job.skew_ms, MOST_SKEW_MS), ("drift_ppm", job.drift_ppm, MOST_DRIFT_PPM)):
        if not 0 <= magnitude <= most:
            raise UsageError(f"The clocks have {name} {magnitude}: give a magnitude from 0 to {most:,.0f}.")
