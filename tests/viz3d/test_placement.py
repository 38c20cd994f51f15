"""Ranks in space."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.topology import Topology
from megascope.viz3d.placement import axis_of_dimension, place_ranks

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(SIZES)
def test_no_two_ranks_share_a_point(sizes: list[int]) -> None:
    mesh = Topology(tuple((f"axis{number}", size) for number, size in enumerate(sizes)))
    points = place_ranks(mesh.names, {rank: dict(mesh.coordinates(rank)) for rank in range(mesh.world_size)})
    assert len(points) == len(set(points.values())) == mesh.world_size


def test_three_axes_are_the_three_dimensions() -> None:
    mesh = Topology.of(pp=2, dp=3, tp=4)
    points = place_ranks(mesh.names, {rank: dict(mesh.coordinates(rank)) for rank in range(24)})
    for rank, point in points.items():
        place = mesh.coordinates(rank)
        assert point == (place["tp"], place["dp"], place["pp"])
    assert axis_of_dimension(mesh.names, dict(mesh.axes)) == ("tp", "dp", "pp")


def test_a_fourth_axis_is_folded_with_a_gap() -> None:
    mesh = Topology.of(ep=2, pp=2, dp=2, tp=2)
    points = place_ranks(mesh.names, {rank: dict(mesh.coordinates(rank)) for rank in range(16)})
    assert points[mesh.rank({"ep": 1})] == (3.0, 0.0, 0.0)
    assert axis_of_dimension(mesh.names, dict(mesh.axes)) == ("ep × tp", "dp", "pp")


def test_axes_of_one_take_no_room_and_unplaced_ranks_stand_apart() -> None:
    points = place_ranks(["pp", "dp"], {0: {"pp": 0, "dp": 0}, 1: {"pp": 0, "dp": 1}, 2: {}, 3: {"pp": 0, "dp": None}})
    assert points[1] == (1.0, 0.0, 0.0)
    assert points[2][1] == points[3][1] == -2.0
    assert len(set(points.values())) == 4
    assert place_ranks([], {0: {}}) == {0: (0.0, 0.0, 0.0)}
    assert len(set(place_ranks([], {0: {}, 1: {}}).values())) == 2
