"""Thousands of ranks in hangs with many roots or large circles: minutes would be too late to help."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from megascope.profiler.topology import Topology
from megascope.viz3d.looks import compare_looks
from megascope.viz3d.verdict import CulpritKind, State
from support.hang_scenes import Scene, cascade

BOUND_S = 12.0
"""Of a processor. Work that grows with the square of the ranks takes many times that."""


def two_orders() -> Scene:
    """Every other rank is in a collective of the whole job that the rest has not come to, and the other way round."""
    mesh = Topology.of(dp=512, tp=8)
    scene = Scene(mesh)
    other = scene.group("other", range(mesh.world_size))
    for rank in range(mesh.world_size):
        if rank % 2:
            scene.collective(rank, "world", 5)
        else:
            scene.in_group(rank, other, 5, "other_all_reduce")
    return scene


def many_without_data() -> Scene:
    mesh = Topology.of(pp=8, dp=64, tp=8)
    scene = cascade(mesh, 5)
    for rank in range(0, mesh.world_size, 8):
        scene.lose(rank)
    return scene


def many_that_ended() -> Scene:
    mesh = Topology.of(pp=8, dp=64, tp=8)
    scene = cascade(mesh, 5)
    for rank in range(0, mesh.world_size, 2):
        scene.process(rank, "exited")
    return scene


@pytest.mark.parametrize(
    ("scene_of", "kind"),
    [
        (two_orders, CulpritKind.ORDER_INVERSION),
        (many_without_data, CulpritKind.HOST_STUCK),
        (many_that_ended, CulpritKind.MISSING_CALL),
    ],
)
@pytest.mark.timeout(120)
def test_a_hang_of_4096_ranks_is_judged_in_seconds(scene_of: Callable[[], Scene], kind: CulpritKind) -> None:
    looks = scene_of().looks()
    began = time.process_time()
    diagnosis = compare_looks(*looks)
    took = time.process_time() - began
    assert diagnosis.state == State.HANG
    assert any(root.kind == kind for root in diagnosis.roots)
    assert took < BOUND_S, took
