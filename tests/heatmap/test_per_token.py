"""Ranks that are given unequally many tokens are compared by what they take per token, where they tell how many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.per_token import SIGNAL, explained_by
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Outcome, Pattern, StragglerVerdict
from support.faulty_job import check_evidence
from support.rollup_store import with_rollups
from support.span_store import FIRST_NS, MS, Span, write_spans

RANKS, STEPS, STEP_MS, TOKENS = 6, 60, 600.0, 4000
SEGMENTS = {"forward": 30.0, "backward": 60.0}


@dataclass(frozen=True)
class Job:
    """Ranks of one stage with so many times the usual ``tokens``, each in two micro-batches or in ``batches``, that
    work ``slow`` times as long for them; ``drawn`` is how much more or less they have from step to step.

    ``attention`` is the share of a span that grows with the square of its tokens, ``fixed`` the share that is there
    whatever they are. ``told`` is the share of steps in which a rank tells its tokens. If not ``waits_apart``, all meet
    at the end of ``backward``, which nobody timed.
    """

    tokens: tuple[float, ...] = (1.0,) * RANKS
    slow: tuple[float, ...] = (1.0,) * RANKS
    batches: tuple[int, ...] = (2,) * RANKS
    drawn: float = 0.0
    attention: float = 0.0
    fixed: float = 0.0
    told: tuple[float, ...] = (1.0,) * RANKS
    waits_apart: bool = True
    steps: int = STEPS


def tokens_of(job: Job) -> FloatArray:
    """Tokens of a rank in a step, over the usual, [R, S]."""
    drawn = np.random.default_rng(1).lognormal(0, job.drawn, (len(job.tokens), job.steps))
    return np.array(job.tokens)[:, None] * drawn


def store_of(root: Path, job: Job, told: bool = True) -> Store:
    """The store of such a job, whose ranks meet in a collective at the end of every step."""
    random, spans, tokens = np.random.default_rng(4), list[Span](), tokens_of(job)
    for step in range(job.steps):
        ends, last = np.zeros(len(job.tokens)), []
        for rank, batches in enumerate(job.batches):
            share = tokens[rank, step]
            linear = 1 - job.attention - job.fixed
            cost = linear * share + job.attention * share**2 + job.fixed
            for name, usual in SEGMENTS.items():
                for batch in range(batches):
                    took = usual * cost * job.slow[rank] * 2 / batches * random.lognormal(0, 0.02)
                    at = step * STEP_MS + ends[rank]
                    spans.append(Span(rank, step, name, at, took, microbatch=batch))
                    ends[rank] += took
            last.append(spans.pop())
        for rank, span in enumerate(last):
            waits, at = float(ends.max() - ends[rank]) + 1.0, step * STEP_MS + ends[rank]
            inside = 0.0 if job.waits_apart else waits
            spans.append(replace(span, duration_ms=span.duration_ms + inside))
            left = waits if job.waits_apart else random.lognormal(0, 0.1)
            spans.append(Span(rank, step, "all_reduce", at + inside, left, exposed_ms=left, kind="collective"))
    return write_spans(root, spans, layout={"dp": len(job.tokens)}, more={"steps": _steps(job, tokens, told)})


def _steps(job: Job, tokens: FloatArray, told: bool) -> dict[str, Any]:
    rank, step = np.divmod(np.arange(tokens.size), job.steps)
    tells = np.random.default_rng(2).random(tokens.size) < np.array(job.told)[rank]
    rows: dict[str, Any] = {
        "rank": rank,
        "step": step,
        "start_ns": FIRST_NS + (step * STEP_MS * MS).astype(np.int64),
        "duration_ns": np.full(rank.size, round(STEP_MS * MS / 3)),
    }
    if told:
        counts = np.round(tokens.ravel() * TOKENS).astype(int).tolist()
        rows["rank_tokens"] = [count if tell else None for count, tell in zip(counts, tells.tolist(), strict=True)]
    return rows


def verdict_of(store: Store) -> StragglerVerdict:
    with store:
        found = find_stragglers(store, store.attempt())
        for culprit in found.culprits:
            check_evidence(store, culprit.evidence)
        return found


def accused(found: StragglerVerdict) -> list[tuple[int, ...]]:
    return [one.ranks for one in found.culprits if one.kind in {CulpritKind.RANK, CulpritKind.HOST}]


def one_of(value: float, rank: int = 2) -> tuple[float, ...]:
    return tuple(value if each == rank else 1.0 for each in range(RANKS))


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
    assert [one.cause for one in found.culprits if not one.ranks] == [Cause.UNEVEN_INPUT]


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
    assert explained_by(ratio, per_token=False) == max(ratio, 1) ** 2
    assert explained_by(1.0) == 1.0
