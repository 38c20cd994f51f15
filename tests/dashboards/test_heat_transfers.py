"""Transfers on the Heatmap: what an operation took once all had arrived, the same for all of its members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.binary import unpack
from megascope.dashboards.heat.data import choose, matrix_of
from megascope.dashboards.heat.export import heat_sql
from megascope.dashboards.heat.payload import heat_payload
from megascope.dashboards.heat.transfers import TRANSFER, transfer_matrix
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import group_id
from support.network_scenes import ROLLUPS, simulated

STEPS, MS = 6, 1_000_000
PAIRS = ((0, 1), (2, 3))
TOOK_MS = {0: 4.0, 1: 10.0}
"""Transfers of the two groups; in each, one rank arrives so much later than the other."""

LATE_MS = 7.0
SENT_MS = 2.5
FORWARD, REDUCE, SEND, RECEIVE = 1, 2, 3, 4
NAMES = {FORWARD: "forward", REDUCE: "tp_all_reduce", SEND: "send_forward", RECEIVE: "recv_forward"}
KINDS = {FORWARD: "compute", REDUCE: "collective", SEND: "p2p", RECEIVE: "p2p"}


def rows_of_steps() -> list[dict[str, Any]]:
    """Two groups that reduce, with rank 0 and 3 late; rank 0 sends to 2, which waits for it."""
    rows = []
    for step in range(STEPS):
        for number, ranks in enumerate(PAIRS):
            for rank in ranks:
                late = LATE_MS if rank in (0, 3) else 0.0
                whole = TOOK_MS[number] + LATE_MS - late
                rows.append(row(rank, step, REDUCE, late, whole, group=group_id("tp", ranks), sequence=2 * step))
        between = {"group": group_id("pp", (0, 2)), "sequence": step}
        rows.append(row(0, step, SEND, 40, SENT_MS, peer=2, **between))
        rows.append(row(2, step, RECEIVE, 30, 10 + SENT_MS, peer=0, **between))
        rows += [row(rank, step, FORWARD, 20, 9.0) for rank in range(4)]
    return rows


def row(rank: int, step: int, segment: int, start_ms: float, took_ms: float, **more: Any) -> dict[str, Any]:
    start, took = round((step * 100 + start_ms) * MS), round(took_ms * MS)
    known = {"rank": rank, "step": step, "segment": segment, "start_ns": start, "duration_ns": took, "self_ns": took}
    return {"group": None, "sequence": None, "peer": None, "status": "ok", "clock": "host"} | known | more


def write(root: Path, rows: list[dict[str, Any]]) -> Path:
    groups = [("tp", ranks) for ranks in PAIRS] + [("pp", (0, 2))]
    with TableWriter(root, "test") as writer:
        writer.write("events", "run", 0, {name: [one[name] for one in rows] for name in rows[0]})
        writer.write("segments", "run", 0, {
            "segment": list(NAMES), "name": list(NAMES.values()), "kind": list(KINDS.values()),
        })  # fmt: skip
        writer.write("groups", "run", 0, {
            "group": [group_id(kind, ranks) for kind, ranks in groups], "kind": [kind for kind, _ in groups],
            "ranks": [list(ranks) for _, ranks in groups],
        })  # fmt: skip
        writer.write("ranks", "run", 0, {"rank": list(range(4)), "host": ["a", "a", "b", "b"]})
        writer.commit()
    return root


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("transfers") / "store", rows_of_steps())


@pytest.fixture
def bench(written: Path) -> Iterator[Workbench]:
    with Store(written) as store:
        bench = Workbench(store)
        yield bench
        bench.close()


def test_who_waits_and_who_is_late_have_the_same_transfer(bench: Workbench) -> None:
    view = View(segment="tp_all_reduce", metric=TRANSFER)
    meta, arrays = unpack(heat_payload(bench, bench.attempt(View()), view))
    assert (meta["metric"], meta["unit"]) == ("transfer", "ms")
    values = arrays["value"].reshape(4, STEPS)
    np.testing.assert_allclose(values, np.repeat([[4.0], [4.0], [10.0], [10.0]], STEPS, axis=1))
    choice = choose(view, bench, bench.attempt(View()))
    assert not choice.is_waiting, "the longest comes first"


@pytest.mark.parametrize("segment", ["send_forward", "recv_forward"])
def test_both_ends_of_a_message_meet(bench: Workbench, segment: str) -> None:
    found = transfer_matrix(bench.store, bench.attempt(View()), segment)
    rank = 0 if segment == "send_forward" else 2
    np.testing.assert_allclose(found.values[rank], np.full(STEPS, SENT_MS))
    assert np.isnan(np.delete(found.values, rank, axis=0)).all()


def test_the_chosen_steps_alone_are_read_and_the_query_gives_the_same(bench: Workbench) -> None:
    attempt, view = bench.attempt(View()), View(segment="tp_all_reduce", metric=TRANSFER, steps=(2, 4))
    choice = choose(view, bench, attempt)
    matrix = matrix_of(bench, attempt, choice)
    assert matrix.steps.tolist() == [2, 3, 4]
    answer = run_sql(bench.store, heat_sql(bench, attempt, choice)).table.to_pylist()
    got = {(one["rank"], one["step"]): one["value"] for one in answer}
    assert got == {(rank, step): TOOK_MS[rank // 2] for rank in range(4) for step in (2, 3, 4)}


def test_an_operation_of_which_a_member_is_missing_is_left_out(tmp_path: Path) -> None:
    rows = [one for one in rows_of_steps() if not (one["rank"] == 3 and one["step"] == 1 and one["segment"] == REDUCE)]
    with Store(write(tmp_path, rows)) as store:
        found = transfer_matrix(store, store.attempt(), "tp_all_reduce")
        assert np.isnan(found.values[2, 1]), "nobody knows when rank 3 arrived"
        assert np.isfinite(np.delete(found.values[:3], 1, axis=1)).all()
        assert np.isfinite(found.values[:2]).all()


def test_of_compute_it_is_said_that_there_is_none(bench: Workbench) -> None:
    with pytest.raises(MegascopeError, match="forward has no transfers in these steps: they are known of communicat"):
        heat_payload(bench, bench.attempt(View()), View(segment="forward", metric=TRANSFER))


def test_rollups_do_not_have_them_and_the_page_says_so(tmp_path: Path) -> None:
    with simulated(tmp_path / "s", recording=ROLLUPS, layout={"dp": 2, "tp": 2}, steps=20) as store:
        bench = Workbench(store)
        attempt, view = store.attempt(), View(segment="dp_reduce_scatter", metric=TRANSFER)
        with pytest.raises(MegascopeError, match=r"they take raw spans, and no raw spans\. Choose"):
            heat_payload(bench, attempt, view)
        assert "The members of a group have its transfers alike" in str(PAGE.body(view, bench).children)
        bench.close()


def test_a_slow_link_shows_in_the_transfers_of_its_groups_alone(tmp_path: Path) -> None:
    with simulated(tmp_path / "s", "degraded-nic:host=1:bandwidth=0.25", steps=12) as store:
        found = transfer_matrix(store, store.attempt(), "dp_reduce_scatter")
        [touched] = store.query("SELECT DISTINCT pp FROM ranks WHERE host = 'node0001'")["pp"].to_pylist()
        placed = store.query("SELECT rank, pp FROM ranks ORDER BY rank")["pp"].to_numpy()
    is_slow = placed == touched
    assert is_slow.sum() == len(is_slow) / 2
    assert np.median(found.values[is_slow]) == pytest.approx(4 * np.median(found.values[~is_slow]), rel=0.15)
