"""Pages of a mesh whose stages are on `pipe` or `pipeline` and whose replicas are on `data`: as on pp and dp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Attempt
from megascope.dashboards.contributions import what_if
from megascope.dashboards.heat.data import choose
from megascope.dashboards.heat.export import heat_sql
from megascope.dashboards.heat.rows import groups_of
from megascope.dashboards.verdicts import culprit_links, marks_of, peer_axis
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.heatmap.verdict import Cause, Culprit, CulpritKind, Outcome, Pattern, Severity, StragglerVerdict
from megascope.heatmap.whatif.result import Contribution, Part, WhatIf
from support.span_store import Span, write_spans

NAMES = ("pp", "pipe", "pipeline")
WHATIF = WhatIf(
    1.2, None, 0.8, (0, 9), 10, 1.2, 1.2, 1.0, contributions=(Contribution(Part.STAGE, "1", 0.8, 0.1, 1.1),)
)


def culprit(kind: CulpritKind, ranks: tuple[int, ...], stage: int | None) -> Culprit:
    return Culprit(
        ranks=ranks, hosts=(), confidence=0.9, severity=Severity.HIGH, kind=kind, cause=Cause.UNEVEN_STAGES,
        segment="forward", ratio=1.4, steps=(0, 9), pattern=Pattern.CHRONIC, lost_share=0.2, evidence=(), stage=stage,
    )  # fmt: skip


def attempt_of(stages: str) -> Attempt:
    return Attempt("r", 0, {stages: 4, "data": 8})


@pytest.mark.parametrize("stages", NAMES)
def test_peers_never_stand_along_the_stages(stages: str) -> None:
    assert peer_axis(attempt_of(stages)) == "data"
    assert peer_axis(Attempt("r", 0, {stages: 4})) is None
    links = str(culprit_links(culprit(CulpritKind.RANK, (5,), None), attempt_of(stages), View()))
    assert "axis=data" in links


@pytest.mark.parametrize("stages", NAMES)
def test_a_stage_is_grouped_linked_and_framed_by_its_axis(stages: str) -> None:
    uneven, attempt = culprit(CulpritKind.STAGE, (), 2), attempt_of(stages)
    verdict = StragglerVerdict("r", 0, None, Outcome.FINDINGS, (uneven,), whatif=WHATIF)
    assert f"group={stages}'" in str(culprit_links(uneven, attempt, View()))
    assert json.loads(marks_of(verdict, "forward", attempt)) == [{"ranks": [], "steps": [0, 9], "stage": f"{stages}2"}]
    assert f"group={stages}'" in str(what_if(verdict, attempt))
    assert groups_of(attempt)[stages] == f"{stages} (stage)"


def test_a_mesh_without_stages_has_no_stage_to_group_or_frame() -> None:
    uneven, attempt = culprit(CulpritKind.STAGE, (), 0), Attempt("r", 0, {"data": 8})
    verdict = StragglerVerdict("r", 0, None, Outcome.FINDINGS, (uneven,), whatif=WHATIF)
    assert "group=" not in str(culprit_links(uneven, attempt, View()))
    assert json.loads(marks_of(verdict, "forward", attempt)) == [{"ranks": [], "steps": [0, 9]}]
    assert "group=" not in str(what_if(verdict, attempt))


@pytest.mark.parametrize("stages", NAMES)
def test_the_median_of_the_sql_is_that_of_the_stage(tmp_path: Path, stages: str) -> None:
    spans = [
        Span(rank, step, "forward", 100.0 * step, 10.0 if rank < 4 else 30.0) for rank in range(8) for step in (0, 1)
    ]
    with write_spans(tmp_path, spans, layout={stages: 2, "data": 4}) as store:
        bench = Workbench(store)
        try:
            attempt = store.attempt()
            sql = heat_sql(bench, attempt, choose(View(segment="forward"), bench, attempt))
            found = run_sql(store, sql, attempt=attempt).table.to_pylist()
        finally:
            bench.close()
    assert len(found) == 16
    assert {(row["value"], row["stage_median"], row["ratio"]) for row in found} == {
        (10.0, 10.0, 1.0),
        (30.0, 30.0, 1.0),
    }
