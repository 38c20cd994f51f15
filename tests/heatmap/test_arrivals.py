"""Arrivals: lateness, waiting and transfer of each operation, no order finer than the clocks, blame to its origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.importers.importing import import_run
from megascope.collectors.reading.store import Store
from megascope.heatmap.network.arrivals import Arrivals, arrival_skew, last_arrivals, load_arrivals
from megascope.heatmap.network.origins import origins
from support.network_scenes import simulated

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Meeting:
    """One operation: who is there when (ms), and when it ends for all."""

    starts: dict[int, float]
    end: float
    step: int = 0


def arrivals_of(meetings: Sequence[Meeting], uncertainty_ms: float = 0.0) -> Arrivals:
    """Arrivals as they are loaded from a store, of operations written by hand."""
    sizes = [len(one.starts) for one in meetings]
    first = np.cumsum([0, *sizes[:-1]])
    operation = np.repeat(np.arange(len(meetings)), sizes)
    start = np.array([round(at * MS) for one in meetings for at in one.starts.values()], np.int64)
    end = np.array([round(one.end * MS) for one in meetings], np.int64)[operation]
    latest, earliest = np.maximum.reduceat(start, first)[operation], np.minimum.reduceat(start, first)[operation]
    count = len(start)
    return Arrivals(
        rank=np.array([rank for one in meetings for rank in one.starts], np.int64), operation=operation, start_ns=start,
        duration_ns=end - start, exposed_ns=np.full(count, np.nan), uncertainty_ns=np.full(count, uncertainty_ms * MS),
        wait_ns=(latest - start).astype(float), late_ns=(start - earliest).astype(float),
        transfer_ns=(end - latest).astype(float), first=first, size=np.array(sizes),
        by_clock=np.ones(len(meetings), bool), step=np.array([one.step for one in meetings]),
        group=np.zeros(len(meetings), np.int64), sequence=np.arange(len(meetings)), segment=("all_reduce",),
        segment_of=np.zeros(len(meetings), np.int64),
    )  # fmt: skip


def test_lateness_waiting_and_transfer_are_told_apart() -> None:
    (row,) = last_arrivals(arrivals_of([Meeting({0: 1.0, 1: 4.0, 2: 9.0}, 11.0)])).to_pylist()
    assert (row["last_rank"], row["ranks"]) == (2, 3)
    found = [row[name] / MS for name in ("skew_ns", "ahead_ns", "waiting_ns", "transfer_ns", "longest_ns")]
    assert found == [8.0, 5.0, 13.0, 2.0, 10.0]


@pytest.mark.parametrize(("uncertainty_ms", "last"), [(2.0, 2), (2.6, None)])
def test_no_order_finer_than_the_uncertainty_is_claimed(uncertainty_ms: float, last: int | None) -> None:
    (row,) = last_arrivals(arrivals_of([Meeting({0: 1.0, 1: 4.0, 2: 9.0}, 11.0)], uncertainty_ms)).to_pylist()
    assert row["last_rank"] == last


def test_blame_goes_on_to_whom_the_last_had_waited_for() -> None:
    """Rank 0 is 10 ms late by itself. Rank 1 waits for it, and therefore comes late to rank 2, as rank 2 to rank 3."""
    meetings = [
        Meeting({0: 10.0, 1: 0.0}, 11.0),
        Meeting({1: 11.0, 2: 1.0}, 12.0),
        Meeting({2: 12.0, 3: 2.0}, 13.0),
    ]
    table = origins(arrivals_of(meetings))
    assert table is not None
    by_rank = {row["rank"]: row for row in table.to_pylist()}
    assert by_rank[0]["origin_ms"] == pytest.approx(30.0)
    assert by_rank[0]["origin_share"] == pytest.approx(1.0)
    assert (by_rank[1]["last_ms"], by_rank[1]["origin_ms"]) == (pytest.approx(10.0), pytest.approx(0.0))
    assert by_rank[3]["waited_ms"] == pytest.approx(10.0)


def test_who_is_later_than_its_waiting_explains_keeps_the_rest() -> None:
    """Rank 1 waits 4 ms for rank 0, and then takes 6 ms of its own beyond rank 2."""
    meetings = [Meeting({0: 4.0, 1: 0.0}, 4.5), Meeting({1: 11.0, 2: 1.0}, 12.0)]
    table = origins(arrivals_of(meetings))
    assert table is not None
    found = {row["rank"]: row["origin_ms"] for row in table.to_pylist()}
    assert found == {0: pytest.approx(4.0 + 4.0), 1: pytest.approx(6.0), 2: pytest.approx(0.0)}


def test_who_cannot_be_told_apart_shares_the_blame() -> None:
    """Ranks 1 and 2 come within the uncertainty of their clocks; rank 0 waits 8 ms for one of them."""
    table = origins(arrivals_of([Meeting({0: 1.0, 1: 8.5, 2: 9.0}, 11.0)], uncertainty_ms=0.3))
    assert table is not None
    found = {row["rank"]: row["origin_ms"] for row in table.to_pylist()}
    assert found == {0: pytest.approx(0.0), 1: pytest.approx(4.25), 2: pytest.approx(4.25)}


def test_waits_of_an_earlier_step_explain_nothing() -> None:
    meetings = [Meeting({0: 10.0, 1: 0.0}, 11.0), Meeting({1: 31.0, 2: 21.0}, 32.0, step=1)]
    table = origins(arrivals_of(meetings))
    assert table is not None
    assert {row["rank"]: row["origin_ms"] * 2 for row in table.to_pylist()}[1] == pytest.approx(10.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), st.integers(0, 2**20))
def test_blame_is_neither_made_nor_lost(ranks: int, count: int, seed: int) -> None:
    """However operations are chained, all waiting is somebody's: the origins' sum is the sum of all waits."""
    random = np.random.default_rng(seed)
    free, meetings = np.zeros(ranks), []
    for _ in range(count):
        members = random.permutation(ranks)[: random.integers(2, ranks + 1)]
        starts = {int(rank): float(free[rank] + random.exponential(5)) for rank in members}
        end = max(starts.values()) + float(random.exponential(2)) + 0.01
        free[members] = end
        meetings.append(Meeting(starts, end))
    table = origins(arrivals_of(meetings))
    assert table is not None
    assert sum(table["origin_ms"].to_pylist()) == pytest.approx(sum(table["waited_ms"].to_pylist()))
    assert min(table["origin_ms"].to_pylist()) >= -1e-9


def test_a_slow_rank_is_the_origin_though_its_group_is_late_with_it(tmp_path: Path) -> None:
    """Rank 13 and its tensor-parallel partner 12 come equally late to the data-parallel groups of both."""
    with simulated(tmp_path / "store", "slow-gpu:rank=13:factor=1.5:segment=forward", steps=12) as store:
        arrivals = load_arrivals(store, store.attempt())
        assert arrivals is not None
        table = origins(arrivals)
        assert table is not None
        first, second = table.slice(0, 2).to_pylist()
        assert first["rank"] == 13
        assert first["origin_ms"] > 3 * second["origin_ms"]
        assert sum(table["origin_ms"].to_pylist()) == pytest.approx(sum(table["waited_ms"].to_pylist()))


def test_skew_is_reported_apart_from_the_transfer(tmp_path: Path) -> None:
    """A spread of arrivals (Megatron-LM#742) lengthens the span around a collective, and not its transfer."""
    found = {}
    for name, fault in (("even", ""), ("spread", "data-stall:rank=3:delay_ms=200")):
        with simulated(tmp_path / name, fault, steps=8) as store:
            arrivals = load_arrivals(store, store.attempt(), (2, 7))
            assert arrivals is not None
            found[name] = {row["segment"]: row for row in arrival_skew(arrivals).to_pylist()}["dp_reduce_scatter"]
    assert found["spread"]["skew_ms"] > found["even"]["skew_ms"] + 100
    assert found["spread"]["longest_ms"] > found["even"]["longest_ms"] + 100
    assert found["spread"]["transfer_ms"] == pytest.approx(found["even"]["transfer_ms"], rel=0.2)


def test_the_last_arrivals_of_a_real_job(tmp_path: Path, traces: Path) -> None:
    """Eight Kineto traces of one step: rank 7 is last in collectives 0 to 4, rank 5 in 5 and 6, rank 4 in 7."""
    import_run([traces / "kineto" / "dlrm_kineto.tar.gz"], tmp_path / "store")
    with Store(tmp_path / "store") as store:
        arrivals = load_arrivals(store, store.attempt())
        assert arrivals is not None
        rows = last_arrivals(arrivals).sort_by("sequence").to_pylist()
        assert [row["last_rank"] for row in rows] == [7, 7, 7, 7, 7, 5, 5, 4]
        assert max(row["skew_ns"] for row in rows) == pytest.approx(7.6 * MS, rel=0.01)
        blamed = origins(arrivals)
        assert blamed is not None
        assert blamed["rank"][0].as_py() == 7


def test_without_clocks_the_shortest_span_is_the_last_to_arrive(tmp_path: Path) -> None:
    """The same operations, with and without aligned clocks: durations give the same last rank."""
    with simulated(tmp_path / "store", "slow-gpu:rank=13:factor=1.6", steps=6) as store:
        arrivals = load_arrivals(store, store.attempt())
        assert arrivals is not None
        table = last_arrivals(arrivals)
        shortest = arrivals.rank[np.lexsort((arrivals.duration_ns, arrivals.operation))[arrivals.first]]
        last = np.array([-1 if rank is None else rank for rank in table["last_rank"].to_pylist()])
        sure = (last >= 0) & (table["ahead_ns"].to_numpy() > 0.2 * MS)
        assert sure.sum() > 100
        assert (last[sure] == shortest[sure]).mean() > 0.99
