"""Hosts by GPUs: every rank has one cell, on its host and at its place, at any size of job."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.dashboards.heat.grid import FOLD, WIDEST_HOST, lay_out
from megascope.dashboards.heat.rows import Section


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 40)), min_size=1, max_size=80))
def test_every_rank_has_one_cell_and_hosts_do_not_mix(where: list[tuple[int, int]]) -> None:
    hosts, slots = [f"node{host}" for host, _ in where], [slot for _, slot in where]
    grid = lay_out(hosts, slots, ())
    assert sorted(grid.at[grid.at >= 0].tolist()) == list(range(len(where)))
    assert grid.gpus <= WIDEST_HOST
    for first in range(0, grid.at.shape[1], grid.gpus + 1):
        for line in grid.at[:, first : first + grid.gpus]:
            assert len({hosts[position] for position in line if position >= 0}) <= 1
        gap = grid.at[:, first + grid.gpus : first + grid.gpus + 1]
        assert (gap == -1).all(), "a gap between two hosts"


def test_a_fleet_fills_the_page_with_about_square_cells() -> None:
    hosts = [f"node{rank // 8:04}" for rank in range(12288)]
    grid = lay_out(hosts, [rank % 8 for rank in range(12288)], ())
    assert grid.gpus == 8
    assert grid.at.shape == (96, 16 * 9 - 1)
    assert grid.at[5, 9 * 3 + 2] == (5 * 16 + 3) * 8 + 2
    assert grid.hosts[5] == "node0080"
    wide, high = 672 / grid.at.shape[1], 440 / grid.at.shape[0]
    assert 0.7 < wide / high < 1.4


def test_a_place_that_is_known_is_kept_and_others_fill_the_gaps() -> None:
    grid = lay_out(["a"] * 4, [2, -1, 0, -1], ())
    assert grid.at.tolist() == [[2, 1, 0, 3]]
    grid = lay_out(["a", "a"], [1, 1], ())
    assert sorted(grid.at[grid.at >= 0].tolist()) == [0, 1], "two ranks that claim one place are both shown"


def test_sections_begin_rows_of_their_own() -> None:
    hosts = [f"node{rank // 8}" for rank in range(64)]
    sections = (Section("pp 0", 0, 23), Section("pp 1", 24, 63))
    grid = lay_out(hosts, [rank % 8 for rank in range(64)], sections)
    assert [section.label for section in grid.sections] == ["pp 0", "pp 1"]
    for section, shown in zip(sections, grid.sections, strict=True):
        inside = grid.at[shown.first : shown.last + 1]
        assert sorted(inside[inside >= 0].tolist()) == list(range(section.first, section.last + 1))


def test_a_host_of_many_ranks_is_folded() -> None:
    grid = lay_out(["vm"] * 64, list(range(64)), ())
    assert grid.gpus == FOLD
    assert sorted(grid.at[grid.at >= 0].tolist()) == list(range(64))
    assert np.all(grid.at[0, :FOLD] == np.arange(FOLD))
