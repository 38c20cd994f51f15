"""What the pages make of a verdict that accuses no machine: stages, the job, warnings, who was waited for."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from megascope.collectors.reading.store import Attempt
from megascope.dashboards import verdicts
from megascope.dashboards.contributions import what_if
from megascope.dashboards.findings import verdict_details
from megascope.dashboards.heat.data import choose, rows_of, worst_cells, worst_ranks
from megascope.dashboards.pages.heatmap import PAGE
from megascope.dashboards.verdicts import culprit_links, marks_of, straggler_banner, stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Latest, Workbench
from megascope.heatmap.matrix import Matrix
from megascope.heatmap.peers import Placement
from megascope.heatmap.verdict import (
    Cause,
    Culprit,
    CulpritKind,
    EarlyWarning,
    Outcome,
    Pattern,
    Severity,
    StragglerVerdict,
)
from megascope.heatmap.waited_row import WaitedBasis, WaitedFor
from megascope.heatmap.whatif.result import WhatIf

STAGE = Culprit(
    ranks=(),
    hosts=(),
    confidence=0.9,
    severity=Severity.HIGH,
    kind=CulpritKind.STAGE,
    cause=Cause.UNEVEN_STAGES,
    segment="forward",
    ratio=1.4,
    steps=(0, 29),
    pattern=Pattern.CHRONIC,
    lost_share=0.2,
    evidence=(),
    stage=1,
)
VERDICT = StragglerVerdict("synthetic", 0, None, Outcome.FINDINGS, (STAGE,))


@pytest.fixture
def judged_uneven(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> Workbench:
    """A workbench whose verdict is that stage 1 has more work."""

    def judged(*_: object, **__: object) -> Latest[StragglerVerdict]:
        return Latest(VERDICT, 0.0, None, stale=False, stamp="1")

    monkeypatch.setattr(verdicts, "stragglers_of", judged)
    monkeypatch.setattr("megascope.dashboards.heat.data.stragglers_of", judged)
    return bench


def test_an_uneven_stage_is_linked_framed_and_not_called_slow(judged_uneven: Workbench, attempt: Attempt) -> None:
    text = str(straggler_banner(judged_uneven, attempt, View()).banner)
    assert "UNEVEN" in text
    assert "SLOW" not in text
    assert "/heatmap?run=synthetic&attempt=0&segment=forward&show=value&group=pp" in str(
        culprit_links(STAGE, attempt, View(run="synthetic", attempt=0))
    )
    assert json.loads(marks_of(VERDICT, "forward", attempt)) == [{"ranks": [], "steps": [0, 29], "stage": "pp1"}]
    assert choose(View(), judged_uneven, attempt).show == "value", "a ratio within the stage would show nothing"
    assert choose(View(segment="forward"), judged_uneven, attempt).show == "ratio"


@pytest.mark.parametrize(
    ("kind", "cause", "word"),
    [
        (CulpritKind.JOB, Cause.UNEVEN_INPUT, "UNEVEN"),
        (CulpritKind.JOB, Cause.CHECKPOINT, "JOB-WIDE"),
        (CulpritKind.RANK, Cause.SLOW_COMPUTE, "SLOW"),
    ],
)
def test_the_word_of_a_finding_follows_its_kind(kind: CulpritKind, cause: Cause, word: str) -> None:
    assert verdicts._finding_word(replace(STAGE, kind=kind, cause=cause)) == word


def test_of_a_collective_who_waits_least_comes_first(bench: Workbench, attempt: Attempt) -> None:
    ratio = np.array([[1.2, 1.4], [0.3, 0.1], [1.1, np.nan], [np.nan, np.nan]])
    matrix = Matrix("all_reduce", "duration", np.arange(4), np.arange(2), ratio, ratio, ratio, np.log(ratio))
    found = worst_ranks(matrix, 4, least_first=True)
    assert [row["rank"] for row in found] == [1, 2, 0]
    assert found[0] == {
        "rank": 1,
        "ratio": pytest.approx(0.2),
        "slow": 1.0,
        "worst_step": 1,
        "worst_ratio": pytest.approx(0.1),
    }
    assert [row["rank"] for row in worst_ranks(matrix, 4)] == [0, 2, 1]
    assert [(cell["rank"], cell["step"]) for cell in worst_cells(matrix, 2, least_first=True)] == [(1, 1), (1, 0)]
    choice = choose(View(segment="dp_reduce_scatter", order="worst"), bench, attempt)
    assert choice.is_waiting
    placement = Placement(np.arange(4), (), {})
    assert rows_of(matrix, placement, choice).rows.tolist() == [1, 2, 0, 3]
    text = str(PAGE.body(View(segment="dp_reduce_scatter"), bench).children)
    assert "Who waits least comes first" in text
    assert "Ranks against their peers" not in text


def test_warnings_waiting_and_the_ideal_are_told_beside_the_verdict(attempt: Attempt) -> None:
    whatif = WhatIf(1.25, 0.4, None, (0, 9), 10, 0.5, 0.5, 0.4, workers=8, slowest=1)
    warnings = tuple(EarlyWarning(rank, "forward", 20, 1.04) for rank in range(4))
    waited = (WaitedFor(5, None, 12, 40, 1.5, 0.75, 9, WaitedBasis.ONE_CLOCK),)
    full = replace(VERDICT, whatif=whatif, warnings=warnings, arrivals=waited)
    text = str(verdict_details(full, attempt, View()))
    for part in ("Rank 0 takes x1.04", "1 more", "12 of 40", "75%", "one clock, 9 steps"):
        assert part in text
    assert "x1.25 as fast" in str(what_if(full, attempt))
    assert what_if(VERDICT, attempt) == what_if(None, attempt) == []
    assert verdict_details(VERDICT, attempt, View()) == []
    assert verdict_details(None, attempt, View()) == []
    frontier = (WaitedFor(3, "forward", None, None, 2.0, None, 1, WaitedBasis.FRONTIER),)
    text = str(verdict_details(replace(VERDICT, arrivals=frontier), attempt, View()))
    assert "furthest behind in" in text
    assert "frontier, 1 step." in text


def test_the_real_verdict_has_its_details(bench: Workbench, attempt: Attempt) -> None:
    verdict = stragglers_of(bench, attempt, wait_s=30).value
    assert verdict is not None
    assert bool(verdict.arrivals) == ("Who was waited for" in str(verdict_details(verdict, attempt, View())))
