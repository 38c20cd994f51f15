"""A barrier that crept in is found in three forms, and not in a pipeline that runs as scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.jobwide.barrier import find_barrier
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, Culprit, CulpritKind, describe
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
