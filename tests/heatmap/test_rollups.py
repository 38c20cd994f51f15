"""Rollups instead of spans: the same numbers, the same culprits, and it is said which of the two was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.manifests.manifest import Pruned
from megascope.collectors.reading.store import Store
from megascope.heatmap import observations as observations_module
from megascope.heatmap import source as source_module
from megascope.heatmap.matrix import load_placement, segment_matrix, segments_available
from megascope.heatmap.observations import observe
from megascope.heatmap.source import Source, choose_source
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Outcome
from megascope.heatmap.windows import grid_percentile, rank_segments, segment_ids
from megascope.heatmap.worst import worst_ranks
from megascope.profiler.errors import UsageError
from support.rollup_store import with_rollups
from support.span_store import meeting, write_spans

RANKS, STEPS, SLOW_RANK, SLOW_FROM = 8, 160, 5, 60


NOISE = np.exp(0.03 * np.random.default_rng(5).standard_normal((RANKS, STEPS)))


def even_ms(rank: int, step: int) -> float:
    """Work up and down by 3 % between steps."""
    return float(20 * NOISE[rank, step])


def work_ms(rank: int, step: int) -> float:
    """The same, but one rank takes x1.5 from a step on."""
    return even_ms(rank, step) * (1.5 if rank == SLOW_RANK and step >= SLOW_FROM else 1.0)


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("spans")
    took = [max(work_ms(rank, step) for rank in range(RANKS)) + 1 for step in range(STEPS)]
    steps = {
        "rank": np.tile(np.arange(RANKS), STEPS).tolist(),
        "step": np.repeat(np.arange(STEPS), RANKS).tolist(),
        "start_ns": [0] * (RANKS * STEPS),
        "duration_ns": (np.repeat(took, RANKS) * 1e6).astype(int).tolist(),
    }
    layout = {"pp": 2, "dp": 4}
    return write_spans(root, meeting(RANKS, STEPS, work_ms), layout=layout, more={"steps": steps})


@pytest.fixture(scope="module")
def rollups(spans: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return with_rollups(spans, tmp_path_factory.mktemp("rollups"), span_ranks=())


@pytest.fixture(scope="module")
def both(spans: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return with_rollups(spans, tmp_path_factory.mktemp("both"))


def test_rollups_are_read_where_spans_are_absent_partial_or_too_many(
    spans: Store, rollups: Store, both: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = with_rollups(spans, tmp_path / "partial", span_ranks=(SLOW_RANK,))
    found = {name: choose_source(store, store.attempt()) for name, store in (
        ("spans", spans), ("rollups", rollups), ("both", both), ("partial", partial),
    )}  # fmt: skip
    assert {name: choice.source for name, choice in found.items()} == {
        "spans": Source.SPANS, "both": Source.SPANS, "rollups": Source.ROLLUPS, "partial": Source.ROLLUPS,
    }  # fmt: skip
    assert found["partial"].reason == "the store holds 320 raw spans of 2,560 that were recorded"
    assert (found["both"].step_width, found["rollups"].step_width) == (1, 10)
    monkeypatch.setattr(source_module, "MANY_SPANS", 1000)
    many = choose_source(both, both.attempt())
    assert (many.source, many.reason) == (Source.ROLLUPS, "2,560 raw spans are too many to be read at once")
    assert choose_source(both, both.attempt(), (100, 149)).source == Source.SPANS
    assert choose_source(spans, spans.attempt()).source == Source.SPANS


def test_a_verdict_is_from_rollups_where_pictures_are_still_of_spans(
    spans: Store, both: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = both.attempt()
    monkeypatch.setattr(observations_module, "MOST_JUDGED", 1000)
    assert choose_source(both, attempt).source == Source.SPANS
    source = observe(both, attempt).source
    assert (source.source, source.reason) == (Source.ROLLUPS, "2,560 raw spans are too many to be read at once")
    assert observe(both, attempt, steps=(100, 149)).source.source == Source.SPANS
    assert observe(spans, spans.attempt()).source.source == Source.SPANS
    verdict = find_stragglers(both, attempt)
    assert [one.ranks for one in verdict.culprits] == [(SLOW_RANK,)]
    assert any(one.signal == "spans" and "too many" in one.reason for one in verdict.abstained)


@pytest.mark.parametrize("metric", ["self", "duration", "exposed", "count"])
@pytest.mark.parametrize("segment", ["forward", "all_reduce"])
def test_the_matrix_is_that_of_the_spans_averaged_over_windows(
    spans: Store, rollups: Store, metric: str, segment: str
) -> None:
    if (metric, segment) == ("exposed", "forward"):
        return  # nobody waits for it: both are empty
    fine = segment_matrix(spans, spans.attempt(), segment, metric)
    coarse = segment_matrix(rollups, rollups.attempt(), segment, metric)
    assert (fine.step_width, coarse.step_width) == (1, 10)
    assert coarse.ranks.tolist() == fine.ranks.tolist()
    assert coarse.steps.tolist() == list(range(0, STEPS, 10))
    np.testing.assert_allclose(coarse.values, fine.values.reshape(RANKS, -1, 10).mean(axis=2), rtol=1e-6)


def test_the_matrix_of_some_steps_has_the_windows_inside_them(rollups: Store) -> None:
    attempt = rollups.attempt()
    assert segment_matrix(rollups, attempt, "forward", steps=(25, 60)).steps.tolist() == [30, 40, 50]
    assert segment_matrix(rollups, attempt, "forward", steps=(25, 26)).steps.tolist() == [20]
    assert segment_matrix(rollups, attempt, "forward", steps=(500, 600)).values.shape == (RANKS, 0)
    with pytest.raises(UsageError, match="no segment 'nothing'"):
        segment_matrix(rollups, attempt, "nothing")


def test_segments_and_their_ranks(spans: Store, rollups: Store) -> None:
    fine, coarse = (segments_available(store, store.attempt()).to_pylist() for store in (spans, rollups))
    assert [row | {"self_ms": pytest.approx(row["self_ms"])} for row in fine] == coarse


def test_rank_by_segment_over_all_steps(spans: Store, rollups: Store) -> None:
    attempt, ranks = rollups.attempt(), np.arange(RANKS)
    for percentile, sql in ((None, "avg(self_ns)"), (90.0, "quantile_disc(self_ns, 0.9)")):
        found = rank_segments(rollups, attempt, ranks, percentile=percentile)
        rows = spans.query(f"SELECT rank, segment_name AS name, {sql} / 1e6 AS ms FROM spans GROUP BY ALL").to_pylist()
        assert len(rows) == found.values.size
        for row in rows:
            value = found.values[row["rank"], found.names.index(row["name"])]
            assert value == pytest.approx(row["ms"], rel=0.01 if percentile else 1e-9)
    with pytest.raises(UsageError, match="no percentiles of exposed"):
        rank_segments(rollups, attempt, ranks, metric="exposed", percentile=50.0)


def test_percentiles_of_windows(spans: Store, rollups: Store) -> None:
    attempt, ranks = rollups.attempt(), np.array([2, 5])
    forward = segment_ids(rollups, attempt, names=["forward"])["segment"].to_pylist()
    found = grid_percentile(rollups, attempt, forward, ranks, choose_source(rollups, attempt).first_steps(), 99.0)
    sql = """SELECT rank, step // 10 AS w, quantile_disc(self_ns, 0.99) / 1e6 AS ms FROM spans
             WHERE segment_name = 'forward' AND rank IN (2, 5) GROUP BY ALL ORDER BY rank, w"""
    exact = np.array(spans.query(sql)["ms"].to_pylist()).reshape(2, -1)
    np.testing.assert_allclose(found, exact, rtol=0.01)


def test_the_same_rank_is_accused_from_rollups_alone_and_it_is_said(spans: Store, rollups: Store) -> None:
    verdict = find_stragglers(rollups, rollups.attempt())
    [culprit] = verdict.culprits
    [direct] = find_stragglers(spans, spans.attempt()).culprits
    assert (culprit.ranks, culprit.segment, culprit.kind, culprit.pattern) == (
        direct.ranks, direct.segment, direct.kind, direct.pattern,
    )  # fmt: skip
    assert culprit.ratio == pytest.approx(direct.ratio, rel=0.02)
    assert culprit.lost_share == pytest.approx(direct.lost_share, abs=0.03)
    assert culprit.steps == (60, 159)
    assert any(note.signal == "spans" and "rollups over 10 steps" in note.reason for note in verdict.abstained)
    assert len(culprit.evidence) == 3
    for one in culprit.evidence:
        assert rollups.query(one.sql).column(0)[0].as_py() == pytest.approx(one.value)
        assert one.table == "rank_windows"


def test_an_even_job_is_healthy_from_rollups_and_a_short_one_is_not_judged(tmp_path: Path) -> None:
    for steps, outcome in ((120, Outcome.HEALTHY), (50, Outcome.INSUFFICIENT)):
        source = write_spans(tmp_path / f"spans-{steps}", meeting(4, steps, even_ms), layout={"dp": 4})
        store = with_rollups(source, tmp_path / f"rollups-{steps}", span_ranks=())
        verdict = find_stragglers(store, store.attempt())
        assert (verdict.verdict, verdict.culprits) == (outcome, ())
    assert any("only 40 steps after warm-up, at least 80" in note.reason for note in verdict.abstained)


def test_worst_ranks_by_robust_z(rollups: Store, spans: Store) -> None:
    found = worst_ranks(rollups, rollups.attempt(), limit=3).to_pylist()
    assert (found[0]["rank"], found[0]["segment"], found[0]["host"]) == (SLOW_RANK, "forward", "node0")
    assert found[0]["ratio"] == pytest.approx(1.5, rel=0.05)
    assert found[0]["z"] > 10 * max(row["z"] for row in found[1:])
    assert found[0]["worst_step"] >= SLOW_FROM
    assert worst_ranks(spans, spans.attempt()).num_rows == 0


def test_places_of_ranks_are_the_last_ones_written(spans: Store) -> None:
    placement = load_placement(spans, spans.attempt())
    assert placement.ranks.tolist() == list(range(RANKS))
    assert placement.coordinates["pp"].tolist() == [0] * 4 + [1] * 4


def test_longer_windows_are_taken_where_there_are_too_many_cells_or_short_ones_were_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_from, steps = 400, 1200
    noise = np.exp(0.03 * np.random.default_rng(6).standard_normal((4, steps)))
    spans = meeting(4, steps, lambda r, s: float(20 * noise[r, s]) * (1.5 if r == 2 and s >= slow_from else 1.0))
    source = write_spans(tmp_path / "spans", spans, layout={"dp": 4})
    store = with_rollups(source, tmp_path / "rollups", span_ranks=())
    attempt = store.attempt()
    assert choose_source(store, attempt).step_width == 10
    monkeypatch.setattr(source_module, "MANY_CELLS", 4 * 40)
    assert choose_source(store, attempt, (0, 399)).step_width == 10
    assert choose_source(store, attempt).step_width == 100
    assert segment_matrix(store, attempt, "forward").steps.tolist() == list(range(0, steps, 100))
    [culprit] = find_stragglers(store, attempt).culprits
    assert (culprit.ranks, culprit.steps, len(culprit.evidence)) == ((2,), (400, 1199), 3)
    monkeypatch.undo()
    gone = Pruned(attempt.run, attempt.attempt, "rank_windows", 10, 1, 100, 1000, None, 99)
    monkeypatch.setattr(Store, "pruned", lambda *_: [gone])
    assert choose_source(store, attempt).step_width == 100
    assert choose_source(store, attempt, (100, 499)).step_width == 10
