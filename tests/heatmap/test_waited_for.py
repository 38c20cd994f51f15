"""Who was waited for: rows of the report, by clocks where these can be compared, else by the frontier."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from megascope.collectors.reading.store import Store
from megascope.heatmap.network.arrivals import load_arrivals
from megascope.heatmap.network.origins import origins
from megascope.heatmap.network.waited_for import MOST_ROWS, waited_for
from megascope.heatmap.observations import observe
from megascope.heatmap.report import render
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import to_json
from megascope.heatmap.waited_row import WaitedBasis
from megascope.trainer.simulator.session import Recording
from support.network_scenes import ROLLUPS, SPANS, simulated

FAULT = "slow-gpu:rank=13:factor=1.6"
LAYOUT = {"pp": 2, "dp": 8}


@pytest.mark.parametrize(
    ("recording", "basis"), [(SPANS, WaitedBasis.ONE_CLOCK), (ROLLUPS, WaitedBasis.FRONTIER)], ids=["spans", "rollups"]
)
def test_the_slow_rank_is_the_one_that_was_waited_for(tmp_path: Path, recording: Recording, basis: WaitedBasis) -> None:
    with simulated(tmp_path / "store", FAULT, recording=recording, layout=LAYOUT, gpus_per_host=16) as store:
        verdict = find_stragglers(store, store.attempt())
        rows = verdict.arrivals
        assert 0 < len(rows) <= MOST_ROWS
        assert {row.basis for row in rows} == {basis}
        assert rows[0].rank == 13
        told = json.loads(json.dumps(to_json(verdict)))["arrivals"][0]
        assert (told["rank"], told["basis"]) == (13, str(basis))
        console = Console(width=120, record=True)
        console.print(render(verdict))
        assert f"Who was waited for ({basis}, {rows[0].steps} steps)" in console.export_text()


@pytest.mark.parametrize("recording", [SPANS, ROLLUPS], ids=["spans", "rollups"])
def test_of_an_even_job_nothing_is_told(tmp_path: Path, recording: Recording) -> None:
    """Though the ranks of a pipeline always wait."""
    with simulated(tmp_path / "store", recording=recording, layout=LAYOUT, gpus_per_host=16) as store:
        assert find_stragglers(store, store.attempt()).arrivals == ()


def test_only_the_steps_of_the_finding_are_looked_at(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", FAULT, layout=LAYOUT, gpus_per_host=16) as store:
        attempt = store.attempt()
        rows = waited_for(store, attempt, observe(store, attempt), (20, 24))
        assert [row.steps for row in rows] == [5] * len(rows)


def test_an_operation_without_the_span_of_a_member_is_left_out(tmp_path: Path) -> None:
    """That member may have been the last to arrive."""
    with simulated(tmp_path / "store", layout=LAYOUT, gpus_per_host=16, steps=12) as store:
        arrivals = load_arrivals(store, store.attempt())
        assert arrivals is not None
        groups = store.query('SELECT "group", len(ranks) AS size FROM groups').to_pylist()
        sizes = {row["group"]: row["size"] for row in groups}
        for group, size, segment in zip(arrivals.group, arrivals.size, arrivals.segment_of, strict=True):
            pair = arrivals.segment[segment].startswith("send_")
            assert size == (2 if pair else sizes[int(group)])


def test_blame_of_a_long_record_is_as_that_of_a_short_one(tmp_path: Path) -> None:
    """Ten days later is no other blame."""
    with simulated(tmp_path / "store", FAULT, layout=LAYOUT, gpus_per_host=16, steps=12) as store:
        short = _arrivals_after(store, 0)
        assert short.equals(_arrivals_after(store, 10 * 86_400 * 10**9 * 300))


def _arrivals_after(store: Store, pause_ns: int) -> pa.Table:
    """Origins, with a pause in the middle of the record."""
    arrivals = load_arrivals(store, store.attempt())
    assert arrivals is not None
    later = arrivals.step[arrivals.operation] >= 6
    arrivals.start_ns[:] += np.where(later, pause_ns, 0)
    table = origins(arrivals)
    assert table is not None
    return table
