"""The heatmap as a figure: no hot cell is lost, and what is missing stays empty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from megascope.heatmap.figure import MAX_ROWS, bin_rows, heatmap_figure
from megascope.heatmap.matrix import Matrix
from megascope.profiler.errors import UsageError

planes = st_numpy.arrays(
    np.float64,
    st.tuples(st.integers(1, 60), st.integers(1, 5)),
    elements=st.floats(-1e6, 1e6) | st.just(float("nan")),
)


def matrix(ranks: int, steps: int) -> Matrix:
    values = np.full((ranks, steps), 2.0)
    return Matrix("forward", "self", np.arange(ranks), np.arange(steps), values, values.copy(), values / 2, values - 2)


@settings(deadline=None)
@given(planes, st.integers(1, 70))
def test_binning_keeps_the_hottest_cell_of_every_column(plane: np.ndarray, rows: int) -> None:
    binned = bin_rows(plane, rows)
    assert binned.values.shape[0] == min(rows, plane.shape[0])
    assert binned.first[0] == 0
    assert binned.last[-1] == plane.shape[0] - 1
    assert np.array_equal(binned.first[1:], binned.last[:-1] + 1)
    for column in range(plane.shape[1]):
        known = plane[:, column][np.isfinite(plane[:, column])]
        drawn = binned.values[:, column][np.isfinite(binned.values[:, column])]
        assert (known.max() if len(known) else None) == (drawn.max() if len(drawn) else None)
    for row, column in np.argwhere(binned.winner >= 0):
        assert plane[binned.winner[row, column], column] == binned.values[row, column]
    assert np.array_equal(binned.winner < 0, np.isnan(binned.values))


def test_a_straggler_among_twelve_thousand_ranks_is_drawn_and_named() -> None:
    found = matrix(12_288, 20)
    found.ratio[7777, 13] = 1.8
    trace = heatmap_figure(found).data[0]
    assert len(trace.z) <= MAX_ROWS
    hottest = max((value, row, column) for row, line in enumerate(trace.z) for column, value in enumerate(line))
    assert hottest[0] == 1.8
    assert hottest[2] == 13
    assert trace.text[hottest[1]][13].startswith("rank 7777, step 13")
    assert "ranks" in trace.y[hottest[1]]


def test_missing_cells_stay_empty_and_hover_says_so() -> None:
    found = matrix(4, 3)
    found.ratio[2, 1] = np.nan
    trace = heatmap_figure(found).data[0]
    assert trace.z[2][1] is None
    assert trace.text[2][1] == "no data"
    assert trace.y[2] == "rank 2"


def test_evidence_stands_in_the_hover_text() -> None:
    found = matrix(4, 3)
    found.ratio[1, 1] = 1.5
    text = heatmap_figure(found).data[0].text[1][1]
    assert text == "rank 1, step 1: 2 ms; peers 2 ms, x1.5, z 0"


def test_the_middle_of_the_scale_is_one_for_ratio_and_zero_for_z() -> None:
    ratio, z = (heatmap_figure(matrix(4, 3), show).data[0] for show in ("ratio", "z"))
    assert (ratio.zmin + ratio.zmax) / 2 == pytest.approx(1)
    assert (z.zmin, z.zmax) == (-6, 6)
    with pytest.raises(UsageError, match="cannot show 'speed'"):
        heatmap_figure(matrix(4, 3), "speed")
