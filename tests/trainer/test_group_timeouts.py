"""`parallel.timeout_s` holds in every group of the mesh, not only in the world's."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from megascope.profiler.topology import Topology
from megascope.trainer.topology import Mesh, build_mesh
from support.forkrun import run_ranks

LIMIT = timedelta(seconds=37)


def timeouts(mesh: Mesh) -> dict[str, float]:
    """Seconds by what a rank calls the group."""
    pods = dict(zip(("inner", "outer"), mesh.pods or (), strict=False))
    ends = {} if mesh.ends is None else {"ends": mesh.ends}
    edges = {f"{edge.kind} {edge.source} {edge.destination}": group for edge, group in mesh.edges.items()}
    groups = {**mesh.groups, **edges, **pods, **ends}
    return {name: _seconds(group) for name, group in groups.items() if group is not dist.group.WORLD}


def _seconds(group: dist.ProcessGroup) -> float:
    limit: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return limit.total_seconds()


def of_all_meshes() -> list[dict[str, float]]:
    pipeline = build_mesh(Topology.of(pp=2, dp=1, tp=1), 2, "cpu", timeout=LIMIT, ties_ends=True)
    replicas = build_mesh(Topology.of(pp=1, dp=2, tp=1), 1, "cpu", timeout=LIMIT, pod=1)
    ring = build_mesh(Topology.of(pp=1, dp=1, tp=2), 1, "cpu", timeout=LIMIT, has_ring=True)
    return [timeouts(mesh) for mesh in (pipeline, replicas, ring)]


@pytest.mark.timeout(60)
def test_every_group_has_the_jobs_timeout() -> None:
    for pipeline, replicas, ring in run_ranks(2, of_all_meshes):
        assert {"dp", "tp", "ends", "pp_forward 0 1", "pp_backward_wrap 0 1"} <= set(pipeline)
        assert {"pp", "tp", "inner", "outer"} <= set(replicas)
        assert {"pp", "dp", "tp_ring 0 1", "tp_ring 1 0"} <= set(ring)
        assert {*pipeline.values(), *replicas.values(), *ring.values()} == {LIMIT.total_seconds()}
