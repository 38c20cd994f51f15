"""Ranks that are given unequally many tokens are compared by what they take per token, where they tell how many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.heatmap.cells import SegmentCells
from megascope.heatmap.clocks import RankClocks
from megascope.heatmap.observations import Observations
from megascope.heatmap.peers import Placement
from megascope.heatmap.per_token import BEYOND, FIXED_SHARE, SIGNAL, UnequalTokens, _scaled, explained_by
from megascope.heatmap.rank_tokens import MAX_ERROR, WELL_TOLD, RankTokens
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Outcome, Pattern, StragglerVerdict
from support.faulty_job import check_evidence
from support.rollup_store import with_rollups
from support.token_store import RANKS, STEPS, Job, one_of, store_of


def verdict_of(store: Store) -> StragglerVerdict:
    with store:
        found = find_stragglers(store, store.attempt())
        for culprit in found.culprits:
            check_evidence(store, culprit.evidence)
        return found


def accused(found: StragglerVerdict) -> list[tuple[int, ...]]:
    return [one.ranks for one in found.culprits if one.kind in {CulpritKind.RANK, CulpritKind.HOST}]


LONG, SHORT, SLOW = one_of(1.3), one_of(0.7), one_of(1.5)


def test_longer_sequences_in_every_step_accuse_nobody_once_they_are_told(tmp_path: Path) -> None:
    job = Job(LONG)
    untold = verdict_of(store_of(tmp_path / "untold", job, told=False))
    assert accused(untold) == [(2,)], "what the column is for"
    found = verdict_of(store_of(tmp_path / "told", job))
    assert (accused(found), found.verdict, found.warnings) == ([], Outcome.FINDINGS, ())
    [job_wide] = found.culprits
    assert (job_wide.kind, job_wide.cause, job_wide.ranks) == (CulpritKind.JOB, Cause.UNEVEN_INPUT, ())
    assert job_wide.ratio == pytest.approx(1.3 / (1 + 0.3 / RANKS), rel=0.01)
    assert job_wide.lost_share == pytest.approx(180 * (job_wide.ratio - 1) / 200, rel=0.05)
    assert "rank 2 was given 5200.0 tokens a step, the mean of the others 4000.0" in job_wide.evidence[0].statement
    [note] = [one.reason for one in found.abstained if one.signal == SIGNAL]
    assert "x1.30 (rank 2) of their peers'" in note
    assert "compared per token" in note


def test_a_slow_rank_with_short_sequences_is_found(tmp_path: Path) -> None:
    job = Job(SHORT, SLOW)
    assert accused(verdict_of(store_of(tmp_path / "untold", job, told=False))) == []
    found = verdict_of(store_of(tmp_path / "told", job))
    [culprit] = [one for one in found.culprits if one.ranks]
    assert (culprit.kind, culprit.ranks, culprit.steps[1]) == (CulpritKind.RANK, (2,), STEPS - 1)
    assert culprit.ratio == pytest.approx(1.5, rel=0.02)
    first = culprit.evidence[0]
    assert first.value is not None
    assert first.peers is not None
    assert first.value / first.peers == pytest.approx(1.5, rel=0.03)
    assert "per 1,000 of its tokens" in first.statement
    assert "x0.70 of their tokens" in first.statement


@pytest.mark.parametrize(("slow", "ranks"), [(1.0, 6), (1.4, 6), (1.4, 14)], ids=["long", "slow", "of many peers"])
def test_rollups_tell_the_same(tmp_path: Path, slow: float, ranks: int) -> None:
    rest = (1.0,) * (ranks - 1)
    job = Job(
        (*rest, 0.7 if slow > 1 else 1.3), (*rest, slow), batches=(2,) * ranks, told=(1.0,) * ranks,
        steps=120, drawn=0.1,
    )  # fmt: skip
    with store_of(tmp_path / "spans", job) as spans:
        found = verdict_of(with_rollups(spans, tmp_path / "rollups", span_ranks=()))
    assert accused(found) == ([(ranks - 1,)] if slow > 1 else [])
    assert any("compared per token" in one.reason for one in found.abstained)
    if slow > 1:
        [culprit] = [one for one in found.culprits if one.ranks]
        assert culprit.ratio == pytest.approx(1.4, rel=0.03)
        assert culprit.pattern == Pattern.CHRONIC
    uneven = [one.cause for one in found.culprits if not one.ranks]
    assert uneven == ([] if slow > 1 else [Cause.UNEVEN_INPUT]), "with short sequences a slow rank takes no longer"


def rolled_up(root: Path, job: Job, span_ranks: tuple[int, ...] | None = ()) -> StragglerVerdict:
    with store_of(root / "spans", job) as spans:
        return verdict_of(with_rollups(spans, root / "rollups", span_ranks=span_ranks))


def notes_of(found: StragglerVerdict) -> str:
    return "; ".join(one.reason for one in found.abstained if one.signal == SIGNAL)


@pytest.mark.parametrize("drawn", [0.0, 0.3])
def test_a_step_that_is_not_told_does_not_void_its_window(tmp_path: Path, drawn: float) -> None:
    told = (1.0, 1.0, 0.85, 0.85, 1.0, 1.0)
    found = rolled_up(tmp_path / "long", Job(LONG, told=told, drawn=drawn))
    assert accused(found) == []
    assert "compared per token" in notes_of(found)
    assert "did not tell" not in notes_of(found)
    assert accused(rolled_up(tmp_path / "slow", Job(SHORT, SLOW, told=told, drawn=drawn))) == [(2,)]


def test_the_newest_window_counts_though_nobody_tells_its_last_step(tmp_path: Path) -> None:
    found = rolled_up(tmp_path, Job(LONG, tells_last=False))
    assert accused(found) == []
    assert [one.steps[1] for one in found.culprits if not one.ranks] == [STEPS - 1]


def test_tokens_of_too_few_steps_of_a_window_accuse_nobody_and_that_is_said(tmp_path: Path) -> None:
    """Half of the steps of lengths that differ by their double do not tell those of the others."""
    found = rolled_up(tmp_path, Job(told=(1.0, 1.0, 0.6, 1.0, 1.0, 1.0), drawn=0.7))
    assert accused(found) == []
    assert found.verdict != Outcome.HEALTHY
    assert "rank 2 could not be compared per token" in notes_of(found)


@given(
    told=st.lists(st.one_of(st.none(), st.integers(-1, 3000)), min_size=1, max_size=12),
)
def test_a_window_is_known_from_all_of_its_steps_or_from_half_that_tell_it_closely(told: list[int | None]) -> None:
    values = np.array([value for value in told if value is not None], float)
    rows = ", ".join(f"({'NULL' if value is None else value}::BIGINT)" for value in told)
    answer = duckdb.execute(f"SELECT coalesce({WELL_TOLD}, false) FROM (VALUES {rows}) AS one(rank_tokens)").fetchall()
    known = len(values) > 0 and values.min() >= 0 and values.sum() > 0
    if known and len(values) < len(told):
        known = len(values) > 1 and 2 * len(values) >= len(told)
        if known:
            error = values.std(ddof=1) * np.sqrt(1 / len(values) - 1 / len(told)) / values.mean()
            assume(abs(error - MAX_ERROR) > 1e-9)
            known = error <= MAX_ERROR
    assert answer == [(known,)]


@pytest.mark.parametrize("kept", [False, True], ids=["rollups alone", "with the spans they were made of"])
def test_a_rank_whose_spans_were_not_all_measured_is_not_taken_for_quick(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At all of its tokens and half of its spans, a slow rank would take half as long for each."""
    monkeypatch.setattr("megascope.heatmap.observations.MOST_JUDGED", 0)
    rest, told = (1.0,) * 13, (1.0,) * 14
    job = Job((*rest, 0.7), (*rest, 1.5), (2,) * 14, drawn=0.6, told=told, steps=100, unmeasured=(13,))
    found = rolled_up(tmp_path, job, None if kept else ())
    assert accused(found) == []
    assert found.verdict != Outcome.HEALTHY
    assert "compute was compared per token" in notes_of(found)
    assert "rank 13 could not be compared per token" in notes_of(found)


@pytest.mark.parametrize("kept", [False, True], ids=["rollups alone", "with the spans they were made of"])
def test_other_micro_batches_on_rollups_are_compared_where_no_span_can_be_missing(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.heatmap.observations.MOST_JUDGED", 0)
    job = Job((1.0, 1.0, 1.0, 1.0, 1.0, 0.8), batches=(2, 2, 1, 2, 2, 2))
    span_ranks = None if kept else ()
    healthy = rolled_up(tmp_path / "healthy", job, span_ranks)
    assert accused(healthy) == []
    assert ("could not be compared per token" in notes_of(healthy)) == (not kept)
    slow = rolled_up(tmp_path / "slow", replace(job, slow=one_of(1.4)), span_ranks)
    assert accused(slow) == ([(2,)] if kept else [])
    assert slow.verdict != Outcome.HEALTHY


def test_lengths_that_are_drawn_anew_hide_no_slow_rank(tmp_path: Path) -> None:
    job = Job(slow=one_of(1.12), drawn=0.3)
    assert accused(verdict_of(store_of(tmp_path / "untold", job, told=False))) == []
    assert accused(verdict_of(store_of(tmp_path / "told", job))) == [(2,)]
    healthy = verdict_of(store_of(tmp_path / "healthy", Job(drawn=0.3)))
    assert accused(healthy) == []


@pytest.mark.parametrize(
    "job",
    [Job(one_of(1.5), attention=1.0), Job(one_of(1.3), attention=0.5), Job(one_of(0.5), fixed=0.2)],
    ids=["attention alone", "half attention", "a fixed cost"],
)
def test_nobody_is_accused_of_what_tokens_can_explain(tmp_path: Path, job: Job) -> None:
    found = verdict_of(store_of(tmp_path / "s", job))
    assert accused(found) == []
    assert found.verdict != Outcome.HEALTHY
    assert any("it is not called slow" in one.reason for one in found.abstained if one.signal == SIGNAL)


def test_a_rank_is_accused_of_what_attention_cannot_explain(tmp_path: Path) -> None:
    found = verdict_of(store_of(tmp_path / "s", Job(LONG, one_of(1.6))))
    assert accused(found) == [(2,)]


def test_more_micro_batches_of_fewer_tokens_are_the_same_work(tmp_path: Path) -> None:
    """As many tokens, cut into four instead of two, and half as many in two; and a slow rank among them."""
    job = Job((1.0, 1.0, 1.0, 1.0, 1.0, 0.5), batches=(2, 2, 4, 2, 2, 2))
    assert accused(verdict_of(store_of(tmp_path / "s", job))) == []
    assert accused(verdict_of(store_of(tmp_path / "t", replace(job, slow=one_of(1.4))))) == [(2,)]


def test_what_a_slow_rank_costs_does_not_depend_on_its_number_of_micro_batches(tmp_path: Path) -> None:
    job, lost = Job((1.0, 1.0, 1.0, 1.0, 1.0, 0.8), one_of(1.4)), []
    for own in (1, 2, 4):
        found = verdict_of(store_of(tmp_path / str(own), replace(job, batches=(2, 2, own, 2, 2, 2))))
        [culprit] = [one for one in found.culprits if one.ranks]
        assert culprit.ranks == (2,)
        assert not any("unmeasured synchronisation" in one.reason for one in found.abstained)
        lost.append(culprit.lost_share)
    assert lost == [pytest.approx(lost[1], rel=0.05)] * 3


@given(
    tokens=st.lists(st.floats(0.2, 5), min_size=3, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    holds=st.booleans(),
)
def test_at_equal_tokens_a_step_takes_what_its_tokens_take_however_they_are_cut(
    tokens: list[float], seed: int, holds: bool
) -> None:
    random, each = np.random.default_rng(seed), np.array(tokens)[:, None] * np.ones(4)
    shape = (2, *each.shape)
    count = random.integers(1, 6, shape).astype(float) if holds else np.full(shape, 3.0)
    total, usual, ranks = random.uniform(1, 100, shape), np.median(each, axis=0), np.arange(len(tokens))
    told = RankTokens(each, each / usual, np.ones(len(tokens), bool), (), holds)
    cells = SegmentCells("forward", "compute", ranks, np.arange(4), total, count, each, each, 0)
    scaled = _scaled(cells, told, told.scale(count, np.zeros(len(tokens), np.int64)))
    np.testing.assert_allclose(scaled.per_step_ms() / usual, cells.per_step_ms() / each)
    np.testing.assert_allclose(scaled.count, np.broadcast_to(scaled.count[:, :1], shape))
    if not holds:
        np.testing.assert_allclose(scaled.count, count)


def test_what_slow_ranks_take_longer_is_not_put_down_to_lengths(tmp_path: Path) -> None:
    """All take equally long with a slow rank of short sequences, and no even lengths help against another slow rank."""
    for name, job in {
        "equally long": Job(SHORT, one_of(1.4)),
        "another one": Job(LONG, one_of(1.5, 3)),
    }.items():
        found = verdict_of(store_of(tmp_path / name, job))
        assert [one for one in found.culprits if not one.ranks] == [], name
        assert len(accused(found)) == 1, name


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(factor=st.floats(0.5, 1.8), slow=st.floats(1.0, 1.8), other=st.floats(1.0, 1.5))
def test_lengths_never_cost_more_than_even_ones_would_save(
    tmp_path_factory: pytest.TempPathFactory, factor: float, slow: float, other: float
) -> None:
    tokens, speed = np.array(one_of(factor)), np.array([*one_of(slow)[:3], other, 1.0, 1.0])
    job = Job(tuple(tokens), tuple(speed), steps=30)
    found = verdict_of(store_of(tmp_path_factory.mktemp("job") / "s", job))
    saved = 180 * (float((tokens * speed).max()) - float((tokens.mean() * speed).max()))
    told = [one.lost_share * 200 for one in found.culprits if not one.ranks]
    assert sum(told) <= max(saved, 0.0) + 5.0


@pytest.mark.parametrize("waits_apart", [True, False])
def test_longer_sequences_since_a_step_are_not_warned_of(tmp_path: Path, waits_apart: bool) -> None:
    """Attention takes longer per token then; the rank is no slower."""
    job = Job(LONG, attention=0.3, since=50, waits_apart=waits_apart)
    found = verdict_of(store_of(tmp_path / "s", job))
    assert (accused(found), found.warnings) == ([], ())


def test_a_rank_that_becomes_slower_is_warned_of_beside_longer_sequences_of_another(tmp_path: Path) -> None:
    found = verdict_of(store_of(tmp_path / "s", Job(LONG, one_of(1.3, 4), slow_since=52)))
    assert [one.rank for one in found.warnings] == [4]


def test_longer_sequences_are_no_change_of_a_rank_against_its_own_past(tmp_path: Path) -> None:
    rest = (1.0,) * 7
    job = Job((*rest, 1.3), (*rest, 1.0), (2,) * 8, attention=0.21, told=(1.0,) * 8, steps=120, since=60)
    assert verdict_of(store_of(tmp_path / "s", job)).warnings == ()
    slow = Job((1.3, *rest), (*rest, 1.065), (2,) * 8, told=(1.0,) * 8, steps=120, slow_since=60)
    found = verdict_of(store_of(tmp_path / "t", slow))
    assert [one.rank for one in found.warnings] == [7]


def explains(tokens: list[float], ratio: float) -> str | None:
    """Why a rank with such tokens in turn, whose time comes and goes and was not compared per token, is not accused."""
    beside = np.ones((4, 40))
    beside[2] = np.resize(tokens, 40)
    told = RankTokens(beside, beside, np.ones(4, bool), (), True)
    cells = SegmentCells(
        "backward", "compute", np.arange(4), np.arange(40), beside[None], beside[None], beside, beside, 0
    )
    places, clocks = Placement(cells.ranks, ("node0",) * 4, {}), RankClocks.of_one_host(4)
    step_ms = np.full(40, 100.0)
    seen = Observations((cells,), places, cells.ranks, cells.steps, step_ms, None, clocks, tokens=told)
    return UnequalTokens(seen, seen).explains(2, "backward", "compute", ratio, (0, 39), Pattern.INTERMITTENT)


@given(low=st.floats(0.3, 2), high=st.floats(1.01, 2), ratio=st.floats(1.07, 4))
@example(low=0.4, high=1.3, ratio=1.5)
@example(low=0.9, high=1.3, ratio=1.5)
def test_time_that_comes_and_goes_with_tokens_is_explained_by_the_most_of_them(
    low: float, high: float, ratio: float
) -> None:
    most = max(low, high) ** 2 * BEYOND
    assume(abs(ratio - most) > 1e-6)
    assert (explains([low, high], ratio) is None) == (ratio > most)


def test_who_does_not_tell_is_said_and_compared_as_ever(tmp_path: Path) -> None:
    job = Job(LONG, told=(1.0, 0.2, 1.0, 1.0, 1.0, 1.0))
    found = verdict_of(store_of(tmp_path / "s", job))
    assert accused(found) == [(2,)]
    assert any(one.reason.startswith("rank 1 did not tell how many") for one in found.abstained if one.signal == SIGNAL)


def test_steps_that_are_not_told_are_left_out(tmp_path: Path) -> None:
    told = (1.0, 0.8, 0.7, 1.0, 0.9, 1.0)
    assert accused(verdict_of(store_of(tmp_path / "s", Job(LONG, told=told)))) == []
    assert accused(verdict_of(store_of(tmp_path / "t", Job(SHORT, SLOW, told=told)))) == [(2,)]


def test_equally_many_tokens_change_nothing(tmp_path: Path) -> None:
    told, untold = (verdict_of(store_of(tmp_path / str(one), Job(slow=SLOW), told=one)) for one in (True, False))
    assert told.culprits == untold.culprits
    assert told.abstained == untold.abstained


def test_a_segment_that_hides_a_synchronisation_is_not_taken_for_work(tmp_path: Path) -> None:
    """All take equally long in it, whatever their tokens: per token, who has the fewest would look slow."""
    found = verdict_of(store_of(tmp_path / "s", Job(one_of(0.5), waits_apart=False)))
    assert accused(found) == []
    assert found.verdict != Outcome.HEALTHY
    assert any("not compared per token" in one.reason for one in found.abstained)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(factor=st.floats(0.4, 2.5), slow=st.sampled_from([1.0, 1.5]), rank=st.integers(0, RANKS - 1))
def test_tokens_and_times_that_grow_by_the_same_factor_do_not_change_who_is_accused(
    tmp_path_factory: pytest.TempPathFactory, factor: float, slow: float, rank: int
) -> None:
    """Of a slow rank with more tokens only what attention cannot explain is told."""
    folder = tmp_path_factory.mktemp("job")
    found = verdict_of(store_of(folder / "s", Job(one_of(factor, rank), one_of(slow, rank), steps=30)))
    is_told = slow > 1 and (factor <= 1 or slow > 1.1 * factor)
    if slow == 1.0 or is_told:
        assert accused(found) == ([(rank,)] if is_told else [])
    else:
        assert accused(found) in ([], [(rank,)])


@given(ratio=st.floats(0.05, 20))
def test_what_tokens_explain(ratio: float) -> None:
    assert explained_by(ratio) >= 1
    assert explained_by(ratio) <= max(ratio, 1 / ratio)
    assert explained_by(ratio, per_token=False) == pytest.approx(max(ratio, 1) ** 2)
    assert explained_by(1.0) == 1.0
    assert explained_by(ratio, before=ratio) == 1.0


@given(
    before=st.floats(0.05, 20), now=st.floats(0.05, 20), attention=st.floats(0, 1), fixed=st.floats(0, FIXED_SHARE),
    per_token=st.booleans(),
)  # fmt: skip
def test_no_share_of_attention_and_of_fixed_costs_takes_longer_than_tokens_explain(
    before: float, now: float, attention: float, fixed: float, per_token: bool
) -> None:
    attention = min(attention, 1 - fixed)

    def time(tokens: float) -> float:
        took = (1 - attention - fixed) * tokens + attention * tokens**2 + fixed
        return took / tokens if per_token else took

    assert time(now) / time(before) <= explained_by(now, before=before, per_token=per_token) * (1 + 1e-9)
