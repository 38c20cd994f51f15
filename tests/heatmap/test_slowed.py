"""A rank of a small job is accused of having become slower by what it works while it has a core, and else nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Demo
from megascope.collectors.reading.store import Store
from megascope.heatmap.observations import observe
from megascope.heatmap.own_change import find_own_change
from megascope.heatmap.peers import FloatArray
from megascope.heatmap.slowed import ACCUSED, find_slowed
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Outcome, describe
from support.faulty_job import check_evidence
from support.span_store import FIRST_NS, MS, Span, write_spans

RANKS, STEPS, SLOW_FROM = 8, 150, 70
LAYOUT = {"pp": 2, "dp": 2, "tp": 2}
STEP_MS = 400.0


def job(
    root: Path,
    factor: float = 1.0,
    *,
    others: float = 1.0,
    known: bool = True,
    silent: tuple[int, ...] = (),
    communicates: bool = True,
) -> Store:
    """Ranks that work 60 ms a step and wait up to as long for a core; rank 5 works longer from `SLOW_FROM` on, and
    the ``others`` by a factor of their own.

    The ranks in ``silent``, or all if not ``known``, do not know how long they worked.
    """
    work = np.full((RANKS, STEPS), 60.0)
    work[:, SLOW_FROM:] *= others
    work[5, SLOW_FROM:] *= factor / others
    return job_of(root, work, LAYOUT, ~np.isin(np.arange(RANKS), silent) & known, communicates=communicates)


def job_of(
    root: Path,
    work: FloatArray,
    layout: dict[str, int],
    knows: npt.NDArray[np.bool_],
    *,
    communicates: bool = True,
    tokens: FloatArray | None = None,
) -> Store:
    """The store of ranks that work so long [R, S], give or take noise and load, and then meet, if that is recorded.

    They tell their ``tokens`` [R, S], if any."""
    random = np.random.default_rng(3)
    load = np.exp(np.cumsum(random.normal(0, 0.02, STEPS)))
    worked = work * load * random.lognormal(0, 0.04, (RANKS, STEPS))
    took = worked + 40 * load * random.lognormal(0, 0.5, (RANKS, STEPS))
    waits = took.max(axis=0) - took + 1.0
    spans = []
    for rank, step in np.ndindex(RANKS, STEPS):
        at, own, wait = step * STEP_MS, float(took[rank, step]), float(waits[rank, step])
        spans.append(Span(rank, step, "forward", at, own))
        if communicates:
            spans.append(Span(rank, step, "all_reduce", at + own, wait, exposed_ms=wait, kind="collective"))
    rank, step = np.divmod(np.arange(RANKS * STEPS), STEPS)
    rows: dict[str, Any] = {
        "rank": rank,
        "step": step,
        "start_ns": FIRST_NS + (step * STEP_MS * MS).astype(np.int64),
        "duration_ns": np.full(rank.size, round(STEP_MS * MS)),
        "worked_ns": [
            round(float(value) * MS) if has else None for value, has in zip(worked.ravel(), knows[rank], strict=True)
        ],
    }
    if tokens is not None:
        rows["rank_tokens"] = tokens.ravel().astype(int)
    return write_spans(root, spans, layout=layout, more={"steps": rows})


def test_a_tenth_more_work_accuses_though_ranks_wait_for_cores(tmp_path: Path) -> None:
    with job(tmp_path / "s", 1.1) as store:
        verdict = find_stragglers(store, store.attempt())
        [found] = verdict.culprits
        assert (found.kind, found.cause, found.ranks, found.segment) == (
            CulpritKind.RANK, Cause.SLOW_COMPUTE, (5,), "forward",
        )  # fmt: skip
        assert found.ratio == pytest.approx(1.1, abs=0.02)
        assert found.steps[0] == pytest.approx(SLOW_FROM, abs=6)
        assert found.steps[1] == STEPS - 1
        excess = 0.1 * 60 * (STEPS - SLOW_FROM) / (STEPS * STEP_MS)
        assert found.lost_share == pytest.approx(excess, rel=0.5)
        check_evidence(store, found.evidence)
        assert "of what it took before, unlike all others, in forward" in describe(found)
        assert verdict.warnings == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"factor": 1.0}, {"factor": 1.1, "known": False}, {"factor": 1.1, "silent": (2,)}, {"others": 0.9},
        {"factor": 1.1, "communicates": False},
    ],
    ids=["nobody is slow", "not known", "one rank does not know", "the others became faster", "waits are unseen"],
)  # fmt: skip
def test_else_nobody_is_accused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with job(tmp_path / "s", **changed) as store:
        verdict = find_stragglers(store, store.attempt())
        assert verdict.culprits == ()
        assert verdict.verdict != Outcome.FINDINGS


@pytest.mark.parametrize("told", [True, False])
def test_a_rank_that_was_given_more_tokens_is_not_accused_if_it_tells_them(tmp_path: Path, told: bool) -> None:
    share = np.ones((RANKS, STEPS))
    share[5, SLOW_FROM:] *= 1.1
    tokens = 1000 * share if told else None
    with job_of(tmp_path / "s", 60 * share, LAYOUT, np.ones(RANKS, bool), tokens=tokens) as store:
        accused = [one.ranks for one in find_stragglers(store, store.attempt()).culprits if one.ranks]
    assert accused == ([] if told else [(5,)])


@pytest.mark.parametrize(("more", "slow"), [(1.03, 1.14), (1.3, 1.12), (0.75, 1.12)])
def test_a_slower_rank_with_other_tokens_is_accused_of_what_these_cannot_explain_or_it_is_said(
    tmp_path: Path, more: float, slow: float
) -> None:
    share = np.ones((RANKS, STEPS))
    share[5, SLOW_FROM:] *= more
    work = 60 * share
    work[5, SLOW_FROM:] *= slow
    with job_of(tmp_path / "s", work, LAYOUT, np.ones(RANKS, bool), tokens=1000 * share) as store:
        attempt = store.attempt()
        found = find_slowed(store, attempt, observe(store, attempt), 12)
        for culprit in found.culprits:
            check_evidence(store, culprit.evidence)
    if more == 1.03:
        [culprit] = found.culprits
        assert (culprit.ranks, found.blocking) == ((5,), ())
        assert culprit.ratio == pytest.approx(slow, abs=0.02)
        assert "it got x1.03 of its tokens then" in culprit.evidence[0].statement
    else:
        [note] = found.blocking
        assert (found.culprits, note.signal) == ((), "tokens")
        assert note.reason.startswith("rank 5 works x1.1")
        assert f"it got x{more:.2f} of its tokens" in note.reason


def test_a_stage_of_one_rank_is_not_accused_of_what_changes_the_work_of_all(tmp_path: Path) -> None:
    """More micro-batches beside an optimizer that takes as long as before; the last stage has the loss."""
    microbatches, each = np.where(np.arange(STEPS) < SLOW_FROM, 2.0, 8.0), np.full(RANKS, 5.0)
    each[-1] = 7.5
    work = each[:, None] * microbatches + 20
    with job_of(tmp_path / "s", work, {"pp": RANKS}, np.ones(RANKS, bool)) as store:
        assert find_stragglers(store, store.attempt()).culprits == ()


def test_what_did_not_last_yet_is_no_accusation(tmp_path: Path) -> None:
    with job(tmp_path / "s", 1.1) as store:
        upto = SLOW_FROM + ACCUSED.columns - 10
        assert find_stragglers(store, store.attempt(), steps=(0, upto)).culprits == ()


@pytest.mark.alone
def test_the_trainers_ranks_know_how_long_they_worked(demo: Demo) -> None:
    sql = """SELECT count(DISTINCT rank) AS ranks, min(worked_ns) AS least, max(worked_ns / duration_ns) AS most
             FROM steps WHERE step > 1 AND NOT coalesce(shadow, false)"""
    with Store(demo.store) as store:
        [row] = store.query(sql, attempt=store.attempt()).to_pylist()
    assert row["ranks"] == RANKS
    assert row["least"] > 0
    assert row["most"] < 1


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sigma=st.floats(0.01, 0.3),
    memory=st.floats(0, 0.7),
    steps=st.integers(110, 320),
)
def test_noise_that_lasts_for_some_steps_accuses_nobody(seed: int, sigma: float, memory: float, steps: int) -> None:
    random = np.random.default_rng(seed)
    noise: FloatArray = random.normal(0, sigma, (RANKS, steps))
    for step in range(1, steps):
        noise[:, step] = memory * noise[:, step - 1] + np.sqrt(1 - memory**2) * noise[:, step]
    assert find_own_change(50 * np.exp(noise + random.normal(0, 0.05, (RANKS, 1))), ACCUSED) is None
