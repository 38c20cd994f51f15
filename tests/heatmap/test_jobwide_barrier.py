"""A barrier that crept in is found in three forms, and not in a pipeline that runs as scheduled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.heatmap.detect import BoolArray
from megascope.heatmap.jobwide.barrier import find_barrier
from megascope.heatmap.jobwide.barrier_signs import edge_of, longest_stretch
from megascope.heatmap.observations import observe
from megascope.heatmap.peers import IntArray
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, Culprit, CulpritKind, Pattern, describe
from support.pipeline_spans import Planted, SmallPipeline
from support.span_store import Span, write_spans


def _store(root: Path, job: SmallPipeline, *, with_schedule: bool = True) -> Store:
    more = {"schedule": job.schedule_rows()} if with_schedule else {}
    return write_spans(root, job.spans(), layout=job.layout, more=more)


def _found(store: Store) -> tuple[Culprit, ...]:
    attempt = store.attempt()
    return find_barrier(store, attempt, observe(store, attempt)).culprits


@pytest.fixture(params=list(Planted), ids=lambda planted: planted.name, scope="module")
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Planted, Store]]:
    with _store(tmp_path_factory.mktemp("pipeline") / "store", SmallPipeline(planted=request.param)) as store:
        yield request.param, store


def test_what_was_planted_is_found_and_names_no_rank(planted: tuple[Planted, Store]) -> None:
    kind, store = planted
    found = _found(store)
    if kind is Planted.NOTHING:
        assert found == ()
        return
    assert len(found) == 1
    assert (found[0].kind, found[0].cause) == (CulpritKind.JOB, Cause.BARRIER)
    assert found[0].ranks == () == found[0].hosts
    assert found[0].steps == (2, 39)
    words = {
        Planted.RECORDED: "barrier runs 4.0 times a step between forwards and backwards",
        Planted.SILENT: "at the same moment",
        Planted.ORDER: "the schedule has it",
    }
    assert words[kind] in found[0].evidence[0].statement
    assert (found[0].lost_share > 0.05) == (kind is not Planted.ORDER)
    assert "where the schedule does not ask for it" in describe(found[0])


def test_the_evidence_can_be_asked_for_again(planted: tuple[Planted, Store]) -> None:
    _, store = planted
    for culprit in _found(store):
        for one in culprit.evidence:
            assert one.value is not None
            assert store.query(one.sql).column(0)[0].as_py() == pytest.approx(one.value)
            assert any(f"{one.value:{how}}" in one.statement for how in (".2f", ".1f"))


def test_the_verdict_carries_it(planted: tuple[Planted, Store]) -> None:
    kind, store = planted
    causes = {one.cause for one in find_stragglers(store, store.attempt()).culprits}
    assert (Cause.BARRIER in causes) == (kind is not Planted.NOTHING)


@pytest.mark.parametrize(
    ("kind", "until"),
    [(Planted.RECORDED, 60), (Planted.RECORDED, 45), (Planted.ORDER, 60), (Planted.ORDER, 45), (Planted.SILENT, 60)],
)
def test_one_that_crept_in_is_dated(tmp_path: Path, kind: Planted, until: int) -> None:
    """What nobody recorded is looked for up to the end of the run."""
    job = SmallPipeline(planted=kind, steps=60, since=23, until=until)
    with _store(tmp_path / "store", job) as store:
        (one,) = _found(store)
        slack = 4 if kind is Planted.SILENT else 0  # every fourth step is looked at
        assert 23 <= one.steps[0] <= 23 + slack
        assert one.steps[1] == until - 1
        assert one.pattern == (Pattern.CHRONIC if until == 60 else Pattern.ONE_OFF)
        assert re.search(rf"steps? {one.steps[0]}\b", one.evidence[0].statement)
        assert one.lost_share < 1 - 1 / one.ratio + 1e-6 if kind is not Planted.ORDER else one.lost_share == 0
        again = store.query(one.evidence[0].sql).column(0)[0].as_py()
        assert again == pytest.approx(one.evidence[0].value)


def test_a_collective_in_every_tenth_step_costs_what_it_costs_there(tmp_path: Path) -> None:
    job = SmallPipeline(planted=Planted.RECORDED, steps=60, every=10)
    with _store(tmp_path / "seldom", job) as store:
        assert _found(store) == ()
    with _store(tmp_path / "often", replace(job, every=3)) as store:
        (one,) = _found(store)
        assert (one.pattern, one.steps) == (Pattern.INTERMITTENT, (3, 57))


SELDOM = SmallPipeline(planted=Planted.RECORDED, steps=60, every=3)
EVEN = 0.001
"""Noise of actions that leaves next to nothing to wait for."""


@pytest.mark.parametrize(
    ("job", "others", "between", "pattern", "steps"),
    [
        (SELDOM, replace(SELDOM, every=1), (10, 14), Pattern.INTERMITTENT, (3, 57)),
        (SELDOM, replace(SELDOM, every=1, noise=EVEN), (10, 14), Pattern.INTERMITTENT, (3, 57)),
        (replace(SELDOM, every=1, since=30), replace(SELDOM, every=5), (5, 12), Pattern.CHRONIC, (30, 59)),
        (replace(SELDOM, every=1, since=42), replace(SELDOM, every=1, noise=EVEN), (5, 30), Pattern.CHRONIC, (42, 59)),
    ],
    ids=["stretch-amid-others", "cheap-stretch-amid-others", "few-before", "longer-but-cheap-before"],
)
def test_the_stretch_named_is_where_most_is_lost(
    tmp_path: Path,
    job: SmallPipeline,
    others: SmallPipeline,
    between: tuple[int, int],
    pattern: Pattern,
    steps: tuple[int, int],
) -> None:
    """A few steps of a job are those of another one: with the collective more often, or with little to wait for."""
    spans = [
        span
        for source, inside in ((job, False), (others, True))
        for span in source.spans()
        if span.step is not None and (between[0] <= span.step <= between[1]) == inside
    ]
    with write_spans(tmp_path, spans, layout=job.layout, more={"schedule": job.schedule_rows()}) as store:
        (one,) = [culprit for culprit in _found(store) if culprit.segment == "barrier"]
        assert (one.pattern, one.steps) == (pattern, steps)
        assert one.lost_share > 0.01


@given(
    st.integers(2, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    st.booleans(),
)
def test_an_edge_is_found_wherever_it_is(sizes: tuple[int, int], is_start: bool) -> None:
    """Steps 100 and on, of which the last (or the first) so many show the sign."""
    count, shows = sizes
    between = np.arange(100, 100 + count)
    raised = between[count - shows :] if is_start else between[:shows]
    asked: list[int] = []

    def looks(steps: IntArray) -> BoolArray:
        asked.append(len(steps))
        assert (np.diff(steps) > 0).all()
        return np.isin(steps, raised)

    expected = None if not shows else int(raised[0] if is_start else raised[-1])
    assert edge_of(looks, between, is_start=is_start) == expected
    assert max(asked) <= 16
    assert len(asked) <= 4


def test_a_stretch_is_where_nearly_all_steps_show_it() -> None:
    flags = np.zeros(20, bool)
    assert longest_stretch(flags) is None
    flags[[3, 9, 10, 12, 13, 14, 15]] = True
    assert longest_stretch(flags) == (12, 15)
    flags[11] = True
    assert longest_stretch(flags) == (9, 15)
    flags[:] = [True, False] * 10
    assert longest_stretch(flags) is None


def test_without_a_schedule_nothing_is_said(tmp_path: Path) -> None:
    with _store(tmp_path / "store", SmallPipeline(planted=Planted.ORDER), with_schedule=False) as store:
        assert _found(store) == ()


def test_an_asynchronous_collective_beside_the_compute_is_no_barrier(tmp_path: Path) -> None:
    """Nobody recorded whether it was waited for: what overlaps with compute is taken as not."""
    job = SmallPipeline(microbatches=8)
    spans = job.spans()
    starts: dict[tuple[int, int], list[float]] = {}
    for span in spans:
        if span.segment == "backward" and span.step is not None:
            starts.setdefault((span.rank, span.step), []).append(span.start_ms)
    for (rank, step), begun in starts.items():
        *_, early, _, last = sorted(begun)
        spans.append(Span(rank, step, "dp_all_reduce", early + 1, last - early - 2, self_ms=0.0, kind="collective"))
    with write_spans(tmp_path, spans, layout=job.layout, more={"schedule": job.schedule_rows()}) as store:
        assert _found(store) == ()


def test_forwards_of_an_evaluation_do_not_move_the_end_of_the_compute(tmp_path: Path) -> None:
    job = SmallPipeline()
    spans = job.spans()
    ends: dict[tuple[int, int], float] = {}
    for span in spans:
        if span.step is not None:
            key = span.rank, span.step
            ends[key] = max(ends.get(key, 0.0), span.start_ms + span.duration_ms)
    for (rank, step), end in ends.items():
        spans.append(Span(rank, step, "norm_all_reduce", end + 1, 20.0, exposed_ms=20.0, kind="collective"))
        spans.append(Span(rank, step, "forward", end + 22, 9.0, kind="eval", chunk=0, microbatch=0))
    with write_spans(tmp_path, spans, layout=job.layout, more={"schedule": job.schedule_rows()}) as store:
        assert _found(store) == ()
