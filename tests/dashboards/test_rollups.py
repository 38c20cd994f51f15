"""A store without raw spans: the pages show its rollups, and the Heatmap says what a column is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Attempt
from megascope.dashboards.binary import unpack
from megascope.dashboards.curves import MANY_RANKS, ranks_read
from megascope.dashboards.heat.data import choose, matrix_of, segments_of, worst_ranks
from megascope.dashboards.heat.payload import heat_payload
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.verdicts import marks_of, stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.rollup_store import with_rollups
from support.span_store import meeting, write_spans


@pytest.fixture(scope="module")
def rolled_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    root: Path = tmp_path_factory.mktemp("rollups")
    noise = np.exp(0.03 * np.random.default_rng(5).standard_normal((8, 120)))
    spans = meeting(8, 120, lambda r, s: float(20 * noise[r, s]) * (1.5 if r == 5 and s >= 50 else 1.0))
    source = write_spans(root / "spans", spans, layout={"pp": 2, "dp": 4})
    bench = Workbench(with_rollups(source, root / "rollups", span_ranks=()))
    yield bench
    bench.close()


def test_the_heatmap_shows_windows(rolled_up: Workbench) -> None:
    attempt = rolled_up.attempt(View())
    assert [row["segment"] for row in segments_of(rolled_up, attempt)] == ["forward", "all_reduce"]
    meta, arrays = unpack(heat_payload(rolled_up, attempt, View(segment="forward")))
    assert (meta["steps"], meta["step_width"]) == (list(range(0, 120, 10)), 10)
    ratio = arrays["ratio"].reshape(8, 12)
    assert np.median(ratio[5, 5:]) == pytest.approx(1.5, rel=0.05)
    choice = choose(View(), rolled_up, attempt)
    assert worst_ranks(matrix_of(rolled_up, attempt, choice))[0]["rank"] == 5


def test_the_page_says_what_a_column_is_and_frames_the_culprit(rolled_up: Workbench) -> None:
    attempt = rolled_up.attempt(View())
    verdict = stragglers_of(rolled_up, attempt, wait_s=30).value
    assert marks_of(verdict, "forward", attempt) == '[{"ranks": [5], "steps": [50, 119]}]'
    shown = PAGE.body(View(), rolled_up).children
    assert "A column is a window of 10 steps" in str(shown)


def test_one_hot_step_hides_in_the_mean_of_its_window_and_shows_in_its_99th_percentile(tmp_path: Path) -> None:
    noise = np.exp(0.01 * np.random.default_rng(7).standard_normal((8, 60)))
    spans = meeting(8, 60, lambda r, s: float(20 * noise[r, s]) * (1.4 if (r, s) == (2, 37) else 1.0))
    source = write_spans(tmp_path / "spans", spans, layout={"pp": 2, "dp": 4})
    bench = Workbench(with_rollups(source, tmp_path / "rollups", span_ranks=()))
    attempt = bench.attempt(View())
    ratios = {}
    for metric in ("self", "p99"):
        _, arrays = unpack(heat_payload(bench, attempt, View(segment="forward", metric=metric)))
        ratios[metric] = arrays["ratio"].reshape(8, 6)
    assert (ratios["self"] < 1.06).all()
    assert [tuple(place) for place in np.argwhere(ratios["p99"] > 1.3)] == [(2, 3)]
    means, tails = (str(PAGE.body(View(segment="forward", metric=metric), bench).children) for metric in ratios)
    assert "metric=p99" in means.split("hides in the mean of its window")[1]
    assert "hides in the mean" not in tails
    bench.close()


def test_a_large_job_is_read_at_both_ends_of_its_mesh() -> None:
    assert ranks_read(Attempt("run", 0, world_size=MANY_RANKS)) == "true"
    assert ranks_read(Attempt("run", 0, world_size=12288)) == "(rank < 256 OR rank >= 12032)"
