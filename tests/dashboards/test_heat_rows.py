"""Rows by rank or the worst first, in sections; and one number a rank over all steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.dashboards.heat.rows import Section, arrange, over_steps, per_rank, planes_of
from megascope.heatmap.matrix import Matrix
from megascope.heatmap.peers import Placement
from megascope.profiler.errors import UsageError

NAN = float("nan")
PLACES = Placement(
    np.arange(6), ("node9", "node9", "node10", "node10", "node2", "node2"), {"pp": np.array([0, 1, 0, 1, 0, -1])}
)


def matrix(ratio: list[list[float]]) -> Matrix:
    plane = np.array(ratio, float)
    return Matrix("forward", "self", np.arange(len(plane)), np.arange(plane.shape[1]), plane * 2, plane, plane, plane)


SIX = matrix([[1.0, 1.0], [1.2, 1.0], [NAN, NAN], [1.0, 2.0], [0.9, NAN], [1.3, 1.3]])


def rows(order: str = "rank", group: str = "", over: str = "mean", ranks: tuple[int, ...] = ()) -> list[int]:
    scores = over_steps(SIX.ratio, over)
    found = arrange(SIX, PLACES, ranks=ranks, order=order, group=group, scores=scores)
    return [int(row) for row in found.rows]


def test_the_worst_come_first_and_who_has_no_data_last() -> None:
    assert rows() == [0, 1, 2, 3, 4, 5]
    assert rows("worst") == [3, 5, 1, 0, 4, 2]
    assert rows("worst", ranks=(0, 1, 2)) == [1, 0, 2]


def test_sections_follow_their_index_or_their_worst_rank() -> None:
    scores = over_steps(SIX.ratio, "mean")
    found = arrange(SIX, PLACES, ranks=(), order="rank", group="pp", scores=scores)
    assert found.rows.tolist() == [0, 2, 4, 1, 3, 5]
    assert found.sections == (Section("pp 0", 0, 2), Section("pp 1", 3, 4), Section("pp unknown", 5, 5))
    found = arrange(SIX, PLACES, ranks=(), order="worst", group="pp", scores=scores)
    assert found.rows.tolist() == [3, 1, 5, 0, 4, 2]
    assert [section.label for section in found.sections] == ["pp 1", "pp unknown", "pp 0"]


def test_hosts_follow_their_lowest_rank_and_not_their_names() -> None:
    found = arrange(SIX, PLACES, ranks=(), order="rank", group="host", scores=np.zeros(6))
    assert [section.label for section in found.sections] == ["host node9", "host node10", "host node2"]


def test_ranks_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="None of the ranks 9"):
        rows(ranks=(9,))


@settings(deadline=None)
@given(st.permutations(range(6)), st.sampled_from(["rank", "worst"]), st.sampled_from(["", "host", "pp"]))
def test_every_row_is_there_once_and_sections_cover_them(order: list[int], by: str, group: str) -> None:
    found = arrange(SIX, PLACES, ranks=(), order=by, group=group, scores=np.array(order, float))
    assert sorted(found.rows.tolist()) == list(range(6))
    if group:
        covered = [row for section in found.sections for row in range(section.first, section.last + 1)]
        assert covered == list(range(6))


def test_one_number_a_rank_is_the_mean_or_that_of_the_worst_step() -> None:
    planes = planes_of(SIX, np.arange(6))
    numbers, column = per_rank(planes, "ratio", "mean")
    np.testing.assert_allclose(numbers["ratio"], [1.0, 1.1, NAN, 1.5, 0.9, 1.3])
    np.testing.assert_allclose(numbers["worst"], [1.0, 1.2, NAN, 2.0, 0.9, 1.3])
    assert column[3] == 1
    numbers, _ = per_rank(planes, "ratio", "worst")
    np.testing.assert_allclose(numbers["ratio"], numbers["worst"])
    np.testing.assert_allclose(numbers["value"], [2.0, 2.4, NAN, 4.0, 1.8, 2.6])
