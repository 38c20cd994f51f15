"""Equal times that hide a slow rank: its collectives tell, where they are timed; else nobody is called healthy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.network.frontier import find_frontiers, frontier_blame
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, Outcome
from support.network_scenes import ROLLUPS, SPANS, simulated
from support.span_store import Span, write_spans

STEPS = 40


def reducer_inside(root: Path, own_ms: Callable[[int], float], *, exposed: bool, ranks: int = 4) -> Store:
    """A data-parallel job whose reducer runs inside ``backward``, of which all ranks therefore read the same time."""
    random, spans = np.random.default_rng(1), []
    for step in range(STEPS):
        own = np.array([own_ms(rank) for rank in range(ranks)]) + random.normal(0, 0.5, ranks)
        end, at = float(own.max()) + 11.0, step * 330.0
        for rank in range(ranks):
            began, took = at + float(own[rank]), end - float(own[rank])
            spans.append(Span(rank, step, "backward", at, end))
            spans.append(
                Span(rank, step, "all_reduce", began, took, exposed_ms=took if exposed else None, kind="collective")
            )
    return write_spans(root, spans, layout={"dp": ranks})


@pytest.mark.parametrize("exposed", [True, False])
def test_a_rank_is_named_by_its_collectives_where_all_backwards_are_equal(tmp_path: Path, exposed: bool) -> None:
    """+200 ms in rank 1's backward, and all four ranks read 293 ms (traceml#252)."""
    with reducer_inside(tmp_path, lambda rank: 282.0 if rank == 1 else 82.0, exposed=exposed) as store:
        totals = store.query(
            "SELECT rank, median(duration_ns) / 1e6 AS ms FROM spans WHERE kind = 'compute' GROUP BY 1"
        )
        assert totals["ms"].to_pylist() == pytest.approx([293.0] * 4, abs=1.0)
        verdict = find_stragglers(store, store.attempt())
        (culprit,) = verdict.culprits
        assert (culprit.ranks, culprit.segment, culprit.cause) == ((1,), "backward", Cause.SLOW_COMPUTE)
        assert culprit.ratio == pytest.approx(282 / 82, rel=0.05)
        assert culprit.lost_share == pytest.approx(200 / 293, rel=0.05)
        for one in culprit.evidence:
            assert one.value == pytest.approx(store.query(one.sql).column(0)[0].as_py())


def test_even_ranks_with_a_reducer_inside_accuse_nobody(tmp_path: Path) -> None:
    with reducer_inside(tmp_path, lambda rank: 82.0, exposed=False) as store:
        assert find_stragglers(store, store.attempt()).culprits == ()


@pytest.mark.parametrize("exposed_ms", [0.0, None])
def test_who_starts_late_beside_an_asynchronous_collective_does_not_compute_slowly(
    tmp_path: Path, exposed_ms: float | None
) -> None:
    """All work for 100 ms; rank 1 begins 40 ms late, so that its collective overlaps for a shorter time."""
    random, spans = np.random.default_rng(2), []
    for step in range(STEPS):
        at = step * 300.0
        for rank in range(4):
            late, work = 40.0 if rank == 1 else 0.0, 100.0 + float(random.normal(0, 0.5))
            begun = at + late + 50.0
            spans.append(Span(rank, step, "backward", at + late, work))
            took = at + 95.0 - begun
            spans.append(
                Span(rank, step, "all_reduce", begun, took, self_ms=0.0, exposed_ms=exposed_ms, kind="collective")
            )
    with write_spans(tmp_path, spans, layout={"dp": 4}) as store:
        assert find_stragglers(store, store.attempt()).culprits == ()


def test_half_of_the_ranks_are_not_accused(tmp_path: Path) -> None:
    """Which half is the usual one cannot be told."""
    with reducer_inside(tmp_path, lambda rank: 282.0 if rank < 2 else 82.0, exposed=False) as store:
        verdict = find_stragglers(store, store.attempt())
        assert verdict.culprits == ()
        assert verdict.verdict != Outcome.HEALTHY


@pytest.mark.parametrize("recording", [SPANS, ROLLUPS], ids=["spans", "rollups"])
def test_the_frontier_blames_the_slow_rank_without_clocks(tmp_path: Path, recording: object) -> None:
    fault = "slow-gpu:rank=13:factor=1.5:segment=forward"
    with simulated(tmp_path / "store", fault, recording=SPANS if recording is SPANS else ROLLUPS) as store:
        frontiers = find_frontiers(observe(store, store.attempt()))
        assert [one.role for one in frontiers] == [0, 1]
        assert frontiers[0].segments.index("forward") < frontiers[0].segments.index("backward")
        first = frontier_blame(frontiers).to_pylist()[0]
        assert (first["stage"], first["segment"], first["rank"]) == (0, "forward", 13)
        assert first["steps_led"] > 0.95
        assert first["excess_ms"] == pytest.approx(4 * 5.0, rel=0.15)


def test_advances_of_the_frontier_add_up_to_the_slowest_rank(tmp_path: Path) -> None:
    with simulated(tmp_path / "store", steps=8) as store:
        seen = observe(store, store.attempt())
        work = np.nansum(np.stack([one.per_step_ms() for one in seen.cells]), axis=0)
        roles = seen.placement.roles(seen.ranks)
        frontiers = find_frontiers(seen)
        for one in frontiers:
            assert one.advance_ms.sum(axis=0) == pytest.approx(work[roles == one.role].max(axis=0))
        blame = frontier_blame(frontiers).to_pylist()
        for one in frontiers:
            total = sum(row["advance_ms"] for row in blame if row["stage"] == one.role)
            assert total == pytest.approx(one.advance_ms.sum(axis=0).mean())
