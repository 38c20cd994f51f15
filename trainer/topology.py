"""Process groups of the mesh: one per axis from a DeviceMesh, and one of two ranks per directed pipeline edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ..profiler.topology import Topology


class EdgeKind(StrEnum):
    """Directed edges between two ranks. Wrap edges join the last stage and the first, between interleaved chunks.

    The ring's edges join each tensor-parallel rank to the next, and the last to the first.
    """

    FORWARD = "pp_forward"
    BACKWARD = "pp_backward"
    FORWARD_WRAP = "pp_forward_wrap"
    BACKWARD_WRAP = "pp_backward_wrap"
    RING = "tp_ring"


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
    pods: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None
    "With pods: the group of replicas in this rank's pod, and that of those at its place in other pods."
    ends: dist.ProcessGroup | None = None
    "The first stage's rank and the last one's of this rank's pipeline, where they share a matrix; None on the others."
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

    def rank_of_ends(self) -> tuple[int, int]:
        """Global ranks of the first and the last stage of this rank's own pipeline."""
        line = self.topology.group("pp", self.rank)
        return line[0], line[-1]


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


def ring_edges(topology: Topology) -> list[Edge]:
    """The directed edges of all tensor-parallel rings."""
    lines = [line for line in topology.groups("tp") if len(line) > 1]
    return [Edge(EdgeKind.RING, a, b) for line in lines for a, b in zip(line, (*line[1:], line[0]), strict=True)]


def build_mesh(
    topology: Topology,
    chunks: int,
    device_type: str,
    *,
    timeout: timedelta,
    ties_ends: bool = False,
    has_ring: bool = False,
    pod: int = 0,
) -> Mesh:
    """Create all process groups; a collective call, in the same order on every rank.

    ``timeout``: of each group's operations; torch gives a group its own default, not that of the world.
    ``ties_ends``: first and last stage share a matrix, and have a group in which to add up its gradients; ``pod``:
    replicas of a pod. Groups are made without ``use_local_synchronization``: it names a group by how many its members
    have, which differs between the members of a ring of four or more, and hangs.
    """
    rank = dist.get_rank()
    sizes = tuple(size for _, size in topology.axes)
    device_mesh = init_device_mesh(device_type, sizes, mesh_dim_names=topology.names)
    own: dict[Edge, dist.ProcessGroup] = {}
    for edge in pipeline_edges(topology, chunks) + (ring_edges(topology) if has_ring else []):
        group = _own_group([[edge.source, edge.destination]], rank, timeout)
        if group is not None:
            own[edge] = group
    groups = {name: device_mesh.get_group(name) for name in topology.names}
    for group in groups.values():  # a DeviceMesh takes no timeout; where a group is the world's, that has its own
        if group is not dist.group.WORLD:
            dist.distributed_c10d._set_pg_timeout(timeout, group)
    tied = [[line[0], line[-1]] for line in topology.groups("pp") if len(line) > 1 and ties_ends]
    ends = _own_group(tied, rank, timeout)
    levels = [pods(line, pod) for line in topology.groups("dp") if pod]
    inner, outer = (_own_group([ranks for level in levels for ranks in level[side]], rank, timeout) for side in (0, 1))
    return Mesh(topology, rank, groups, own, None if inner is None or outer is None else (inner, outer), ends)


def pods(line: tuple[int, ...], size: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The inner and the outer groups of a line of ranks, of which ``size`` neighbours at a time share a pod."""
    inner = [line[start : start + size] for start in range(0, len(line), size)]
    return inner, [line[place::size] for place in range(size)]


def _own_group(groups: Iterable[Sequence[int]], rank: int, timeout: timedelta) -> dist.ProcessGroup | None:
    """Make all of the groups; the one that this rank belongs to, None where there is none."""
    own = None
    for ranks in groups:
        group = dist.new_group(sorted(ranks), timeout=timeout)
        if rank in ranks and isinstance(group, dist.ProcessGroup):
            own = group
    return own


def groups_across_hosts(topology: Topology, axis: str, hosts: Sequence[str]) -> list[tuple[int, ...]]:
    """Groups of an axis whose ranks lie on more than one host; ``hosts``: that of each rank."""
    return [group for group in topology.groups(axis) if len({hosts[rank] for rank in group}) > 1]


def pod_of_places(topology: Topology, places: Sequence[str]) -> int:
    """The most neighbouring replicas, a divisor of dp, that share a place in every pod of every line.

    ``places``: the host of each rank, or its rack.
    """
    lines, size = list(topology.groups("dp")), topology.size("dp")
    return next(
        pod
        for pod in range(size, 0, -1)
        if size % pod == 0
        and all(len({places[rank] for rank in ranks}) == 1 for line in lines for ranks in pods(line, pod)[0])
    )


def pods_that_split_places(topology: Topology, pod: int, places: Sequence[str]) -> list[tuple[int, ...]]:
    """Pods in several places, of which one is in another pod of the same replicas too: their borders cross.

    A pod that lies in a host or a rack, and one of whole ones, are as they should be.
    """
    found = []
    for line in topology.groups("dp"):
        inner = pods(line, pod)[0]
        count = Counter(place for ranks in inner for place in {places[rank] for rank in ranks})
        for ranks in inner:
            own = {places[rank] for rank in ranks}
            if len(own) > 1 and any(count[place] > 1 for place in own):
                found.append(ranks)
    return found
