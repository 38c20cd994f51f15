"""Log-histograms: percentiles within 1 % of exact order statistics, merging in any order, the same in SQL."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.rollups.histogram import BINS_PER_E, ZERO_BIN, bins_of, cell_percentiles, estimates
from support.histograms import bin_sql, histogram, percentile

DURATIONS = st.lists(
    st.one_of(st.integers(0, 10**6), st.integers(0, 10**15), st.integers(10**9, 10**9 + 10**6)),
    min_size=1,
    max_size=200,
)
PERCENT = st.floats(0, 100, allow_nan=False)


def exact(values: list[int], q: float) -> int:
    """The nearest-rank percentile."""
    return sorted(values)[max(math.ceil(q / 100 * len(values)), 1) - 1]


@given(DURATIONS, PERCENT)
def test_percentiles_are_within_one_percent_of_the_exact_ones(values: list[int], q: float) -> None:
    found = percentile(*histogram(np.array(values)), q)
    assert found == pytest.approx(exact(values, q), rel=0.01)


@given(DURATIONS, DURATIONS, PERCENT)
def test_entries_of_several_histograms_are_the_histogram_of_all(a: list[int], b: list[int], q: float) -> None:
    bins, counts = (np.concatenate(parts) for parts in zip(*(histogram(np.array(v)) for v in (a, b)), strict=True))
    assert percentile(bins, counts, q) == percentile(*histogram(np.array(a + b)), q)


@given(st.integers(1, 2**62))
def test_a_bin_stands_for_its_values_within_one_percent(value: int) -> None:
    assert estimates(bins_of(np.array([value])))[0] == pytest.approx(value, rel=0.01)


def test_bounds_zero_and_nothing() -> None:
    bins = bins_of(np.array([0, 1, 2, 2**62]))
    assert bins.dtype == np.int32
    assert bins.tolist() == [ZERO_BIN, 0, math.floor(math.log(2) * BINS_PER_E), math.floor(62 * math.log(2) * 50)]
    assert percentile(*histogram(np.array([0, 0, 5])), 50) == 0.0
    assert math.isnan(percentile(*histogram(np.zeros(0, np.int64)), 50))


@given(st.lists(DURATIONS, min_size=1, max_size=5), PERCENT, st.integers(0, 2**32 - 1))
def test_many_histograms_at_once_whatever_the_order_of_their_entries(
    cells: list[list[int]], q: float, seed: int
) -> None:
    parts = [(cell, *histogram(np.array(values))) for cell, values in enumerate(cells)]
    owner = np.concatenate([np.full(len(bins), cell) for cell, bins, _ in parts])
    bins, counts = (np.concatenate([part[at] for part in parts]) for at in (1, 2))
    order = np.random.default_rng(seed).permutation(len(bins))
    found = cell_percentiles(owner[order], bins[order], counts[order], q, len(cells) + 1)
    assert found[:-1].tolist() == [percentile(bins, counts, q) for _, bins, counts in parts]
    assert math.isnan(found[-1])


PERCENTILE_SQL = """
    WITH entries AS (SELECT rank, unnest(duration_bins) AS bin, unnest(duration_bin_counts) AS n FROM rank_windows),
    reached AS (
        SELECT rank, bin, sum(n) OVER (PARTITION BY rank ORDER BY bin) AS up_to,
            sum(n) OVER (PARTITION BY rank) AS total
        FROM entries
    )
    SELECT rank, CASE WHEN min(bin) < 0 THEN 0 ELSE exp((min(bin) + 0.5) / 50) END AS percentile_ns
    FROM reached WHERE up_to >= greatest(ceil(total * ? / 100), 1) GROUP BY rank ORDER BY rank
"""
"""What the documentation of the store tells users to ask."""


def test_the_same_in_sql() -> None:
    random = np.random.default_rng(3)
    values = [np.concatenate([[0], random.lognormal(12, 2, 300).astype(np.int64)]) for _ in range(6)]
    parts = [histogram(each) for each in values]
    rows = pa.table(
        {
            "rank": [0, 0, 1, 1, 2, 2],
            "duration_bins": [bins.tolist() for bins, _ in parts],
            "duration_bin_counts": [counts.tolist() for _, counts in parts],
        }
    )
    connection = duckdb.connect()
    connection.register("rank_windows", rows)
    for q in (0, 1, 50, 99.9, 100):
        answer = connection.execute(PERCENTILE_SQL, [q]).fetchall()
        for rank, found in answer:
            both = np.concatenate(values[2 * rank : 2 * rank + 2]).tolist()
            assert found == pytest.approx(exact(both, q), rel=0.0101)
        assert [rank for rank, _ in answer] == [0, 1, 2]
    connection.register("spans", pa.table({"ns": values[0]}))
    assert [row[0] for row in connection.sql(f"SELECT {bin_sql('ns')} FROM spans").fetchall()] == bins_of(
        values[0]
    ).tolist()
