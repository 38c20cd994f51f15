"""The slowest rank of each segment: where to look if the verdict accuses nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from megascope.collectors.store import Store
from megascope.collectors.writer import TableWriter
from megascope.dashboards.heat_segments import slowest_by_segment
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.rollup_store import with_rollups


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
