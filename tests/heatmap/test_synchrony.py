"""Waiting that nobody timed: who only waits is never accused, and nobody is called healthy for want of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megascope.heatmap.cells import SegmentCells, total_work
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.synchrony import MeasuredWaiting
from megascope.heatmap.verdict import Outcome, StragglerVerdict
from support.span_store import Span, write_spans

STEPS = 40


def ddp(
    root: Path,
    ranks: int,
    slow: Callable[[int, int, str], float],
    *,
    timed: bool = False,
    sync_at_start: bool = False,
    hosts: dict[int, str] | None = None,
) -> StragglerVerdict:
    """A plain data-parallel job; ``slow`` gives the factor of (rank, step, segment).

    All ranks meet at the end of `backward` (or at the start of `forward`). That waiting lies inside the segment, or is
    ``timed`` as a collective of its own.
    """
    rng = np.random.default_rng(3)
    spans: list[Span] = []
    now = np.zeros(ranks)
    for step in range(STEPS):
        for segment, mean in (("data", 4.0), ("forward", 20.0), ("backward", 40.0)):
            factor = np.array([slow(rank, step, segment) for rank in range(ranks)])
            work = mean * rng.lognormal(0, 0.08, ranks) * factor
            waits = np.zeros(ranks)
            if segment == "forward" and sync_at_start:
                waits = now.max() - now
            elif segment == "backward" and not sync_at_start:
                waits = (now + work).max() - (now + work)
            for rank in range(ranks):
                kind = "data" if segment == "data" else "compute"
                own = float(work[rank]) if timed else None
                spans.append(Span(rank, step, segment, now[rank], float(work[rank] + waits[rank]), own, kind=kind))
                if timed and segment == "backward":
                    wait = float(waits[rank])
                    at = float(now[rank] + work[rank])
                    spans.append(Span(rank, step, "all_reduce", at, wait + 1, exposed_ms=wait + 1, kind="collective"))
            now = now + work + waits
    store = write_spans(root / "store", spans, layout={"dp": ranks}, hosts=hosts)
    return find_stragglers(store, store.attempt())


def named(verdict: StragglerVerdict) -> list[tuple[int, str]]:
    return [(rank, culprit.segment) for culprit in verdict.culprits for rank in culprit.ranks]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_forward_is_found_though_the_peers_backward_is_the_long_one(tmp_path: Path, ranks: int) -> None:
    verdict = ddp(tmp_path, ranks, lambda rank, step, segment: 1.6 if (rank, segment) == (1, "forward") else 1.0)
    assert named(verdict) == [(1, "forward")]
    assert verdict.culprits[0].ratio == pytest.approx(1.6, rel=0.1)
    assert verdict.culprits[0].confidence <= (0.6 if ranks == 2 else 1.0)


def test_a_slow_loader_does_not_make_the_peers_backward_slow(tmp_path: Path) -> None:
    verdict = ddp(tmp_path, 4, lambda rank, step, segment: 6.0 if (rank, segment) == (0, "data") else 1.0)
    assert named(verdict) == [(0, "data")]
    assert verdict.culprits[0].cause == "data-stall"


def test_of_two_ranks_one_may_load_for_both(tmp_path: Path) -> None:
    verdict = ddp(tmp_path, 2, lambda rank, step, segment: 6.0 if (rank, segment) == (0, "data") else 1.0)
    assert (verdict.verdict, named(verdict)) == (Outcome.INSUFFICIENT, [])
    assert any("loads for both" in one.reason for one in verdict.abstained)


def test_half_of_the_ranks_may_wait(tmp_path: Path) -> None:
    """Two of eight work longer; the six others take as much longer in backward, and are not accused of that."""
    verdict = ddp(tmp_path, 8, lambda rank, step, segment: 1.6 if rank < 2 and segment == "forward" else 1.0)
    assert sorted(named(verdict)) == [(0, "forward"), (1, "forward")]


def test_where_half_of_the_ranks_are_slow_no_victim_is_accused(tmp_path: Path) -> None:
    verdict = ddp(tmp_path, 4, lambda rank, step, segment: 1.6 if rank < 2 and segment == "forward" else 1.0)
    assert all(segment == "forward" and rank < 2 for rank, segment in named(verdict))
    assert verdict.verdict != Outcome.HEALTHY


def test_a_slow_backward_where_all_meet_at_the_next_forward(tmp_path: Path) -> None:
    """The same two long segments as with a slow forward, the other way round."""
    verdict = ddp(
        tmp_path, 2, lambda rank, step, segment: 1.6 if (rank, segment) == (1, "backward") else 1.0, sync_at_start=True
    )
    assert named(verdict) == [(1, "backward")]


def test_equal_times_with_hidden_waiting_are_not_healthy(tmp_path: Path) -> None:
    """+200 ms in one rank's backward, and all four ranks read 293 ms (traceml#252)."""
    verdict = ddp(tmp_path, 4, lambda rank, step, segment: 6.0 if (rank, segment) == (1, "backward") else 1.0)
    assert verdict.verdict == Outcome.INSUFFICIENT
    assert named(verdict) == []
    reasons = " ".join(one.reason for one in verdict.abstained)
    assert "backward" in reasons
    assert "unmeasured synchronisation" in reasons


def test_the_reported_totals_alone_are_not_healthy(tmp_path: Path) -> None:
    totals = (293.0, 292.2, 293.0, 293.1)
    spans = [Span(rank, step, "backward", step * 300, totals[rank]) for rank in range(4) for step in range(STEPS)]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 4})
    assert find_stragglers(store, store.attempt()).verdict == Outcome.INSUFFICIENT


def test_with_collectives_timed_the_slow_backward_is_named(tmp_path: Path) -> None:
    verdict = ddp(
        tmp_path, 4, lambda rank, step, segment: 6.0 if (rank, segment) == (1, "backward") else 1.0, timed=True
    )
    assert named(verdict) == [(1, "backward")]
    assert verdict.culprits[0].lost_share == pytest.approx(200 / 264, rel=0.15)


def test_with_collectives_timed_an_even_job_is_healthy(tmp_path: Path) -> None:
    assert ddp(tmp_path, 4, lambda rank, step, segment: 1.0, timed=True).verdict == Outcome.HEALTHY


def test_an_even_job_without_timed_collectives_names_nobody_and_is_not_healthy(tmp_path: Path) -> None:
    assert ddp(tmp_path, 4, lambda rank, step, segment: 1.0).verdict == Outcome.INSUFFICIENT


def test_without_aligned_clocks_nobody_is_accused_of_what_may_be_waiting(tmp_path: Path) -> None:
    hosts = {0: "a", 1: "b"}
    verdict = ddp(
        tmp_path, 2, lambda rank, step, segment: 1.6 if (rank, segment) == (1, "forward") else 1.0, hosts=hosts
    )
    assert verdict.verdict == Outcome.INSUFFICIENT
    assert any("clocks are not aligned" in one.reason for one in verdict.abstained)


def test_work_that_is_not_known_is_not_taken_for_none() -> None:
    """Half of the ranks' work is unknown: their waiting beside it says nothing about the others'."""
    rng = np.random.default_rng(1)
    work = 10 + rng.normal(0, 1, (8, 60))
    waits = 5 - (work - 10)
    work[1::2, ::2] = np.nan
    nothing = np.full(work.shape, np.nan)
    cells = SegmentCells(
        "forward", "compute", np.arange(8), np.arange(60), work[None], np.isfinite(work)[None].astype(float), nothing,
        nothing, 0,
    )  # fmt: skip
    assert MeasuredWaiting.of(waits, (cells,), np.zeros(8, np.int64)).accounts


def test_one_rank_whose_backward_was_not_measured_does_not_blind_its_stage() -> None:
    """Its forward alone is not its work: beside it, the waiting of the others still follows from their work."""
    rng = np.random.default_rng(2)
    forward, backward = 10 + rng.normal(0, 1, (8, 60)), 20 + rng.normal(0, 2, (8, 60))
    waits = 40 - forward - backward
    backward[3] = np.nan
    ranks, steps, roles = np.arange(8), np.arange(60), np.zeros(8, np.int64)
    cells = tuple(
        SegmentCells(name, "compute", ranks, steps, own[None], np.isfinite(own)[None].astype(float), own, own, 0)
        for name, own in (("forward", forward), ("backward", backward))
    )
    total = total_work(cells, roles)
    assert np.isnan(total[3]).all()
    np.testing.assert_allclose(np.delete(total, 3, axis=0), np.delete(forward + backward, 3, axis=0))
    measured = MeasuredWaiting.of(waits, cells, roles)
    assert measured.accounts
    assert all(measured.covers(one, roles) for one in cells)


def test_work_that_few_ranks_have_is_none_elsewhere() -> None:
    """Not every rank loads data, and no rank saves in every step."""
    nothing, forward, data = np.full((4, 3), np.nan), np.full((4, 3), 10.0), np.full((4, 3), np.nan)
    data[0] = 2.0
    cells = tuple(
        SegmentCells(
            name, kind, np.arange(4), np.arange(3), own[None], np.isfinite(own)[None] * 1.0, nothing, nothing, 0
        )
        for name, kind, own in (("forward", "compute", forward), ("data", "data", data))
    )
    np.testing.assert_array_equal(total_work(cells, np.zeros(4, np.int64)), [[12.0] * 3, *[[10.0] * 3] * 3])
