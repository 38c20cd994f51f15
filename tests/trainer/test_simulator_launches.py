"""When simulated hosts issue their work: in the order of the program, and as far ahead as they may be."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.scoring.trials import COSTS
from megascope.trainer.simulator.hangs.ahead import Lead
from megascope.trainer.simulator.hangs.gaps import Hardness
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate

SPANS = Recording(windows=False, span_ranks=None, heartbeat_s=0, clock_offsets=True)
IN_FLIGHT = 6


def spans_of(root: Path, lead: Lead, chunks: int = 1) -> dict[int, list[dict[str, Any]]]:
    """The spans of two ranks, one of each stage, of four steps of a job whose clocks are off."""
    job = SimulatedJob(
        layout={"pp": 2, "dp": 2, "tp": 2}, steps=4, seed=3, costs=COSTS, skew_ms=20, recv_ahead=0, chunks=chunks
    )
    simulate(job, root / "store", SPANS, hardness=Hardness(lead=lead))
    found: dict[int, list[dict[str, Any]]] = {0: [], 6: []}
    with Store(root / "store") as store:
        rows = store.query(
            "SELECT * FROM spans WHERE rank IN (0, 6) ORDER BY coalesce(enqueue_ns, start_ns)", attempt=store.attempt()
        )
        for row in rows.to_pylist():
            found[row["rank"]].append(row)
    return found


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("reads_results", [True, False])
def test_hosts_issue_in_order_and_ahead(tmp_path: Path, reads_results: bool, chunks: int) -> None:
    for rows in spans_of(tmp_path, Lead(IN_FLIGHT, reads_results), chunks).values():
        device = [row for row in rows if row["clock"] == "device"]
        assert {row["enqueue_ns"] for row in rows if row["clock"] == "host"} == {None}
        assert all(row["enqueue_ns"] <= row["start_ns"] for row in device)
        assert all(one["enqueue_ns"] < other["enqueue_ns"] for one, other in pairwise(device))
        assert [row["step"] for row in device] == sorted(row["step"] for row in device)
        for group in {row["group"] for row in device} - {None}:
            numbers = [row["sequence"] for row in device if row["group"] == group]
            assert numbers == sorted(numbers)
        operations = [row for row in device if row["kind"] in ("collective", "p2p")]
        under_way = [
            sum(other["start_ns"] + other["duration_ns"] > one["enqueue_ns"] for other in operations[:place])
            for place, one in enumerate(operations)
        ]
        assert IN_FLIGHT // 2 < max(under_way) <= IN_FLIGHT


def test_hosts_that_wait_for_each_operation_issue_it_when_it_begins(tmp_path: Path) -> None:
    for rows in spans_of(tmp_path, Lead()).values():
        assert {row["enqueue_ns"] for row in rows} == {None}
