"""What is not there is explained: pruned, kept of other ranks only, or not measured yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.overhead import RecordingOverhead
from megascope.collectors.reading.store import Store
from megascope.collectors.upkeep.retention import prune
from megascope.collectors.upkeep.retention_plan import Retention
from megascope.dashboards.absence import pruned_texts, why_no_spans
from megascope.dashboards.binary import unpack
from megascope.dashboards.heat.data import choose
from megascope.dashboards.pages import overview, timeline
from megascope.dashboards.pages.heatmap import PAGE as HEATMAP
from megascope.dashboards.spans.data import spans_payload
from megascope.dashboards.verdicts import stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import MegascopeError
from support.demo_store import small_store
from support.rollup_store import with_rollups
from support.span_store import meeting, write_spans
from support.synthetic_store import SyntheticJob, write_synthetic_store

Opened = Callable[[Path], Workbench]


@pytest.fixture
def opened() -> Iterator[Opened]:
    benches: list[Workbench] = []

    def open_bench(root: Path) -> Workbench:
        benches.append(Workbench(Store(root)))
        return benches[-1]

    yield open_bench
    for bench in benches:
        bench.close()
        bench.store.close()


def test_pages_say_what_was_pruned(opened: Opened, tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "spans", SyntheticJob(steps=20))
    with Store(tmp_path / "spans") as source:
        with_rollups(source, tmp_path / "store").close()
    prune(tmp_path / "store", Retention(raw_age_s=0.0), quiet_s=0)
    bench = opened(tmp_path / "store")
    attempt = bench.attempt(View())
    (text,) = pruned_texts(bench, attempt)
    assert "raw spans up to step 19" in text
    for page in (overview.PAGE, HEATMAP, timeline.PAGE):
        assert text in str(page.body(View(), bench).children), page.name
    assert "no spans of" not in str(HEATMAP.body(View(), bench).children)
    meta, arrays = unpack(spans_payload(bench, attempt, View()))
    assert re.search(r"step 19[.] .* were pruned .*heatmap shows all ranks, from rollups", meta["absent"])
    assert not len(arrays["start"])
    assert pruned_texts(bench, attempt, ("events",), first_step=20) == []
    assert pruned_texts(bench, attempt, ("rank_windows",)) == []


def test_without_rollups_the_heatmap_says_that_all_spans_were_pruned(opened: Opened, tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "store", SyntheticJob(steps=5))
    prune(tmp_path / "store", Retention(raw_age_s=0.0), quiet_s=0)
    bench = opened(tmp_path / "store")
    with pytest.raises(MegascopeError, match=r"no spans any more[.] .* were pruned"):
        choose(View(), bench, bench.attempt(View()))


def test_the_timeline_says_whose_spans_are_kept(opened: Opened, tmp_path: Path) -> None:
    write_synthetic_store(tmp_path / "spans", SyntheticJob(steps=20))
    with Store(tmp_path / "spans") as source:
        with_rollups(source, tmp_path / "store", span_ranks=(0, 1)).close()
    bench = opened(tmp_path / "store")
    text = why_no_spans(bench, bench.attempt(View()), (3, 7))
    assert text == (
        "No raw spans of these ranks in steps 3 to 7. The store has raw spans of ranks 0-1 in steps 0 to 19. "
        "The heatmap shows all ranks, from rollups."
    )


def test_the_overview_tells_what_recording_costs(opened: Opened, tmp_path: Path) -> None:
    bench = opened(small_store(tmp_path / "store", ranks=1, steps=4))
    shown = str(overview.PAGE.body(View(), bench).children)
    assert "recording cost of a step, calculated from the cost of a span" in shown
    _, label, value = overview._recording(RecordingOverhead(0.125, -0.004, 0.51, 30, 500.0, 40.0, 1e8, 0.02))
    assert (label, value) == ("recording cost of a step; measured 0.12% (-0.004% to 0.51%)", "0.02%")
    assert overview._recording(RecordingOverhead(None, None, None, 0, None, None, None, None))[2] == "–"


def test_the_overview_lists_what_the_banner_counts(opened: Opened, tmp_path: Path) -> None:
    noise = np.exp(0.01 * np.random.default_rng(5).standard_normal((8, 60)))
    factors = {1: 1.5, 6: 1.3}
    spans = meeting(8, 60, lambda rank, step: float(20 * noise[rank, step]) * factors.get(rank, 1.0))
    write_spans(tmp_path / "store", spans, layout={"pp": 2, "dp": 4}).close()
    bench = opened(tmp_path / "store")
    verdict = stragglers_of(bench, bench.attempt(View()), wait_s=30).value
    assert verdict is not None
    assert verdict.sentence().endswith("1 more finding below.")
    rendered = overview.PAGE.body(View(), bench)
    assert "All 2 findings" in str(rendered.children)
    for rank in factors:
        assert f"Rank {rank} " in str(rendered.children)
    banner = str(HEATMAP.body(View(), bench).banner)
    assert "all 2 findings" in banner
    assert "below" not in banner, "there is nothing below on this page"
