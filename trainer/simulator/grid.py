"""Ranks as an array by stage, tensor-parallel index and replica: the shape in which the engine computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...profiler.topology import Topology
from .effects import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Grid:
    """Where every rank stands.

    ``rank`` [P, T, G]: global rank by stage (axis pp), tensor-parallel index (axis tp) and replica. Replicas are all
    combinations of the other axes' indices, with the axis dp running fastest: replica = other * dp_size + dp index.
    ``stage``, ``tp``, ``replica`` [world]: the same, the other way round. ``host`` [world]: number of the rank's host.
    """

    rank: IntArray
    stage: IntArray
    tp: IntArray
    replica: IntArray
    host: IntArray
    dp_size: int

    @classmethod
    def of(cls, topology: Topology, gpus_per_host: int) -> Grid:
        """The grid of a mesh whose hosts hold consecutive ranks."""
        names = list(topology.names)
        ranks = np.arange(topology.world_size, dtype=np.int64).reshape([size for _, size in topology.axes])
        for axis in ("pp", "tp", "dp"):
            if axis not in names:
                ranks, names = ranks[..., np.newaxis], [*names, axis]
        others = [name for name in names if name not in ("pp", "tp", "dp")]
        order = [names.index(name) for name in ("pp", "tp", *others, "dp")]
        ranks = np.ascontiguousarray(ranks.transpose(order))
        stages, width, data = ranks.shape[0], ranks.shape[1], ranks.shape[-1]
        rank = ranks.reshape(stages, width, -1)
        place = np.empty((3, topology.world_size), np.int64)
        place[:, rank.reshape(-1)] = np.indices(rank.shape).reshape(3, -1)
        host = np.arange(topology.world_size, dtype=np.int64) // gpus_per_host
        return cls(rank, place[0], place[1], place[2], host, data)

    @property
    def stages(self) -> int:
        """Pipeline stages P."""
        return int(self.rank.shape[0])

    @property
    def width(self) -> int:
        """Ranks of a tensor-parallel group T."""
        return int(self.rank.shape[1])

    @property
    def replicas(self) -> int:
        """Pipelines G that work on micro-batches of their own."""
        return int(self.rank.shape[2])

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return int(self.host[-1]) + 1

    def tp_groups(self) -> IntArray:
        """Ranks of every tensor-parallel group, [P * G, T]."""
        return self.rank.transpose(0, 2, 1).reshape(-1, self.width)

    def dp_groups(self) -> IntArray:
        """Ranks of every data-parallel group, [P * T * others, D]."""
        return self.rank.reshape(-1, self.dp_size)

    def pipelines(self) -> IntArray:
        """Ranks of every pipeline, [T * G, P]."""
        return self.rank.reshape(self.stages, -1).T

    def leaves_host(self, groups: IntArray) -> BoolArray:
        """Which groups [n, size] have ranks on several hosts, [n]."""
        hosts = self.host[groups]
        leaves: BoolArray = (hosts != hosts[:, :1]).any(axis=1)
        return leaves
