"""Rollup rows of spans: what is counted, windows of three lengths, rows of one key that add up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.collectors.rollups.rollup import added_up, from_arrow, to_arrow, window_rows
from megascope.collectors.rollups.windows import WINDOW_STEPS, add_up, concatenate
from megascope.collectors.tables.parquet import conform
from megascope.collectors.tables.schemas import TABLES
from megascope.collectors.upkeep.compaction import compact
from megascope.collectors.writing.writer import TableWriter
from support.histograms import histogram

MISSING = -(2**63)
Span = tuple[int, int, int, int, int, int]
TIMES = st.one_of(st.just(MISSING), st.integers(0, 10**12))
SPANS = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from([-(2**62), 7, 2**61]), st.one_of(st.just(-1), st.integers(0, 2500)),
        TIMES, TIMES, TIMES,
    ),
    max_size=60,
)  # fmt: skip


def rows_of(spans: Sequence[Span]) -> pa.Table:
    columns = np.array(spans, np.int64).reshape(-1, 6).T
    return window_rows(*columns)


def by_hand(spans: Sequence[Span]) -> dict[tuple[int, ...], dict[str, Any]]:
    """The same, one span after another."""
    found: dict[tuple[int, ...], list[Span]] = {}
    for length in WINDOW_STEPS:
        for span in spans:
            if span[2] >= 0:
                key = (span[0], span[1], length, span[2] // length * length)
                found.setdefault(key, []).append(span)
    return {key: _row(members) for key, members in found.items()}


def _row(members: Sequence[Span]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for metric, at in (("duration", 3), ("self", 4)):
        times = [span[at] for span in members if span[at] >= 0]
        bins, counts = histogram(np.array(times, np.int64))
        row |= {
            f"{metric}_count": len(times),
            f"{metric}_sum_ns": sum(times),
            f"{metric}_min_ns": min(times, default=None),
            f"{metric}_max_ns": max(times, default=None),
            f"{metric}_bins": bins.tolist(),
            f"{metric}_bin_counts": counts.tolist(),
        }
    waits = [span[5] for span in members if span[5] >= 0]
    return row | {"exposed_count": len(waits), "exposed_sum_ns": sum(waits)}


def as_dict(rows: pa.Table) -> dict[tuple[int, ...], dict[str, Any]]:
    keys = ("rank", "segment", "window_steps", "first_step")
    found = {tuple(row[key] for key in keys): row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return {key: {name: value for name, value in row.items() if name not in keys} for key, row in found.items()}


@given(SPANS)
def test_rows_are_what_adding_up_by_hand_gives(spans: list[Span]) -> None:
    assert as_dict(rows_of(spans)) == by_hand(spans)


@given(SPANS, SPANS, SPANS)
def test_spans_may_come_in_any_pieces(a: list[Span], b: list[Span], c: list[Span]) -> None:
    pieces = [from_arrow(rows_of(part)) for part in (c, a, b)]
    assert as_dict(to_arrow(add_up(concatenate(pieces)))) == by_hand([*a, *b, *c])


@given(SPANS)
def test_rows_fit_the_table_and_come_back(spans: list[Span]) -> None:
    rows = rows_of(spans)
    stored = conform(TABLES["rank_windows"], "run", 0, rows, ())
    assert to_arrow(from_arrow(stored)).equals(to_arrow(from_arrow(rows)))
    assert as_dict(stored.drop_columns(["run", "attempt"])) == as_dict(rows)


def test_one_rank_for_all_and_no_exposed_time() -> None:
    none = np.full(3, MISSING)
    step, times = np.array([0, 1, 19]), np.array([5, 0, 7])
    one = window_rows(4, np.full(3, 7), step, times, times)
    assert one.equals(window_rows(np.full(3, 4), np.full(3, 7), step, times, times, none))
    assert one["rank"].to_pylist() == [4, 4, 4, 4]
    assert one["duration_count"].to_pylist() == [2, 1, 3, 3]


def test_sums_are_exact_beyond_what_a_double_holds() -> None:
    times = np.array([2**60 + 1, 2**60 + 3, 1])
    rows = window_rows(0, np.full(3, 7), np.zeros(3, np.int64), times, times)
    assert rows["duration_sum_ns"].to_pylist() == [2**61 + 5] * 3


@given(SPANS, SPANS, st.integers(1, 40))
def test_sorted_rows_are_added_up_in_pieces_of_any_size(a: list[Span], b: list[Span], size: int) -> None:
    keys = [(name, "ascending") for name in ("window_steps", "segment", "first_step", "rank")]
    rows = pa.concat_tables([rows_of(a), rows_of(b), rows_of(a)]).sort_by(keys).combine_chunks()
    found = pa.Table.from_batches(list(added_up(rows.to_batches(max_chunksize=size))), rows.schema)
    assert as_dict(found) == by_hand([*a, *b, *a])


def test_compaction_adds_up_rows_of_one_window(tmp_path: Path) -> None:
    spans = [(rank, 7, step, 1000 + step, 900, 5) for rank in range(3) for step in range(0, 1500, 7)]
    with TableWriter(tmp_path, "writer", seal_after_s=0.0) as writer:
        for first in range(0, len(spans), 50):
            writer.write("rank_windows", "run", 0, rows_of(spans[first : first + 50]))
            writer.commit()
        writer.commit()
    compact(tmp_path, quiet_s=0.0)
    with Store(tmp_path) as store:
        rows = store.read("rank_windows", store.attempt())
        assert {entry.level for entry in store.entries("rank_windows")} == {10, 100, 1000}
    assert as_dict(rows.drop_columns(["run", "attempt"])) == by_hand(spans)


def test_what_nobody_told_stays_null_when_rows_are_added_up(tmp_path: Path) -> None:
    """Rows of an importer that knows counts and sums of durations only, and only one of two extremes."""
    told = {"segment": [1], "window_steps": [10], "first_step": [0], "duration_sum_ns": [70], "duration_max_ns": [30]}
    for name in ("a", "b"):
        with TableWriter(tmp_path, name) as writer:
            writer.write("rank_windows", "run", 0, {"rank": [0], "duration_count": [7], **told})
            writer.write("rank_windows", "run", 0, {"rank": [1], "self_count": [1], "self_sum_ns": [5], **told})
            if name == "b":
                row = {"duration_count": [0], "self_count": [0], "self_sum_ns": [0]}
                writer.write("rank_windows", "run", 0, {"rank": [2], "exposed_count": [0], **row, **told})
            writer.commit()
    compact(tmp_path, quiet_s=0.0)
    with Store(tmp_path) as store:
        rows = store.query("SELECT * FROM rank_windows ORDER BY rank").to_pylist()
    names = ("count", "sum_ns", "min_ns", "max_ns", "bins", "bin_counts")
    found = [[tuple(row[f"{of}_{name}"] for name in names) for of in ("duration", "self")] for row in rows]
    assert found == [
        [(14, 140, None, 30, None, None), (None, None, None, None, None, None)],
        [(None, 140, None, 30, None, None), (2, 10, None, None, None, None)],
        [(0, 70, None, 30, [], []), (0, 0, None, None, [], [])],
    ]
    assert [(row["exposed_count"], row["exposed_sum_ns"]) for row in rows] == [(None, None)] * 2 + [(0, None)]


def test_windows_that_a_restart_repeated_whole_are_left_out_as_spans_are(tmp_path: Path) -> None:
    """Attempt 0 ran steps 0 to 34; attempt 1 took up at step 15 and has not come to step 30."""
    with TableWriter(tmp_path, "writer") as writer:
        for attempt, steps in enumerate((np.arange(35), np.arange(15, 30))):
            count = len(steps)
            times = {"rank": [0] * count, "step": steps.tolist(), "start_ns": steps.tolist()}
            same = {"segment": [7] * count, "clock": ["host"] * count, "status": ["ok"] * count}
            writer.write("runs", "run", attempt, {"start_ns": [attempt]})
            writer.write("steps", "run", attempt, times)
            writer.write("events", "run", attempt, {**times, **same, "duration_ns": [5] * count})
            writer.write("rank_windows", "run", attempt, window_rows(0, np.full(count, 7), steps, steps, steps))
        writer.commit()
    sql = "SELECT attempt, first_step, duration_count FROM windows WHERE window_steps = ? ORDER BY ALL"
    with Store(tmp_path) as store:
        found = {length: store.query(sql, [length]).to_pylist() for length in WINDOW_STEPS}
        spans = store.query("SELECT attempt, step // 10 * 10 AS w, count(*) AS n FROM spans GROUP BY ALL ORDER BY ALL")
        alone = store.query(sql, [10], store.attempt("run", 0)).num_rows
    shown = {length: [tuple(row.values()) for row in rows] for length, rows in found.items()}
    # The window of steps 20 to 29 was repeated whole; that of 10 to 19 in part: five of its steps count twice.
    assert shown[10] == [(0, 0, 10), (0, 10, 10), (0, 30, 5), (1, 10, 5), (1, 20, 10)]
    assert [tuple(row.values()) for row in spans.to_pylist()] == [
        (0, 0, 10),
        (0, 10, 5),
        (0, 30, 5),
        (1, 10, 5),
        (1, 20, 10),
    ]
    assert shown[100] == shown[1000] == [(0, 0, 35), (1, 0, 15)]
    assert alone == 4, "one attempt by itself has all of its windows"
