"""Garbage collection that drifts on all ranks is the job's; on one rank it is that rank's; else there is none."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from megascope.collectors.reading.store import Store
from megascope.heatmap.report import render
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Outcome
from support.rollup_store import with_rollups
from support.span_store import Span, write_spans

RANKS, STEPS = 8, 120


def collecting(root: Path, pause_ms: Callable[[int, int], float]) -> Store:
    """Ranks that work for 20 ms and meet; every fifth step, each in steps of its own, they collect garbage first."""
    spans = []
    for step in range(STEPS):
        pauses = [pause_ms(rank, step) if (step + 2 * rank) % 5 == 0 else 0.0 for rank in range(RANKS)]
        for rank, pause in enumerate(pauses):
            at = step * 300.0
            if pause:
                spans.append(Span(rank, step, "gc", at, pause, kind="gc"))
            work = 20.0 + (rank * 7 + step * 3) % 5 * 0.05
            waits = max(pauses) - pause + 1.0
            spans.append(Span(rank, step, "forward", at + pause, work))
            spans.append(Span(rank, step, "all_reduce", at + pause + work, waits, exposed_ms=waits, kind="collective"))
    return write_spans(root, spans, layout={"dp": RANKS})


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return collecting(tmp_path_factory.mktemp("drifting"), lambda rank, step: 5 + 0.6 * step)


def test_all_ranks_drift_and_none_is_blamed(drifting: Store) -> None:
    verdict = find_stragglers(drifting, drifting.attempt())
    assert verdict.verdict == Outcome.FINDINGS
    [culprit] = verdict.culprits
    assert (culprit.kind, culprit.cause, culprit.ranks, culprit.hosts) == (CulpritKind.JOB, Cause.GC_DRIFT, (), ())
    assert (culprit.segment, culprit.pattern) == ("gc", "drifting")
    assert culprit.ratio == pytest.approx((5 + 0.6 * 100) / (5 + 0.6 * 21), rel=0.1)
    assert 0.3 < culprit.lost_share < 0.7
    assert verdict.sentence().startswith("Gc takes longer and longer on all ranks: x3")


def test_its_evidence_can_be_asked_again_and_it_can_be_printed(drifting: Store) -> None:
    verdict = find_stragglers(drifting, drifting.attempt())
    [evidence] = verdict.culprits[0].evidence
    assert drifting.query(evidence.sql).column(0)[0].as_py() == pytest.approx(evidence.value)
    assert evidence.peers is not None
    assert evidence.value is not None
    assert evidence.value > 2 * evidence.peers
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(verdict))
    assert evidence.statement in console.export_text()


def test_rollups_show_it_too(drifting: Store, tmp_path: Path) -> None:
    with with_rollups(drifting, tmp_path, span_ranks=()) as store:
        verdict = find_stragglers(store, store.attempt())
        [culprit] = verdict.culprits
        assert (culprit.kind, culprit.cause, culprit.ranks) == (CulpritKind.JOB, Cause.GC_DRIFT, ())
        assert store.query(culprit.evidence[0].sql).column(0)[0].as_py() == pytest.approx(culprit.evidence[0].value)


def test_one_rank_that_drifts_is_not_the_job(tmp_path: Path) -> None:
    store = collecting(tmp_path, lambda rank, step: 5 + (0.6 * step if rank == 3 else 0))
    found = find_stragglers(store, store.attempt()).culprits
    assert all(one.kind != CulpritKind.JOB and one.ranks == (3,) for one in found)


@pytest.mark.parametrize("pause_ms", [lambda rank, step: 5.0 + (step + rank) % 4, lambda rank, step: 80 - 0.6 * step])
def test_no_growth_is_no_drift(tmp_path: Path, pause_ms: Callable[[int, int], float]) -> None:
    store = collecting(tmp_path, pause_ms)
    assert find_stragglers(store, store.attempt()).culprits == ()
