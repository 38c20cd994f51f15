"""The straggler verdict's banner says what was found, and of nothing found how much would have shown."""

from __future__ import annotations

import pytest

from megascope.collectors.reading.store import Attempt
from megascope.collectors.verdicts import Abstention
from megascope.dashboards import verdicts
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Latest, Workbench
from megascope.heatmap.verdict import Outcome, StragglerVerdict


@pytest.mark.parametrize(
    ("outcome", "word", "sentence"),
    [
        (Outcome.HEALTHY, "NO STRAGGLER", "No straggler of x1.07 or more, and no slow link between hosts."),
        (Outcome.INSUFFICIENT, "NOT JUDGED", "Not enough evidence to judge: too few steps."),
    ],
)
def test_without_findings_it_does_not_call_the_job_healthy(
    bench: Workbench, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, word: str, sentence: str
) -> None:
    notes = (Abstention("forward", "too few steps"),) if outcome == Outcome.INSUFFICIENT else ()
    verdict = StragglerVerdict("run", 0, None, outcome, abstained=notes, visible_ratio=1.07)
    latest = Latest(value=verdict, age_s=0.0, error=None, stale=False, stamp="1")
    monkeypatch.setattr(verdicts, "stragglers_of", lambda *_, **__: latest)
    shown = str(verdicts.straggler_banner(bench, attempt, View()).banner)
    assert word in shown
    assert sentence in shown
    assert "HEALTHY" not in shown
