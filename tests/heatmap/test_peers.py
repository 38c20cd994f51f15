"""Who is compared with whom."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from megascope.heatmap.peers import Placement, others_median, peer_counts, peers_median, refine
from megascope.profiler.topology import Topology
from support.noisy_job import placement

VALUES = arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 4)),
    elements=st.one_of(st.floats(0.5, 100), st.just(np.nan)),
)


@given(VALUES)
def test_others_median_is_the_median_of_all_other_rows(values: np.ndarray) -> None:
    found = others_median(values)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            others = np.delete(values[:, column], row)
            others = others[np.isfinite(others)]
            expected = np.median(others) if len(others) else np.nan
            np.testing.assert_allclose(found[row, column], expected)


@given(VALUES, st.data())
def test_excluded_rows_never_stand_as_peers(values: np.ndarray, data: st.DataObject) -> None:
    rows = values.shape[0]
    excluded = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    roles = np.zeros(rows, np.int64)
    louder = np.where(excluded[:, None], values * 1000, values)
    np.testing.assert_allclose(peers_median(values, roles, excluded), peers_median(louder, roles, excluded))


def test_peers_are_of_the_same_stage_on_any_mesh() -> None:
    mesh = Topology.of(ep=2, pp=3, cp=2)
    where = placement(mesh)
    roles = where.roles(where.ranks)
    for rank in range(mesh.world_size):
        assert roles[rank] == mesh.coordinates(rank)["pp"]
    assert set(placement(Topology.of(cp=4)).roles(np.arange(4)).tolist()) == {0}


def test_ranks_need_not_be_contiguous_and_the_last_row_of_a_rank_counts() -> None:
    table = pa.table(
        {"rank": [70, 7, 7], "host": ["b", "old", "a"], "pp": pa.array([1, 0, 0]), "dp": pa.array([0, None, 0])}
    )
    where = Placement.from_table(table, ["pp", "dp"])
    assert where.ranks.tolist() == [7, 70]
    assert where.host_of(7) == "a"
    assert where.host_of(8) is None
    assert where.coordinate("pp", np.array([70, 8, 7])).tolist() == [1, -1, 0]
    assert where.roles(np.array([8, 70])).tolist() == [-1, 1]


def test_a_rank_of_an_unknown_stage_has_no_peers() -> None:
    roles = np.array([-1, 0, 0, -1])
    values = np.arange(8.0).reshape(4, 2)
    assert np.isnan(peers_median(values, roles)[[0, 3]]).all()
    assert peer_counts(roles, np.ones(4, bool)).tolist() == [0, 1, 1, 0]


def test_refine_splits_groups_and_leaves_out_ranks_without_a_role() -> None:
    split = refine(np.array([0, 0, 1, 1, -1]), np.array([0, 1, 0, 1, 0]))
    assert len(set(split[:4].tolist())) == 4
    assert split[4] == -1


@pytest.mark.parametrize("rows", [1, 2])
def test_small_groups(rows: int) -> None:
    found = others_median(np.array([[1.0], [3.0]])[:rows])
    assert np.isnan(found).all() if rows == 1 else found.tolist() == [[3.0], [1.0]]
