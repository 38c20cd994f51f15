"""The Heatmap says where ranks had unequally many tokens: its times are as they are, not per token."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.dashboards.components import Awaited
from megascope.dashboards.heat.export import heat_csv
from megascope.dashboards.pages import heatmap
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.heatmap.rank_tokens import load_told
from support.rollup_store import with_rollups
from support.token_store import STEPS, Job, one_of, store_of

LONG = Job(one_of(1.3))
SAID = "Ranks had x1.00 (rank 0) to x1.30 (rank 2) of their peers' tokens in the median step: colours and tables are"


@contextmanager
def workbench(store: Store) -> Iterator[Workbench]:
    bench = Workbench(store)
    try:
        yield bench
    finally:
        bench.close()
        store.close()


def note_of(bench: Workbench, view: View) -> str:
    """What the page says of tokens, once nothing is awaited any more."""
    for _ in range(200):
        shown = heatmap.body(view, bench)
        if shown.awaited == Awaited.NOTHING:
            break
        bench._pool.submit(lambda: None).result()
    assert shown.awaited == Awaited.NOTHING
    text = json.dumps(shown.children, default=lambda each: each.to_plotly_json())
    found = re.search(r"Ranks had [^\"]*", text)
    return found[0] if found else ""


def test_the_range_of_tokens_stands_below_the_picture(tmp_path: Path) -> None:
    with workbench(store_of(tmp_path, LONG)) as bench:
        note = note_of(bench, View(segment="forward"))
        assert note.startswith(SAID)
        assert "not per token. The verdict divides the tokens out" in note
        assert note_of(bench, View(segment="forward", metric="count")) == "", "these are no times"
        assert note_of(bench, View(segment="all_reduce")) == "", "waiting does not go with a rank's own tokens"


@pytest.mark.parametrize(("job", "told"), [(Job(), True), (LONG, False)], ids=["equally many", "untold"])
def test_nothing_is_said_where_tokens_do_not_differ_or_are_not_told(tmp_path: Path, job: Job, told: bool) -> None:
    with workbench(store_of(tmp_path, job, told)) as bench:
        assert note_of(bench, View(segment="forward")) == ""
        rows = list(
            csv.DictReader(io.StringIO(heat_csv(bench, bench.attempt(View()), View(segment="forward")).decode()))
        )
        assert "tokens" not in rows[0]


def test_only_the_shown_steps_count(tmp_path: Path) -> None:
    with workbench(store_of(tmp_path, Job(one_of(1.3), since=30))) as bench:
        assert note_of(bench, View(segment="forward", steps=(0, 29))) == ""
        assert note_of(bench, View(segment="forward", steps=(30, STEPS - 1))).startswith(SAID)


def test_lengths_that_are_drawn_anew_show_in_single_steps(tmp_path: Path) -> None:
    with workbench(store_of(tmp_path, Job(drawn=0.3))) as bench:
        found = re.search(r"\(x([0-9.]+) to x([0-9.]+) in single steps\)", note_of(bench, View(segment="forward")))
        assert found is not None
        assert float(found[1]) < 0.7
        assert float(found[2]) > 1.5


def test_rollups_are_asked_once_for_all_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def counted(*given: Any) -> Any:
        asked.append(given)
        return load_told(*given)

    monkeypatch.setattr("megascope.heatmap.token_spread.load_told", counted)
    with store_of(tmp_path / "spans", Job(one_of(1.3), steps=200)) as spans:
        rolled = with_rollups(spans, tmp_path / "rolled", span_ranks=())
    with workbench(rolled) as bench:
        for segment in ("forward", "backward", "forward"):
            assert "x1.30 (rank 2) of their peers' tokens in the median window" in note_of(bench, View(segment=segment))
    assert len(asked) == 1


def test_the_csv_has_the_tokens_of_each_cell(tmp_path: Path) -> None:
    with workbench(store_of(tmp_path, Job(one_of(1.3), told=one_of(0.5)))) as bench:
        attempt = bench.attempt(View())
        text = heat_csv(bench, attempt, View(segment="forward", order="worst"))
        rows = list(csv.DictReader(io.StringIO(text.decode())))
        of_two = [row["tokens"] for row in rows if row["rank"] == "2"]
        assert {round(float(value), 6) for value in of_two if value} == {1.3}
        assert 0 < of_two.count("") < STEPS, "what was not told is empty"
        assert {float(row["tokens"]) for row in rows if row["rank"] != "2"} == {1.0}
        hosts = heat_csv(bench, attempt, View(segment="forward", shape="hosts"))
        by_rank = {row["rank"]: float(row["tokens"]) for row in csv.DictReader(io.StringIO(hosts.decode()))}
        assert by_rank["2"] == pytest.approx(1.3)
