"""Meshes of any axes: ranks and coordinates are inverse, groups partition the ranks, identities ignore order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.profiler.topology import Topology, group_id, segment_id

meshes = st.dictionaries(
    st.sampled_from(["tp", "pp", "dp", "cp", "ep", "pod"]), st.integers(1, 4), min_size=1, max_size=5
).map(Topology.from_mapping)


@given(meshes)
def test_rank_and_coordinates_are_inverse(mesh: Topology) -> None:
    places = [tuple(mesh.coordinates(rank).values()) for rank in range(mesh.world_size)]
    assert places == sorted(set(places))
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.world_size)] == list(range(mesh.world_size))


@given(meshes)
def test_groups_of_an_axis_partition_the_ranks(mesh: Topology) -> None:
    for axis in mesh.names:
        groups = list(mesh.groups(axis))
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
        assert all(len(group) == mesh.size(axis) for group in groups)
        assert all(mesh.group(axis, rank) == group for group in groups for rank in group)


@given(st.permutations(list(range(6))))
def test_the_identity_of_a_group_is_its_kind_and_members(ranks: list[int]) -> None:
    assert group_id("tp", ranks) == group_id("tp", range(6))
    assert group_id("tp", ranks) != group_id("dp", ranks)
    assert 0 <= group_id("tp", ranks) < 2**63


def test_identities_are_the_same_on_every_machine() -> None:
    assert group_id("tp", [0, 1]) == 2082985364467604205
    assert segment_id("forward", "compute", None) == 1487928678458527303


@pytest.mark.parametrize(
    ("axes", "said"),
    [({"tp": 0}, "Sizes start at 1"), ({"rank": 2}, "cannot be an axis name"), ({"a b": 2}, "cannot be an axis name")],
)
def test_a_wrong_mesh_is_refused_with_a_sentence(axes: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Topology.from_mapping(axes)
    with pytest.raises(UsageError, match="outside a mesh of 4 ranks"):
        Topology.of(tp=2, dp=2).coordinates(4)
