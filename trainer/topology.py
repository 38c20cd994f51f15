"""Process groups of the mesh: one per axis from a DeviceMesh, and one of two ranks per directed pipeline edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ..profiler.topology import Topology


class EdgeKind(StrEnum):
    """Directed pipeline edges. Wrap edges join the last stage and the first, between interleaved chunks."""

    FORWARD = "pp_forward"
    BACKWARD = "pp_backward"
    FORWARD_WRAP = "pp_forward_wrap"
    BACKWARD_WRAP = "pp_backward_wrap"


@dataclass(frozen=True, slots=True)
class Edge:
    """What travels one way between two global ranks."""

    kind: EdgeKind
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """A rank's place in the mesh, with the process groups that it belongs to."""

    topology: Topology
    rank: int
    groups: Mapping[str, dist.ProcessGroup]
    edges: Mapping[Edge, dist.ProcessGroup]
    coordinates: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coordinates", self.topology.coordinates(self.rank))

    def index(self, axis: str) -> int:
        """This rank's index on an axis; 0 if the mesh does not have it."""
        return self.coordinates.get(axis, 0)

    def size(self, axis: str) -> int:
        """Size of an axis; 1 if the mesh does not have it."""
        return self.topology.size(axis)

    def rank_of_stage(self, stage: int) -> int:
        """Global rank of a pipeline stage on this rank's own pipeline."""
        return self.topology.group("pp", self.rank)[stage]


def pipeline_edges(topology: Topology, chunks: int) -> list[Edge]:
    """All directed edges of all pipelines, in the one order in which every rank creates their groups.

    Each has a group of its own: operations of one group run one after the other, and at pp=2 the wrap edge joins
    the same two ranks as the edge before it.
    """
    edges: list[Edge] = []
    for line in topology.groups("pp"):
        for low, high in pairwise(line):
            edges += [Edge(EdgeKind.FORWARD, low, high), Edge(EdgeKind.BACKWARD, high, low)]
        if chunks > 1 and len(line) > 1:
            edges += [Edge(EdgeKind.FORWARD_WRAP, line[-1], line[0]), Edge(EdgeKind.BACKWARD_WRAP, line[0], line[-1])]
    return edges


def build_mesh(topology: Topology, chunks: int, device_type: str) -> Mesh:
    """Create all process groups; a collective call, in the same order on every rank.

    Groups are made without ``use_local_synchronization``: it names a group by how many its members have, which
    differs between the members of a ring of four or more, and hangs.
    """
    rank = dist.get_rank()
    sizes = tuple(size for _, size in topology.axes)
    device_mesh = init_device_mesh(device_type, sizes, mesh_dim_names=topology.names)
    own: dict[Edge, dist.ProcessGroup] = {}
    for edge in pipeline_edges(topology, chunks):
        group = dist.new_group(sorted((edge.source, edge.destination)))
        if rank in (edge.source, edge.destination) and isinstance(group, dist.ProcessGroup):
            own[edge] = group
    groups = {name: device_mesh.get_group(name) for name in topology.names}
    return Mesh(topology, rank, groups, own)


def groups_across_hosts(topology: Topology, axis: str, ranks_per_host: int) -> list[tuple[int, ...]]:
    """Groups of an axis whose ranks lie on more than one host, where hosts hold consecutive ranks."""
    return [group for group in topology.groups(axis) if len({rank // ranks_per_host for rank in group}) > 1]
