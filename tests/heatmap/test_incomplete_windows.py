"""Rollups whose last window is not complete, that hold other steps than were asked for, or lack a segment."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from megascope.collectors.reading.store import Store
from megascope.heatmap.matrix import segment_matrix
from megascope.heatmap.observations import observe
from megascope.heatmap.report import render
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Outcome, to_json
from support.rollup_store import with_rollups
from support.span_store import Span, meeting, write_spans

RANKS, STEPS = 6, 164
NOISE = np.exp(0.03 * np.random.default_rng(7).standard_normal((RANKS, STEPS)))


def even_ms(rank: int, step: int) -> float:
    return float(20 * NOISE[rank, step])


def slow_ms(rank: int, step: int) -> float:
    return even_ms(rank, step) * (1.6 if rank == 4 and step >= 50 else 1.0)


def step_rows() -> dict[str, Sequence[Any]]:
    count = RANKS * STEPS
    return {
        "rank": np.tile(np.arange(RANKS), STEPS).tolist(),
        "step": np.repeat(np.arange(STEPS), RANKS).tolist(),
        "start_ns": [0] * count,
        "duration_ns": [30_000_000] * count,
    }


def stores(root: Path, spans: list[Span]) -> tuple[Store, Store]:
    """The job's spans, and its rollups alone."""
    fine = write_spans(root / "spans", spans, layout={"dp": RANKS}, more={"steps": step_rows()})
    return fine, with_rollups(fine, root / "rollups", span_ranks=())


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    return stores(tmp_path_factory.mktemp("slow"), meeting(RANKS, STEPS, slow_ms))


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    return stores(tmp_path_factory.mktemp("even"), meeting(RANKS, STEPS, even_ms))


@pytest.mark.parametrize("metric", ["self", "count"])
def test_the_last_window_is_averaged_over_the_steps_that_it_has(slow: tuple[Store, Store], metric: str) -> None:
    fine, coarse = (segment_matrix(store, store.attempt(), "forward", metric) for store in slow)
    assert coarse.steps[-1] == 160
    np.testing.assert_allclose(coarse.values[:, -1], fine.values[:, 160:].mean(axis=1), rtol=1e-6)


def test_waiting_and_work_per_step_are_those_of_the_spans(slow: tuple[Store, Store]) -> None:
    fine, coarse = (observe(store, store.attempt()) for store in slow)
    assert fine.waits_ms is not None
    assert coarse.waits_ms is not None
    np.testing.assert_allclose(coarse.waits_ms[:, -1], fine.waits_ms[:, -4:].mean(axis=1), rtol=1e-6)
    work = [next(one.per_step_ms() for one in seen.cells if one.name == "forward") for seen in (fine, coarse)]
    np.testing.assert_allclose(work[1][:, -1], work[0][:, -4:].mean(axis=1), rtol=1e-6)


def test_a_finding_ends_with_the_last_step_that_ran(slow: tuple[Store, Store]) -> None:
    rollups = slow[1]
    [culprit] = find_stragglers(rollups, rollups.attempt()).culprits
    assert (culprit.ranks, culprit.steps) == ((4,), (50, 163))


def test_evidence_of_waiting_counts_the_steps_of_the_last_window(slow: tuple[Store, Store]) -> None:
    """Asked for the last, incomplete windows alone: over ten steps each, the waiting would be less than half."""
    rollups, direct = slow[1], slow[0]
    [culprit] = find_stragglers(rollups, rollups.attempt(), steps=(100, 169)).culprits
    waited = culprit.evidence[2]
    mean = direct.query(
        """SELECT sum(exposed_ns) / 4e6 AS ms FROM spans
           WHERE kind = 'collective' AND step >= 160 AND rank <> 4 GROUP BY rank"""
    )["ms"].to_pylist()
    windows = rollups.query(
        waited.sql.replace("SELECT median(ms) FROM", "SELECT max(ms) FILTER (first_step = 160) FROM").replace(
            "rank IN (4)", "rank IN (0, 1, 2, 3, 5)"
        )
    )
    assert windows.column(0)[0].as_py() == pytest.approx(max(mean), rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "read"), [((41, 47), "40 to 49"), ((33, 67), "40 to 59"), ((100, 170), "100 to 163")]
)
def test_it_is_said_which_steps_were_read(even: tuple[Store, Store], asked: tuple[int, int], read: str) -> None:
    verdict = find_stragglers(even[1], even[1].attempt(), steps=asked)
    said = f"steps {asked[0]} to {asked[1]} were asked for, steps {read} were read"
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(render(verdict))
    assert said in console.export_text()
    assert said in json.dumps(to_json(verdict))


def test_steps_that_were_read_as_asked_need_no_word(even: tuple[Store, Store]) -> None:
    for store, asked in ((even[1], (20, 119)), (even[0], (41, 87)), (even[1], None)):
        verdict = find_stragglers(store, store.attempt(), steps=asked)
        assert not any("were asked for" in one.reason for one in verdict.abstained)


@pytest.mark.parametrize("at", [0, 1], ids=["spans", "rollups"])
def test_a_job_without_trusted_times_of_its_main_work_is_not_healthy(tmp_path: Path, at: int) -> None:
    untimed = [replace(span, status="opaque") for span in meeting(RANKS, STEPS, even_ms) if span.segment == "forward"]
    store = stores(tmp_path, [*meeting(RANKS, STEPS, even_ms, "backward"), *untimed])[at]
    verdict = find_stragglers(store, store.attempt())
    assert verdict.verdict == Outcome.INSUFFICIENT
    assert [one.reason for one in verdict.abstained if one.signal == "forward"] == [
        "none of its spans has a time that can be trusted"
    ]


def test_an_even_job_with_an_incomplete_window_is_healthy(even: tuple[Store, Store]) -> None:
    for store in even:
        assert find_stragglers(store, store.attempt()).verdict == Outcome.HEALTHY
