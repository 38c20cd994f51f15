"""How long things take in a piece of steps: costs with noise and effects applied, by rank and step."""

from __future__ import annotations

import numpy as np

from .draws import Purpose, draw
from .effects import BoolArray, FloatArray, IntArray, Transfer, product, total
from .job import SimulatedJob
from .noise import DRAWS
from .noise_fit import COMPLETION

KIND_OF_SEGMENT = {"data": "optimizer", "optimizer": "optimizer", "forward": "forward", "backward": "backward"}
"""Noise of each segment of work. The traces have no data loading: it varies like the optimizer here."""


class Conditions:
    """Durations of one piece of steps. ``index`` [S] counts steps from 0, ``steps`` [S] are their numbers."""

    def __init__(self, job: SimulatedJob, index: IntArray) -> None:
        self.job, self.index, self.steps = job, index, index + job.first_step
        self._work: dict[str, FloatArray] = {}
        self._edges: dict[tuple[str, int, int], FloatArray] = {}
        self._uneven: dict[str, FloatArray | None] = {}
        self._collective: dict[str, FloatArray | None] = {}
        self._pauses: dict[str, FloatArray] = {}

    # -- work ---------------------------------------------------------------------------------------------------

    def work(self, segment: str) -> FloatArray:
        """Factors on a rank's own time in a segment, broadcast to [P, T, S, G], without the noise of single spans."""
        if segment not in self._work:
            self._work[segment] = self._find_work(segment)
        return self._work[segment]

    def _find_work(self, segment: str) -> FloatArray:
        job, grid = self.job, self.job.grid
        kind, number = KIND_OF_SEGMENT[segment], list(KIND_OF_SEGMENT).index(segment)
        result: FloatArray = np.ones((1, 1, 1, 1))
        chronic = job.noise.values(kind, "rank")
        if chronic is not None:
            generator = np.random.Generator(np.random.SFC64([job.seed, 0, Purpose.CHRONIC, number]))
            by_rank = chronic[generator.integers(0, DRAWS, job.world_size)]
            result = result * by_rank[grid.rank][:, :, np.newaxis]
        passing = job.noise.values(kind, "rank_step")
        if passing is not None:
            drawn = draw(job, self.index, (Purpose.PASSING, number), grid.rank.shape)
            result = result * passing[np.moveaxis(drawn, 0, 2)]
        factor = product([effect.compute_factor(job, self.steps, segment) for effect in job.effects])
        return result if factor is None else result * self._on_grid(factor)

    def uneven(self, segment: str, microbatch: int, replicas: slice) -> FloatArray | None:
        """Factors of a micro-batch's work, [1, S, G]; None for none."""
        if segment not in self._uneven:
            job = self.job
            factor = product([effect.microbatch_factor(job, self.steps, segment) for effect in job.effects])
            shape = (job.microbatches, job.grid.replicas, len(self.index))
            self._uneven[segment] = None if factor is None else np.broadcast_to(factor, shape)
        found = self._uneven[segment]
        return None if found is None else found[microbatch, replicas].T[np.newaxis]

    def pauses_ns(self, segment: str) -> FloatArray:
        """Pauses of the host, broadcast to [P, T, S, G]: those that the job has every so many steps, and effects'."""
        if segment not in self._pauses:
            self._pauses[segment] = self._find_pauses(segment)
        return self._pauses[segment]

    def _find_pauses(self, segment: str) -> FloatArray:
        job, costs = self.job, self.job.costs
        every_ns, every_steps = {
            "gc": (costs.gc_ns, costs.gc_every_steps),
            "checkpoint": (costs.checkpoint_ns, costs.checkpoint_every_steps),
        }.get(segment, (0.0, 0))
        regular = np.zeros((1, 1, len(self.index), 1))
        if every_steps > 0:
            regular[0, 0, (self.steps + 1) % every_steps == 0, 0] = every_ns
        extra = total([effect.stall_ns(job, self.steps, segment) for effect in job.effects])
        return regular if extra is None else np.rint(regular + self._on_grid(extra))

    def _on_grid(self, values: FloatArray) -> FloatArray:
        """[world, S] to [P, T, S, G]."""
        job = self.job
        whole = np.broadcast_to(values, (job.world_size, len(self.index)))
        return np.moveaxis(whole[job.grid.rank], 3, 2)

    # -- transfers ----------------------------------------------------------------------------------------------

    def p2p_ns(self, segment: str, ends: tuple[int, int], replicas: slice) -> FloatArray:
        """Transfer times of one activation from one stage to another, broadcast to [T, S, G], without noise."""
        key = (segment, *ends)
        if key not in self._edges:
            self._edges[key] = self._find_edge(segment, *ends)
        return self._edges[key][..., replicas]

    def _find_edge(self, segment: str, source: int, destination: int) -> FloatArray:
        grid, costs = self.job.grid, self.job.costs
        sources, destinations = grid.rank[source].reshape(-1), grid.rank[destination].reshape(-1)
        crosses = grid.host[sources] != grid.host[destinations]
        usual: FloatArray = np.where(crosses, costs.p2p_network_ns, costs.p2p_host_ns)[:, np.newaxis]
        factor = self._factor(Transfer(segment, sources, destinations, crosses))
        if factor is not None:
            usual = usual * np.broadcast_to(factor, (len(sources), len(self.index)))
        return np.moveaxis(usual.reshape(grid.width, grid.replicas, -1), 2, 1)

    def tp_ns(self, stage: int, replicas: slice) -> FloatArray:
        """Transfer time of one tensor-parallel collective, broadcast to [1, S, G], without noise."""
        if "tp" not in self._collective:
            grid = self.job.grid
            whole = self._member_factors("tp_all_gather", grid.tp_groups())
            self._collective["tp"] = None if whole is None else whole.max(axis=1, keepdims=True)
        factor = self._collective["tp"]
        usual = np.full((1, 1, 1), self.job.costs.tp_ns)
        return usual if factor is None else usual * factor[stage][..., replicas]

    def data_parallel_ns(self, segment: str, chunk: int) -> FloatArray:
        """Transfer times of a chunk's data-parallel collective, broadcast to [P, T, S, G]: equal within a group."""
        job, grid = self.job, self.job.grid
        gathers = segment == "dp_all_gather"
        times: FloatArray = np.full((1, 1, 1, 1), job.costs.all_gather_ns if gathers else job.costs.reduce_scatter_ns)
        noise = job.noise.values("collective", "span")
        if noise is not None:
            shape = (grid.stages, grid.width, grid.replicas // grid.dp_size)
            drawn = draw(job, self.index, (Purpose.GATHER if gathers else Purpose.REDUCE, chunk), shape)
            times = times * np.repeat(noise[np.moveaxis(drawn, 0, 2)], grid.dp_size, axis=-1)
        if segment not in self._collective:
            whole = self._member_factors(segment, grid.dp_groups())
            self._collective[segment] = None if whole is None else self.slowest(whole)
        factor = self._collective[segment]
        return np.rint(times if factor is None else times * factor)

    def norm_ns(self) -> FloatArray:
        """Transfer time of the world's all-reduce, [S]."""
        job = self.job
        times: FloatArray = np.full(len(self.index), job.costs.norm_ns)
        noise = job.noise.values("collective", "span")
        if noise is not None:
            times = times * noise[draw(job, self.index, (Purpose.NORM,), ())]
        factor = self._member_factors("world_all_reduce", np.arange(job.world_size)[np.newaxis])
        return np.rint(times if factor is None else times * factor.max(axis=(0, 1, 3)))

    def completions_ns(self, purpose: Purpose, chunk: int = 0) -> FloatArray:
        """By how much each rank sees a collective complete later than it does, broadcast to [P, T, S, G]."""
        values = self.job.noise.values(COMPLETION, "span")
        if values is None:
            return np.zeros((1, 1, 1, 1))
        drawn = draw(self.job, self.index, (purpose, chunk), self.job.grid.rank.shape)
        later: FloatArray = np.rint(1e3 * values[np.moveaxis(drawn, 0, 2)])
        return later

    def slowest(self, values: FloatArray) -> FloatArray:
        """Largest value of each data-parallel group, for all of its members: [..., G] to [..., G]."""
        groups = values.reshape(*values.shape[:-1], -1, self.job.grid.dp_size)
        return np.broadcast_to(groups.max(axis=-1, keepdims=True), groups.shape).reshape(values.shape)

    def _member_factors(self, segment: str, groups: IntArray) -> FloatArray | None:
        """Factors of the members of a collective's groups, [P, T, S, G]; None for none."""
        job = self.job
        crosses: BoolArray = np.zeros(job.world_size, np.bool_)
        crosses[groups] = job.grid.leaves_host(groups)[:, np.newaxis]
        factor = self._factor(Transfer(segment, np.arange(job.world_size), None, crosses))
        return None if factor is None else self._on_grid(factor)

    def _factor(self, transfer: Transfer) -> FloatArray | None:
        return product([effect.transfer_factor(self.job, self.steps, transfer) for effect in self.job.effects])
