"""What leaves the Heatmap: CSV and SQL say what the canvas shows; percentiles are those of the spans; times are UTC."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Attempt, Store
from megascope.dashboards.binary import unpack
from megascope.dashboards.heat import export as heat_export
from megascope.dashboards.heat.data import choose, matrix_of, slowest_steps
from megascope.dashboards.heat.export import heat_csv, heat_sql
from megascope.dashboards.heat.payload import heat_payload
from megascope.dashboards.moments import chosen_steps, step_moments
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.verdicts import stragglers_of
from megascope.dashboards.view import View, moment_text, parse_view
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import MegascopeError, UsageError
from support.rollup_store import with_rollups
from support.synthetic_store import START_NS, SyntheticJob, write_synthetic_store


@pytest.fixture(scope="module")
def rolled_up(slow_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with Store(slow_store) as source:
        store = with_rollups(source, tmp_path_factory.mktemp("rolled") / "store", span_ranks=())
    bench = Workbench(store)
    yield bench
    bench.close()
    store.close()


def rows_of(bench: Workbench, attempt: Attempt, view: View) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(heat_csv(bench, attempt, view).decode())))


def test_the_csv_holds_the_cells_in_their_order(bench: Workbench, attempt: Attempt) -> None:
    view = View(segment="forward", order="worst", steps=(4, 12))
    matrix = matrix_of(bench, attempt, choose(view, bench, attempt))
    rows = rows_of(bench, attempt, view)
    assert len(rows) == 8 * 9
    assert {row["rank"] for row in rows[:9]} == {"5"}
    assert rows[0].keys() == {"rank", "host", "pp", "dp", "tp", "step", "value", "peers", "ratio", "z"}
    for row in rows:
        value = matrix.values[int(row["rank"]), int(row["step"]) - 4]
        assert row["value"] == "" if np.isnan(value) else float(row["value"]) == pytest.approx(value)
    assert sum(row["value"] == "" for row in rows) == 2, "what is missing is empty"


def test_the_csv_of_hosts_and_of_a_threshold(bench: Workbench, attempt: Attempt) -> None:
    rows = rows_of(bench, attempt, View(segment="forward", shape="hosts", over="worst"))
    assert len(rows) == 8
    assert rows[5]["worst_ratio"] == rows[5]["ratio"]
    slow = rows_of(bench, attempt, View(segment="forward", above=1.3))
    assert {row["rank"] for row in slow} == {"5"}
    assert min(float(row["ratio"]) for row in slow) >= 1.3


def test_too_many_cells_are_refused(bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_export, "EXPORTED_CELLS", 100)
    with pytest.raises(UsageError, match="240 cells; the page exports 100"):
        heat_csv(bench, attempt, View(segment="forward"))


@pytest.mark.parametrize("metric", ["self", "duration", "count", "p50", "p99"])
@pytest.mark.parametrize("source", ["bench", "rolled_up"])
def test_the_sql_gives_the_shown_values(source: str, metric: str, request: pytest.FixtureRequest) -> None:
    bench: Workbench = request.getfixturevalue(source)
    attempt = bench.attempt(View())
    choice = choose(View(segment="forward", metric=metric), bench, attempt)
    found = run_sql(bench.store, heat_sql(bench, attempt, choice), attempt=attempt).table
    matrix = matrix_of(bench, attempt, choice)
    if source == "rolled_up" and metric.startswith("p"):
        assert found.column_names == ["rank", "step", "self_bins", "self_bin_counts"]
        return
    assert found.num_rows == np.isfinite(matrix.values).sum()
    for row in found.to_pylist():
        shown = matrix.values[row["rank"], list(matrix.steps).index(row["step"])]
        assert row["value"] == pytest.approx(shown, rel=1e-9)
    assert found["rank"][0].as_py() == 5 or metric == "count"


def test_percentiles_are_those_of_the_spans(bench: Workbench, rolled_up: Workbench) -> None:
    attempt = bench.attempt(View())
    spans = bench.store.query(
        "SELECT self_ns FROM spans WHERE segment_name = 'forward' AND rank = 5 AND step = 12", attempt=attempt
    )["self_ns"].to_numpy()
    matrix = matrix_of(bench, attempt, choose(View(segment="forward", metric="p99"), bench, attempt))
    assert matrix.values[5, 12] == pytest.approx(np.quantile(spans, 0.99) / 1e6)
    assert np.nanmedian(matrix.ratio[5, 10:]) > 1.4
    rolled = matrix_of(rolled_up, attempt, choose(View(segment="forward", metric="p99"), rolled_up, attempt))
    spans = bench.store.query(
        "SELECT self_ns FROM spans WHERE segment_name = 'forward' AND rank = 5 AND step BETWEEN 10 AND 19",
        attempt=attempt,
    )["self_ns"].to_numpy()
    assert rolled.values[5, 1] == pytest.approx(np.quantile(spans, 0.99, method="inverted_cdf") / 1e6, rel=0.02)


def test_times_choose_the_steps_that_began_then(bench: Workbench, attempt: Attempt) -> None:
    moments = step_moments(bench, attempt)
    assert moments.steps.tolist() == list(range(30))
    since, until = (int(moments.began_ns[at]) for at in (4, 9))
    assert chosen_steps(bench, attempt, View(since=since, until=until)) == (4, 8)
    assert chosen_steps(bench, attempt, View(since=since + 1000, until=until, steps=(0, 6))) == (5, 6)
    view = parse_view(f"?since={moment_text(since)}&until={moment_text(until).replace(' ', 'T')}Z")
    assert chosen_steps(bench, attempt, view) == (4, 8)
    meta, _ = unpack(heat_payload(bench, attempt, View(segment="forward", since=since, until=until)))
    assert meta["steps"] == [4, 5, 6, 7, 8]
    assert int(meta["moments"][0]) == moments.ended(4)
    with pytest.raises(MegascopeError, match="began then: give other times"):
        chosen_steps(bench, attempt, View(until=START_NS - 10**15))


def test_chosen_steps_restrict_the_verdict_too(bench: Workbench, attempt: Attempt) -> None:
    assert stragglers_of(bench, attempt, (0, 7), wait_s=30).value is not None
    text = str(PAGE.body(View(segment="forward", steps=(0, 7)), bench).banner)
    assert "In steps 0 to 7: " in text
    assert "Rank 5" not in text


def test_ranks_that_the_store_knows_nothing_of_are_missing_rows(bench: Workbench, attempt: Attempt) -> None:
    larger = replace(attempt, world_size=10)
    matrix = matrix_of(bench, larger, choose(View(segment="forward"), bench, larger))
    assert matrix.ranks.tolist() == list(range(10))
    assert np.isnan(matrix.values[8:]).all()
    assert np.isfinite(matrix.values[:8]).sum() == 8 * 30 - 2
    meta, arrays = unpack(heat_payload(bench, larger, View(segment="forward", shape="hosts", metric="duration")))
    lost = [meta["ranks"].index(rank) for rank in (8, 9)]
    cells = np.flatnonzero(np.isin(arrays["at"], lost))
    assert len(cells) == 2, "they have a place in the picture"
    assert np.isnan(arrays["value"][cells]).all()
    assert [meta["hosts"][at] for at in lost] == [None, None]


def test_a_rank_without_peers_is_compared_with_itself(tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", SyntheticJob(layout={"dp": 1}, steps=12))
    with Store(tmp_path / "store") as store:
        bench = Workbench(store)
        attempt = bench.attempt(View())
        choice = choose(View(segment="forward"), bench, attempt)
        assert choice.show == "value", "there is no ratio to show"
        worst = slowest_steps(matrix_of(bench, attempt, choice))
        assert worst[0]["ratio"] >= worst[-1]["ratio"] > 0
        text = str(PAGE.body(View(), bench).children)
        assert "Slowest steps" in text
        assert "same rank's median" in text
        bench.close()
