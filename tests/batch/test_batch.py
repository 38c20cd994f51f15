"""`megascope batch` by DuckDB: right answers over several attempts, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from megascope.batch.dialects import Dialect, translate
from megascope.batch.duckdb_engine import DuckDBEngine
from megascope.batch.folders import new_folder
from megascope.batch.medians import Side, median_ns, medians_of
from megascope.batch.places import load_places
from megascope.batch.rollups import find_rollups, rebuilt
from megascope.batch.scope import find_scope
from megascope.cli import main
from megascope.collectors.reading.store import Store
from megascope.collectors.rollups.rollup import from_arrow, to_arrow
from megascope.collectors.rollups.windows import add_up
from megascope.profiler.errors import MegascopeError


@pytest.fixture
def engine(root: Path) -> Iterator[DuckDBEngine]:
    found = DuckDBEngine(find_scope(Store(root), None, None, None))
    yield found
    found.close()


def asked(capsys: pytest.CaptureFixture[str], *argv: object) -> Any:
    code = main(["batch", *map(str, argv), "--json"])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return json.loads(captured.out)


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main(["batch", *map(str, argv)]) in {1, 2}
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_step_that_a_newer_attempt_repeated_is_read_once(root: Path) -> None:
    scope = find_scope(Store(root), None, None, None)
    assert [one.attempt for one in scope.attempts] == [0, 1]
    assert scope.kept == (((10, 29),), ((0, 9),))
    assert find_scope(Store(root), "weeks", 0, None).kept == (((0, 29),),)
    assert find_scope(Store(root), None, None, (5, 12)).kept == (((10, 12),), ((5, 9),))
    with pytest.raises(MegascopeError, match="no single spans in those steps"):
        find_scope(Store(root), None, None, (50, 60))


def test_medians_are_those_of_the_spans(engine: DuckDBEngine, root: Path) -> None:
    places = load_places(engine.scope, together=False)
    rows = engine.ask(medians_of(engine.scope, places))
    exact = Store(root).query(
        """SELECT attempt, rank, segment, coalesce(chunk, 0) AS chunk, quantile_disc(self_ns, 0.5) AS median
        FROM events WHERE (attempt = 1 OR step >= 10) AND self_ns > 0 GROUP BY ALL"""
    )
    known = {tuple(row[:4]): row[4] for row in zip(*(column.to_pylist() for column in exact.columns), strict=True)}
    assert rows.num_rows > 100
    for row, value in zip(rows.to_pylist(), median_ns(rows), strict=True):
        place = places.known[row["place"]]
        key = (place.attempt, place.rank, row["segment"], row["chunk"])
        assert value == pytest.approx(known[key], rel=0.021)


def test_the_worst_is_the_slow_rank(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, "worst", root, "--steps", "15:29", "--limit", 3)
    assert (answer["schema"], answer["attempts"], answer["engine"]) == (1, [0], "duckdb")
    first, second, third = answer["result"]
    assert {(one["rank"], one["segment"]) for one in (first, second)} == {(6, "backward"), (6, "forward")}
    assert first["ratio"] == pytest.approx(1.4, abs=0.05)
    assert third["ratio"] < 1.1
    assert first["peers"] == 7


def test_what_changed_is_the_slow_rank(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    between = ("--attempt", 0, "--before", "0:14", "--after", "15:29")
    result = asked(capsys, "changed", root, *between)["result"]
    first = result["ranks"][0]
    assert (first["rank"], first["ratio"]) == (6, pytest.approx(1.4, abs=0.05))
    assert all(one["ratio"] == pytest.approx(1, abs=0.1) for one in result["segments"] if one["segment"] == "forward")
    halves = asked(capsys, "changed", root, "--attempt", 0)["result"]
    assert halves["ranks"][0]["rank"] == 6
    assert "belong together" in refused(capsys, "changed", root, "--before", "0:10")
    assert "in common" in refused(capsys, "changed", root, "--before", "0:10", "--after", "10:20")
    code = main(["batch", "changed", str(root)])
    assert (code, "took x" in capsys.readouterr().out) == (0, True)


def test_attempts_are_put_together_where_ranks_stayed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps 0 to 9 are the second attempt's, 10 to 29 the first's: a stretch over both has all of their spans."""
    result = asked(capsys, "changed", root, "--before", "0:12", "--after", "15:29", "--limit", 1000)["result"]
    assert result["in_one_stretch_only"] == 0
    assert (result["ranks"][0]["rank"], result["ranks"][0]["ratio"]) == (6, pytest.approx(1.4, abs=0.05))
    scope = find_scope(Store(root), None, None, None)
    places = load_places(scope, together=True)
    engine = DuckDBEngine(scope)
    rows = engine.ask(medians_of(scope, places, (Side(0, 12), Side(13, 29)))).to_pylist()
    engine.close()
    (forward,) = (number for number, name in places.names.items() if name == "forward")
    spans = {(row["side"], row["spans"]) for row in rows if row["segment"] == forward}
    assert spans == {(0, 13 * 4), (1, 17 * 4)}


def test_a_folder_of_results_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "out.tmp").mkdir()
    with pytest.raises(IsADirectoryError), new_folder(tmp_path / "out") as growing:
        growing.write_text("")
    assert [one.name for one in tmp_path.iterdir()] == ["out.tmp"]


def test_rollups_are_made_again_as_the_agent_makes_them(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    result = asked(capsys, "rollups", root, "--attempt", 0, "--out", out)["result"]
    assert result["equal"] == result["windows"] > 20
    assert (result["different"], result["not_in_store"], result["not_in_raw_spans"]) == (0, 0, 0)
    made = pq.read_table(out)
    assert made.num_rows == result["saved_rows"]
    names = [name for name in made.column_names if name not in {"run", "attempt"}]
    one = find_scope(Store(root), None, 0, None)
    stored = one.store.query(f"SELECT {', '.join(names)} FROM rank_windows", attempt=one.attempts[0])
    whole = to_arrow(add_up(from_arrow(stored))).select(names)
    order = [(key, "ascending") for key in ("rank", "segment", "window_steps", "first_step")]
    assert made.select(names).sort_by(order).to_pylist() == whole.sort_by(order).to_pylist()
    assert "is something at" in refused(capsys, "rollups", root, "--out", out)


def test_rollups_that_differ_are_counted(root: Path, engine: DuckDBEngine) -> None:
    """With both attempts, a window of the first that was repeated in part is not what the store has."""
    found = find_rollups(engine.scope, engine, None)
    assert found["different"] > 0
    assert found["not_in_raw_spans"] == 0  # windows without any step that counts were not asked about
    assert found["examples"][0]["rebuilt"]["duration_count"] != found["examples"][0]["stored"]["duration_count"]


def test_what_if_by_stretches(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = asked(capsys, "whatif", root, "--attempt", 0, "--stretch", 15)["result"]
    healthy, slow = result["stretches"]
    assert (healthy["first_step"], slow["first_step"], result["replayed_steps"]) == (0, 15, 30)
    assert slow["slowdown"] > healthy["slowdown"] + 0.1
    assert healthy["slowdown"] < result["slowdown"] < slow["slowdown"]


def test_clocks_are_aligned_again(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = asked(capsys, "align", root, "--out", tmp_path / "offsets")["result"]
    assert result["windows"] >= 2
    hosts = {(one["attempt"], one["host"]): one for one in result["hosts"]}
    assert len(hosts) == len(result["hosts"]) >= 2
    for one in result["hosts"]:
        assert abs(one["offset_ns"]) <= one["uncertainty_ns"] + 1000
    assert pq.read_table(tmp_path / "offsets").num_rows == result["saved_rows"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("worst", "--out", "x"), "--out is for"),
        (("worst", "--stretch", "3"), "--stretch is for"),
        (("worst", "--before", "1:2"), "are for the job"),
        (("worst", "--master", "spark://x:1"), "give --engine spark"),
        (("worst", "--run", "none"), "has no run 'none'"),
        (("rollups", "--out", "s3://bucket/rows"), "s3://bucket/rows is in an object store"),
        (
            ("changed", "--before", "0:9", "--after", "900:"),
            "no spans in --after: run weeks has some from step 0 to 29",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], sentence: str
) -> None:
    job, *rest = argv
    assert sentence in refused(capsys, job, root, *rest)


def test_every_word_of_its_own_is_said_in_both_dialects(engine: DuckDBEngine) -> None:
    spark = translate(rebuilt(engine.scope).sql, Dialect.SPARK)
    assert "IN_ORDER" not in spark
    assert "ARRAY_SORT" in spark.upper()
    with pytest.raises(MegascopeError, match="cannot be said in the dialect of spark"):
        translate("SELECT FROM WHERE", Dialect.SPARK)
