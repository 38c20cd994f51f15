"""The coarse level of the Timeline: the same shares from spans and from rollups, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.dashboards.binary import unpack
from megascope.dashboards.spans import outline as span_outline
from megascope.dashboards.spans.choice import choose_spans
from megascope.dashboards.spans.outline import KINDS, outline_payload
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import UsageError
from support.rollup_store import with_rollups
from support.span_store import meeting, write_spans


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workbench, Workbench]]:
    """The same job with its spans, and with rollups alone; work takes 20 ms, of rank 5 30 ms, a step 200 ms."""
    root: Path = tmp_path_factory.mktemp("outline")
    spans = meeting(8, 40, lambda rank, _: 30.0 if rank == 5 else 20.0)
    steps = {
        "rank": [rank for rank in range(8) for _ in range(40)],
        "step": list(range(40)) * 8,
        "start_ns": [1_790_000_000 * 10**9 + step * 200_000_000 for _ in range(8) for step in range(40)],
        "duration_ns": [200_000_000] * 320,
    }
    source = write_spans(root / "spans", spans, layout={"dp": 8}, more={"steps": steps})
    rolled = with_rollups(source, root / "rollups", span_ranks=())
    both = (Workbench(source), Workbench(rolled))
    yield both
    for bench in both:
        bench.close()
        bench.store.close()


@pytest.mark.parametrize("which", [0, 1])
def test_shares_are_work_and_waiting(benches: tuple[Workbench, Workbench], which: int) -> None:
    bench = benches[which]
    meta, arrays = unpack(outline_payload(bench, bench.attempt(View()), View(axis="all")))
    assert (meta["width"], meta["source"]) == ((1, "spans"), (10, "rollups"))[which]
    share = arrays["share"].reshape(-1, len(KINDS))
    for rank, work_ms, waited_ms in ((0, 20, 11), (5, 30, 1)):
        own = share[arrays["rank"] == rank]
        assert len(own) == 40 / meta["width"]
        assert own[:, KINDS.index("compute")] == pytest.approx(work_ms / 200, rel=0.02)
        assert own[:, KINDS.index("collective")] == pytest.approx(waited_ms / 200, rel=0.02)
    assert meta["spans_per_step"] == 16
    assert (arrays["end"] - arrays["start"]) == pytest.approx(200e6 * meta["width"])
    assert arrays["first_step"].max() == 40 - meta["width"]


def test_a_long_run_is_shown_in_as_many_columns_as_a_screen_has(
    benches: tuple[Workbench, Workbench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(span_outline, "MOST_COLUMNS", 3)
    bench = Workbench(Store(benches[0].store.root))
    choice = choose_spans(View(), bench, bench.attempt(View()))
    meta, arrays = unpack(outline_payload(bench, bench.attempt(View()), View(axis="rank", rank=5)))
    assert meta["width"] == 14
    assert arrays["first_step"].tolist() == [0, 14, 28]
    assert arrays["last_step"].tolist() == [13, 27, 39]
    monkeypatch.setattr(span_outline, "MOST_SPANS", 10)
    meta, arrays = unpack(outline_payload(bench, bench.attempt(View()), View(axis="rank", rank=3)))
    assert meta["spans_per_step"] is None
    assert np.isnan(arrays["share"]).all(), "too many spans: only how long the steps took"
    monkeypatch.setattr(span_outline, "choose_spans", lambda *_: replace(choice, ranks=tuple(range(257))))
    with pytest.raises(UsageError, match="257 ranks; the timeline draws 256"):
        outline_payload(bench, bench.attempt(View()), View())
    bench.close()
    bench.store.close()
