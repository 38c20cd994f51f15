"""Several hosts: slow ones are one finding, and what their clocks do not tell is not claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.clocks.clocks import HostClock
from megascope.heatmap.cells import SegmentCells
from megascope.heatmap.clocks import RankClocks, load_rank_clocks
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.synchrony import Lateness, hides_waiting, leaves_late, measure_lateness
from megascope.heatmap.verdict import Cause, Outcome, StragglerVerdict
from support.span_store import FIRST_NS, MS, Span, meeting, write_spans

STEPS = 40


def ddp(
    root: Path, slow: Mapping[tuple[int, str], float], ranks: int = 2, *, error_ms: float = 0, **clock: Any
) -> StragglerVerdict:
    """All meet at the end of backward, which nobody timed; then one short collective is timed.

    Every rank is on a host of its own; the clock of the first is ``error_ms`` ahead.
    """
    rng = np.random.default_rng(3)
    spans: list[Span] = []
    now = np.zeros(ranks)
    for step in range(STEPS):
        for segment, mean in (("forward", 20.0), ("backward", 40.0)):
            work = mean * rng.lognormal(0, 0.05, ranks) * [slow.get((rank, segment), 1.0) for rank in range(ranks)]
            waits = (now + work).max() - (now + work) if segment == "backward" else np.zeros(ranks)
            for rank in range(ranks):
                at = float(now[rank]) + (error_ms if rank == 0 else 0)
                spans.append(Span(rank, step, segment, at, float(work[rank] + waits[rank])))
            now = now + work + waits
        for rank in range(ranks):
            at = float(now[rank]) + (error_ms if rank == 0 else 0)
            spans.append(Span(rank, step, "loss_all_reduce", at, 0.2, exposed_ms=0.2, kind="collective"))
        now = now + 0.2
    hosts = {rank: f"node{rank}" for rank in range(ranks)}
    more = {"clock_offsets": offsets(ranks, **clock)} if clock else None
    store = write_spans(root / "store", spans, layout={"dp": ranks}, hosts=hosts, more=more)
    return find_stragglers(store, store.attempt())


def offsets(
    ranks: int, *, uncertainty_ms: float | None, offset_ms: float = 0, drift_ppb: float = 0
) -> dict[str, Sequence[Any]]:
    return {
        "host": [f"node{rank}" for rank in range(ranks)],
        "moment_ns": [FIRST_NS] * ranks,
        "offset_ns": [round(offset_ms * MS), *[0] * (ranks - 1)],
        "drift_ppb": [drift_ppb, *[0.0] * (ranks - 1)],
        "uncertainty_ns": [None if uncertainty_ms is None else round(uncertainty_ms * MS)] * ranks,
    }


def named(verdict: StragglerVerdict) -> list[tuple[int, str]]:
    return [(rank, culprit.segment) for culprit in verdict.culprits for rank in culprit.ranks]


SLOW_FORWARD = {(1, "forward"): 1.6}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("slow", [SLOW_FORWARD, {(1, "backward"): 6.0}, {(0, "forward"): 1.6, (1, "forward"): 1.6}])
def test_with_unknown_clocks_nobody_is_accused_and_nobody_healthy(
    tmp_path: Path, ranks: int, slow: dict[tuple[int, str], float]
) -> None:
    verdict = ddp(tmp_path, slow, ranks)
    assert (verdict.verdict, named(verdict)) == (Outcome.INSUFFICIENT, [])
    assert any("clocks are not aligned finely enough" in one.reason for one in verdict.abstained)


@pytest.mark.parametrize("error_ms", [0, 10, 20])
def test_clocks_that_are_less_sure_than_the_delay_accuse_nobody(tmp_path: Path, error_ms: float) -> None:
    verdict = ddp(tmp_path, SLOW_FORWARD, error_ms=error_ms, uncertainty_ms=25.0)
    assert named(verdict) == []


@pytest.mark.parametrize("error_ms", [0, 10, 20])
def test_clocks_that_are_sure_tell_who_is_slow_and_who_waits(tmp_path: Path, error_ms: float) -> None:
    verdict = ddp(tmp_path, SLOW_FORWARD, error_ms=error_ms, uncertainty_ms=0.1, offset_ms=-error_ms)
    assert named(verdict) == [(1, "forward")]


def test_an_offset_without_its_uncertainty_is_no_clock(tmp_path: Path) -> None:
    assert named(ddp(tmp_path, SLOW_FORWARD, uncertainty_ms=None)) == []


def test_drift_is_applied() -> None:
    hosts = (HostClock.at(10**9, 0, 0.0, 0), HostClock.at(10**9, 5, 1000.0, 0))
    clocks = RankClocks(hosts, np.zeros(2))
    times = np.array([[0.0, 1e9], [0.0, 1e9]])
    expected = [[0.0, 1e9], [5.0 + 1000, 1e9 + 5.0 + 2000]]
    np.testing.assert_allclose(clocks.aligned_ns(times, 2 * 10**9), expected, atol=0.01)


def test_uncertainty_is_that_of_both_hosts(tmp_path: Path) -> None:
    rows = {**offsets(3, uncertainty_ms=1.0), "uncertainty_ns": [1, 20, 300]}
    spans = [Span(rank, 0, "forward", 0, 1.0) for rank in range(3)]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 3}, more={"clock_offsets": rows})
    clocks = load_rank_clocks(store, store.attempt(), ["node0", "node1", "node2", "elsewhere"])
    np.testing.assert_array_equal(clocks.uncertainty_ns, [301, 320, 320, np.nan])
    assert load_rank_clocks(store, store.attempt(), ["here"] * 2).uncertainty_ns.tolist() == [0, 0]


def test_lateness_below_its_uncertainty_is_not_known() -> None:
    late = np.array([[2.0] * 30, [-2.0] * 30])

    def lateness(uncertainty_ms: float) -> Lateness:
        return Lateness(late, late, np.full(2, uncertainty_ms))

    assert lateness(0.5).is_known
    assert not lateness(1.5).is_known
    assert not lateness(np.nan).is_known
    assert leaves_late(lateness(0.5), 0, slice(None), 2.0) is True
    assert leaves_late(lateness(0.5), 1, slice(None), 2.0) is False
    assert leaves_late(lateness(1.5), 0, slice(None), 2.0) is None


def test_whether_waiting_is_hidden_is_not_known_without_clocks() -> None:
    times = np.full((1, 2, 30), 10.0)
    starts = np.cumsum(np.full((2, 30), 1e7), axis=1)
    ranks, columns = np.arange(2), np.arange(30)
    cells = SegmentCells("backward", "compute", ranks, columns, times, np.ones_like(times), starts, starts + 1e7, 0)
    roles, unknown = np.zeros(2, np.int64), np.full(2, np.nan)
    lateness = measure_lateness(cells, roles, RankClocks((None, None), unknown))
    assert hides_waiting(cells, roles, lateness) is None


def uneven(rng: np.random.Generator, mean: float) -> float:
    return float(mean * rng.lognormal(0, 0.03))


def test_a_host_is_slow_though_its_ranks_lose_most_at_different_segments(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    spans: list[Span] = []
    for step in range(STEPS):
        busy = np.zeros(16)
        for rank in range(16):
            for segment in ("forward", "backward"):
                more = 1.02 if (rank % 2) == (segment == "forward") else 1.0
                took = uneven(rng, 20 * more * (1.4 if rank // 4 == 1 else 1.0))
                spans.append(Span(rank, step, segment, step * 200 + float(busy[rank]), took))
                busy[rank] += took
        for rank in range(16):
            waits = float(busy.max() - busy[rank]) + 1
            at = step * 200 + float(busy[rank])
            spans.append(Span(rank, step, "all_reduce", at, waits, exposed_ms=waits, kind="collective"))
    hosts = {rank: f"node{rank // 4}" for rank in range(16)}
    store = write_spans(tmp_path / "store", spans, layout={"dp": 16}, hosts=hosts)
    [culprit] = find_stragglers(store, store.attempt()).culprits
    assert (culprit.kind, culprit.ranks, culprit.hosts) == ("host", (4, 5, 6, 7), ("node1",))


def test_a_host_that_holds_a_whole_stage_cannot_be_judged(tmp_path: Path) -> None:
    """Its ranks are only compared with each other: as slow as one another, and nobody can call that healthy."""
    rng = np.random.default_rng(2)
    work = meeting(8, STEPS, lambda rank, step: uneven(rng, 32.0 if rank >= 4 else 20.0))
    layout, split = {"pp": 2, "dp": 4}, {rank: f"node{rank // 4}" for rank in range(8)}
    store = write_spans(tmp_path / "split", work, layout=layout, hosts=split)
    verdict = find_stragglers(store, store.attempt())
    assert verdict.verdict == Outcome.INSUFFICIENT
    reasons = [one.reason for one in verdict.abstained if one.signal == "hosts"]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "stage 0 runs on node0 alone",
        "stage 1 runs on node1 alone",
    ]
    store = write_spans(tmp_path / "one", work, layout=layout)  # on one machine it can only be the stage
    assert [(one.cause, one.ranks) for one in find_stragglers(store, store.attempt()).culprits] == [
        (Cause.UNEVEN_STAGES, ())
    ]


def test_spans_without_steps_say_that_no_step_was_marked(tmp_path: Path) -> None:
    spans = [Span(rank, None, "forward", at * 20.0, 10.0) for rank in range(2) for at in range(40)]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 2})
    verdict = find_stragglers(store, store.attempt())
    assert verdict.verdict == Outcome.INSUFFICIENT
    assert verdict.sentence().startswith("Not enough evidence to judge: no step was marked: the 80 spans")
