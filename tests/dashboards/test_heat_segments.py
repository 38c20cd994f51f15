"""The slowest rank of each segment: where to look if the verdict accuses nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.heat.data import choose, matrix_of, worst_ranks
from megascope.dashboards.heat.segments import glance_at, slowest_by_segment
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.verdicts import stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.rollup_store import with_rollups
from support.span_store import Span, write_spans
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store


@pytest.mark.parametrize("rolled_up", [False, True])
def test_the_slow_rank_leads_at_its_segment_alone(slow_store: Path, tmp_path: Path, *, rolled_up: bool) -> None:
    with Store(slow_store) as spans:
        store = with_rollups(spans, tmp_path / "store", span_ranks=()) if rolled_up else spans
        found = slowest_by_segment(store, store.attempt())
        if rolled_up:
            store.close()
    assert {one.segment for one in found} == {"forward", "backward", "optimizer", "data"}
    assert (found[0].segment, found[0].rank) == ("forward", 5)
    assert found[0].ratio == pytest.approx((8 + 22 * 1.5) / 30, rel=0.05)
    assert found[0].excess_ms > 10 * found[1].excess_ms
    assert found[0].excess_ms == pytest.approx(4 * 5.0 * 0.5 * 22 / 30, rel=0.1), "4 micro-batches of 5 ms a step"
    assert all(1 <= one.ratio < 1.1 for one in found[1:])


def test_chosen_steps_before_the_trouble_show_none(slow_store: Path) -> None:
    with Store(slow_store) as store:
        assert slowest_by_segment(store, store.attempt(), (0, 7))[0].ratio < 1.1


def test_a_store_without_spans_has_no_slowest_rank(tmp_path: Path) -> None:
    with TableWriter(tmp_path, "test") as writer:
        writer.write("ranks", "run", 0, {"rank": [0], "host": ["a"]})
        writer.commit()
    with Store(tmp_path) as store:
        assert slowest_by_segment(store, store.attempt()) == []


def test_the_page_leads_to_each_segment(bench: Workbench) -> None:
    deadline = time.monotonic() + 30
    while "By segment" not in (text := str(PAGE.body(View(segment="backward", order="worst"), bench).children)):
        assert time.monotonic() < deadline, text
    assert "/heatmap?segment=forward&order=worst" in text


@pytest.mark.parametrize("rolled_up", [False, True])
def test_milliseconds_a_step_are_of_all_steps_and_not_of_those_with_the_segment(
    tmp_path: Path, *, rolled_up: bool
) -> None:
    spans = [Span(rank, step, "forward", step * 200.0, 10.0) for rank in range(4) for step in range(40)]
    spans += [
        Span(rank, step, "gc", step * 200.0 + 20, 50.0 if rank == 2 else 10.0, kind="gc")
        for rank in range(4)
        for step in (7, 27)
    ]
    raw = write_spans(tmp_path / "raw", spans, layout={"dp": 4})
    store = with_rollups(raw, tmp_path / "store", span_ranks=()) if rolled_up else raw
    found = slowest_by_segment(store, store.attempt())
    chosen = slowest_by_segment(store, store.attempt(), (20, 39))
    for each in {id(store): store, id(raw): raw}.values():
        each.close()
    assert (found[0].segment, found[0].rank) == ("gc", 2)
    assert found[0].excess_ms == pytest.approx(2 * 40 / 40)
    assert found[0].ratio == pytest.approx(5.0)
    assert chosen[0].excess_ms == pytest.approx(40 / 20)


def test_both_tables_mean_the_same_by_mean(bench: Workbench) -> None:
    attempt = bench.attempt(View())
    glance = glance_at(bench, attempt, wait_s=30).value
    assert glance
    for one in glance:
        matrix = matrix_of(bench, attempt, choose(View(segment=one.segment), bench, attempt))
        ratios = {row["rank"]: row["ratio"] for row in worst_ranks(matrix, 8)}
        assert one.ratio == pytest.approx(ratios[one.rank])


def test_where_nothing_is_judged_the_page_opens_on_the_segment_that_stands_out(tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", SyntheticJob(steps=6, slow=Slow(5, 1.4, 0, segment="forward")))
    with Store(tmp_path / "store") as store:
        bench = Workbench(store)
        attempt = bench.attempt(View())
        assert choose(View(), bench, attempt).segment == "backward", "the costliest, before anything is known"
        verdict = stragglers_of(bench, attempt, wait_s=30).value
        assert verdict is not None
        assert not verdict.culprits
        glance_at(bench, attempt, wait_s=30)
        assert choose(View(), bench, attempt).segment == "forward"
        assert choose(View(segment="data"), bench, attempt).segment == "data"
        bench.close()
